"""One pair of a model and an optimizer on a worker. The optimizer's step() exchanges with all servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from torchyard_roles.checkpoints import checkpoint_files
from torchyard_roles.environment import Environment
from torchyard_roles.errors import PeerLost, RolesError, UsageProblem
from torchyard_roles.exchange.chunk_staging import Staging
from torchyard_roles.exchange.parameter_layout import ADDED, Entry, Layout
from torchyard_roles.strategies.parameter_server import messages, remote_optimizer
from torchyard_roles.strategies.parameter_server.buffers_and_constants import WorkerBuffers
from torchyard_roles.strategies.parameter_server.gradient_push import ClippedGradients, Gradients, LocalGradientGuard
from torchyard_roles.strategies.parameter_server.parameter_changes import (
    InstalledParameters,
    checksum,
    compare_at_end,
    reason_against_changes,
)
from torchyard_roles.strategies.parameter_server.server_group import Servers, on_all
from torchyard_roles.strategies.parameter_server.server_link import Completion, Exchange, ServerLink
from torchyard_roles.strategies.parameter_server.trained_parameters import TrainedParameters

MEET_S = 120.0
"""Longest time in seconds to wait for all servers, which import torch before they listen."""


class WorkerPair:
    """Pair `number` on one worker, with a link to each server.

    Args:
        overlaps: Whether an exchange overlaps with the next step. The default is true if there are several asynchronous
            groups.
        steps_between_pulls: Whether the worker's own optimizer takes the steps in which nothing is pulled.
    """

    def __init__(
        self,
        environment: Environment,
        number: int,
        *,
        chunk_bytes: int | None = None,
        overlaps: bool | None = None,
        steps_between_pulls: bool = True,
    ) -> None:
        options = environment.options
        self._environment = environment
        self._number = number
        self._is_chief = environment.rank == 0
        """Whether this process is the chief: rank 0, in group 0."""
        self._leads_group = environment.group_rank == 0
        self._asynchronous = environment.strategy == "downpour"
        self._has_others = self._asynchronous and environment.groups > 1
        """Whether other groups push to the same servers."""
        self._overlaps = self._has_others if overlaps is None else overlaps
        self._push_every = options.push_every if self._asynchronous else 1
        self._pull_every = options.pull_every if self._asynchronous else 1
        self._chunk_bytes = chunk_bytes
        self._steps_between_pulls = steps_between_pulls
        self._links: list[ServerLink] = []
        self.parameters: list[torch.nn.Parameter] = []
        self._kept: set[str] = set()
        """Servers that kept their parameters when this group restarted."""
        self.steps = 0
        self.changes = 0
        """The number of times that this object has changed the parameters."""
        self._sent_options: list[remote_optimizer.Arguments] = []
        self._is_restored = False
        self._flushed = 0
        """The step of the last flush()."""
        self._exchange: Completion | None = None
        self._pulls = False
        self._held: Exchange | None = None
        """The exchange whose sums the servers hold, between clip_gradients() and step()."""
        self._factor = 1.0
        self._renews = False
        """Whether the held exchange included parameters that the script had changed."""
        self._is_void = False
        """Whether this worker's part of the held gradients was not finite."""
        self._waited = 0.0
        self._clipped_s = 0.0
        """Time in seconds spent in clip_gradients() in this step."""
        self._skipped = 0
        """Number of steps in which this worker's gradients were skipped."""
        self._stepped_at = 0.0
        self.times = {"compute_s": 0.0, "exchange_s": 0.0, "wait_s": 0.0}
        """The times of the last step in seconds."""
        self.spent = {"exchange_s": 0.0, "wait_s": 0.0}
        """The total times of all steps in seconds."""
        self._local_step: Callable[[], None] = lambda: None
        self._guard: LocalGradientGuard | None = None
        """Detects changes of gradients before the step, when they are not yet averaged over the group's workers."""

    def connect(self) -> None:
        """Connects to all servers. Raises PeerLost if a server cannot be reached."""
        environment = self._environment
        servers = environment.peers.ps
        for number, server in enumerate(servers):
            introduction = {
                "name": environment.name,
                "pair": self._number,
                "group": environment.group,
                "groups": environment.groups,
                "rank": environment.group_rank,
                "size": environment.group_size,
                "generation": environment.generation,
                "shard": number,
                "shards": len(servers),
            }
            self._links.append(ServerLink(server, environment.key, introduction, outlives=self._asynchronous))
        on_all(self._links, lambda link: link.connect(MEET_S))

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, elsewhere: Callable[[], set[int]]
    ) -> None:
        """Starts the pair's training on the servers (chief) or joins it (other workers), and replaces optimizer.step().

        Args:
            elsewhere: Returns the IDs of the other pairs' parameters, some of which may be part of this model.

        Raises:
            UsageProblem: The servers cannot train this pair.
        """
        trained = self._trained = TrainedParameters(model, optimizer, elsewhere, self._environment.strategy)
        self._optimizer = optimizer
        self.parameters = trained.parameters
        self._installed = InstalledParameters(trained.names, trained.parameters)
        if optimizer.state and self._is_chief:
            print("torchyard: the servers begin with no state of the optimizer from earlier steps.", flush=True)
        self._buffers = WorkerBuffers(
            model, {id(each) for each in trained.parameters} | elsewhere(), sends_buffers=self._leads_group
        )
        self._sent_options = remote_optimizer.arguments(optimizer)
        chunk_bytes = self._chunk_bytes
        if chunk_bytes is None and self._overlaps:
            chunk_bytes = trained.layout.chunk_bytes_behind_computing(len(self._links))
        self._description = messages.text_of(
            {
                "layout": trained.layout.fingerprint(),
                "options": self._sent_options,
                "optimizer": trained.optimizer_name,
                "chunk_bytes": chunk_bytes,
                "rows": self._buffers.sizes,
            }
        )
        chunks = trained.layout.chunks(len(self._links), chunk_bytes)
        self._gradients = Gradients(
            self._environment.name,
            optimizer,
            trained.names,
            trained.parameters,
            skips=self._environment.options.on_nan == "skip",
            sums=self._push_every > 1,
        )
        self._clipped = ClippedGradients(self._gradients)
        if self._environment.group_size > 1:
            self._guard = LocalGradientGuard(optimizer)
            self._guard.watch(trained.names, trained.parameters)
        self._staging = Staging(self.parameters, in_place=not self._overlaps)
        self._servers = Servers(self._environment.name, self._links, self._staging, self._reenter)
        for number, link in enumerate(self._links):
            link.serves([chunk for chunk in chunks if chunk.shard == number])
        # Of the servers that have chunks, the first one distributes buffers and constants.
        self._row_link = next(link for link in self._links if link.chunks)
        self._row_link.rows = self._buffers.receivers
        on_all(self._links, self._enter)
        self.pull()
        self._buffers.keep_constants()
        self._local_step = remote_optimizer.hand_over(optimizer, lambda _: self._step())
        self._stepped_at = time.monotonic()

    def _enter(self, link: ServerLink) -> None:
        """Starts the pair's training on a server (chief), or joins this training (other workers)."""
        if not self._is_chief:
            link.command({"op": "join"}, self._description)
            return
        if link.command({"op": "begin"}, self._description)["keeps"]:
            self._kept.add(link.peer.name)
            return
        self._kept.discard(link.peer.name)
        self._assign(link)
        link.command({"op": "open"})

    def _assign(self, link: ServerLink) -> None:
        for chunk in link.chunks:
            if chunk.number < ADDED:
                link.tell({"op": "assign", "chunk": chunk.number}, self._staging.values(chunk))
        if link is self._row_link:
            for name, values in self._buffers.packed():
                link.tell({"op": name}, values)

    def _step(self) -> None:
        began = time.monotonic()
        self.times["compute_s"] = began - self._stepped_at - self._clipped_s
        self.steps += 1
        self._installed.check()
        waited = self._step_held() if self._held is not None else self._push_and_pull()
        self._stepped_at = time.monotonic()
        exchanged = self._stepped_at - began + self._clipped_s
        self._clipped_s = 0.0
        self.times["wait_s"] = min(waited, exchanged)
        self.times["exchange_s"] = exchanged - self.times["wait_s"]
        for name in self.spent:
            self.spent[name] += self.times[name]

    def _push_and_pull(self) -> float:
        """Pushes gradients to the servers and pulls the updated parameters, if these are due in this step.

        Returns how many seconds the servers waited for other workers.
        """
        self._check_guard()
        clip = self._clipped.take_limit()
        changed = self._changes()
        waited = self._end_last()
        void = self._gradients.prepare(self.steps)
        self._skipped += void
        pushes = self.steps % self._push_every == 0
        pulls = self.steps % self._pull_every == 0
        if self._push_every > 1:
            self._gradients.add(void=void)
        if pushes or pulls:
            single = self._push_every == 1
            gradients = self._gradients.now(void=void) if single else self._gradients.take() if pushes else []
            self._begin(gradients, pushes=pushes, pulls=pulls, void=void and single, changed=changed, clip=clip)
            if not self._overlaps:
                waited = self._finish()
        if self._steps_between_pulls and not pulls and not void:
            self._local_step()
            self._note()
        return waited

    def _check_guard(self, *, clips: bool = False) -> None:
        if self._guard is not None:
            self._guard.check(self._installed.changed, may_be_unscaled=clips)

    def _end_last(self) -> float:
        """Finishes the exchange of the previous step. Returns how many seconds the servers waited for other workers."""
        for link in self._links:
            link.note_gradients()
        waited = self._finish()
        self._add_parameters()
        return waited

    def _add_parameters(self) -> None:
        """Adds parameters that the script has unfrozen or added to the optimizer since the last step.

        All workers of a group must add the same parameters. The first worker of the first group that adds a parameter
        sends the parameter's values to the servers.
        """
        new = self._trained.add_new()
        if not new:
            return
        added = self._trained.chunks_of(new, len(self._links), self._chunk_bytes)
        if self._guard is not None:
            self._guard.watch(self._trained.names, self._trained.parameters)
        for link, chunks in zip(self._links, added):
            link.serves([*link.chunks, *chunks])
        on_all(self._links, lambda link: self._add(link, new, compares=True))
        self._note()

    def _add(self, link: ServerLink, entries: list[Entry], *, compares: bool) -> None:
        """Describes added parameters to a server, and sends their values if the server requests them.

        Args:
            compares: Whether the values must be equal on all workers, because they have not been trained yet.
        """
        layout = Layout(tuple(entries), self._trained.layout.whole_parameters)
        chunks = {chunk.number: chunk for chunk in link.chunks if chunk.number >= ADDED}
        names = {entry.name for entry in entries} if compares else set()
        description = {
            "layout": layout.fingerprint(),
            "options": remote_optimizer.arguments(self._optimizer),
            "checksums": {
                number: checksum(self._staging.values(chunk))
                for number, chunk in chunks.items()
                if self._trained.names[chunk.pieces[0].parameter] in names
            },
        }
        numbers = link.command({"op": "add"}, messages.text_of(description))["assign"]
        for number in numbers:
            link.tell({"op": "assign", "chunk": number}, self._staging.values(chunks[number]))
        if numbers:
            link.command({"op": "added", "chunks": numbers})

    def _changes(self) -> dict[int, int]:
        """Returns the checksums of the chunks that the script has changed since the last step, by chunk number.

        All workers of a synchronous group must make the same changes. The first worker sends the new values before its
        push, and the servers compare the checksums in all pushes of the round. Raises UsageProblem if the strategy does
        not support changes by the script.
        """
        changed = set(self._installed.changed())
        if not changed:
            return {}
        refused = reason_against_changes(self._environment)
        if refused:
            name = self._trained.names[min(changed)]
            raise UsageProblem(
                f"The script has changed the parameter {name} outside optimizer.step(), and {refused}",
                "Train with sandblaster without backup workers, or with all_reduce.",
            )
        chunks = [chunk for link in self._links for chunk in link.chunks]
        return {
            chunk.number: checksum(self._staging.values(chunk))
            for chunk in chunks
            if any(piece.parameter in changed for piece in chunk.pieces)
        }

    def flush(self, steps: int) -> None:
        """Pushes pending gradients after `steps` steps of this pair.

        All members of a group push, even if they have no gradients, because a round contains one push of each member.
        """
        if self._push_every == 1 or steps <= self._flushed or steps % self._push_every == 0:
            return
        self._flushed = steps
        self._finish()
        if self._gradients.holds_back or self._environment.group_size > 1:
            self._begin(self._gradients.take(), pushes=True, pulls=False, void=False)
            self._finish()

    def hold(self) -> None:
        """Pushes the gradients, whose sums the servers then hold, and requests the norms of the mean gradients.

        Raises UsageProblem if the servers already hold a sum.
        """
        self._check_not_held()
        self._installed.check()
        self._check_guard(clips=True)
        clip = self._clipped.take_limit()
        changed = self._changes()
        self._end_last()
        # Gradients that are not finite are handled in step(), where the state of a GradScaler is known.
        self._is_void = not self._gradients.are_finite()
        gradients = self._gradients.now(void=self._is_void)
        self._begin(gradients, pushes=True, pulls=True, void=self._is_void, hold=True, changed=changed, clip=clip)
        self._clipped.mark()
        self._renews = bool(changed)

    def _check_not_held(self) -> None:
        if self._held is not None:
            raise UsageProblem(
                "clip_gradients() was called a second time before the optimizer's step.",
                "Call it once, right before optimizer.step(); of several optimizers, name the one that steps next: "
                "clip_gradients(1.0, optimizer=…).",
            )

    def square(self) -> float:
        """Returns the squared norm of the mean gradient whose sum the servers hold."""
        completion, self._exchange = self._exchange, None
        assert completion is not None
        completion.wait()
        square = sum(link.square for link in self._links)
        for link in completion.lost:
            self._servers.recover(link)
        if self._renews or completion.lost:
            self._note()
        self._waited = max((link.figures.waited for link in self._links), default=0.0)
        return square

    def scale(self, factor: float, *, took_s: float) -> None:
        """Sets the factor for the held gradients. `took_s` is the time in seconds that clip_gradients() took."""
        self._factor = factor
        self._clipped_s = took_s

    @property
    def is_void(self) -> bool:
        """Whether this worker's gradients in the held sum are not finite."""
        return self._held is not None and self._is_void

    def clip_values(self, value: float) -> None:
        """Makes the servers clip each element of the mean gradient in the next step."""
        self._check_not_held()
        self._clipped.limit(value)

    def allow_clipped(self) -> None:
        """Accepts the local gradients, which have been clipped, as unchanged."""
        if self._guard is not None:
            self._guard.allow()

    def _step_held(self) -> float:
        """Makes the servers take the step with the gradient sums that they hold.

        Returns how many seconds the servers waited for other workers.
        """
        self._held = None
        self._clipped.check()
        if self._is_void:
            # Raises an error that names the parameter, unless such steps are skipped.
            self._gradients.prepare_void(self.steps)
        changed = self._installed.changed()
        if changed:
            raise UsageProblem(
                f"The script has changed the parameter {self._trained.names[changed[0]]} between clip_gradients() and "
                "optimizer.step().",
                "Change it before clip_gradients(), or after optimizer.step().",
            )
        self._skipped += self._is_void
        self._exchange, self._pulls = Completion(len(self._links)), True
        for link in self._links:
            link.scale(self._factor, self._exchange)
        if not self._overlaps:
            self._finish()
        return self._waited

    def _begin(
        self,
        gradients: Sequence[torch.Tensor | None],
        *,
        pushes: bool,
        pulls: bool,
        void: bool,
        hold: bool = False,
        changed: Mapping[int, int] | None = None,
        clip: float | None = None,
    ) -> None:
        """Begins an exchange with all servers. `changed` is the result of _changes()."""
        if pushes:
            self._send_updates()
            self._staging.offer(gradients, copied=self._overlaps and self._push_every == 1)
        self._pulls = pulls
        self._staging.fence()
        exchange = Exchange(
            gradient=self._staging.gradient if pushes else None,
            target=self._staging.target if pulls else None,
            arrived=self._staging.arrived,
            void=void and pushes,
            hold=hold,
            clip=clip,
            changed=changed or {},
            values=self._staging.values if self._leads_group else None,
        )
        self._held = exchange if hold else None
        self._exchange = self._servers.begin(exchange)

    def _finish(self) -> float:
        """Finishes the exchange in progress, if there is one, and installs its parameters.

        Returns how many seconds the servers waited for other workers, or 0 if exchanges overlap with steps.
        """
        if self._exchange is None:
            return 0.0
        completion, self._exchange = self._exchange, None
        self._servers.finish(completion, pulls=self._pulls)
        self._buffers.install()
        if self._pulls or completion.lost:
            self._note()
        return max((link.figures.waited for link in self._links), default=0.0) if not self._overlaps else 0.0

    def pull(self) -> None:
        """Receives and installs the newest parameters."""
        self._staging.fence()
        self._servers.pull()
        self._buffers.install()
        self._note()

    def _note(self) -> None:
        """Records the current parameters. Later differences from these values count as changes by the script."""
        self.changes += 1
        self._installed.note()
        if self._guard is not None:
            self._guard.installed()

    def _send_updates(self) -> None:
        """Sends optimizer options that have changed and, on a group's first worker, buffers that have changed."""
        options = remote_optimizer.arguments(self._optimizer)
        changed, self._sent_options = options != self._sent_options, options
        buffers = self._buffers.changed_buffers()
        for link in self._links:
            with suppress(PeerLost):  # The next exchange handles the lost connection.
                if changed:
                    link.tell({"op": "options"}, messages.text_of(options))
                if link is self._row_link and buffers is not None:
                    link.tell({"op": "buffers", "with_push": True}, buffers)
                    self._buffers.sent_buffers = buffers

    def _reenter(self, link: ServerLink) -> None:
        """Joins a restarted server. If the server has no parameters, the chief starts training on it again."""
        if link is self._row_link:
            self._buffers.sent_buffers = None
        if self._is_chief and not link.is_ready:
            self._enter(link)
        else:
            link.command({"op": "join"}, self._description)
        link.tell({"op": "options"}, messages.text_of(self._sent_options))
        if self._trained.added:
            self._add(link, self._trained.added, compares=False)

    def save(self, folder: Path, step: int) -> None:
        changed = self._changes()
        for link in self._links:
            for chunk in link.chunks:
                if chunk.number in changed:
                    link.tell({"op": "set", "chunk": chunk.number}, self._staging.values(chunk))
        self._finish()
        kept = [checkpoint.step for checkpoint in checkpoint_files.complete(folder)[: checkpoint_files.KEPT]]
        on_all(self._links, lambda link: link.command({"op": "save", "step": step, "kept": kept}))
        if self._asynchronous:
            self.pull()

    def restore(self, step: int) -> None:
        """Makes the servers restore their parts of a checkpoint, unless another call already did so."""
        if self._is_restored:
            return
        self._is_restored = True
        self.steps = self._flushed = step
        if self._environment.group == 0:
            on_all(self._links, lambda link: self._restore(link, step))
        self.pull()

    def _restore(self, link: ServerLink, step: int) -> None:
        if not self._is_chief:
            link.command({"op": "await"})
            return
        if link.peer.name not in self._kept and not link.command({"op": "restore", "step": step})["found"]:
            print(
                f"torchyard: {link.peer.name} has no part of step {step}: its shard is taken from the "
                "checkpoint's model, and its optimizer begins without a state.",
                flush=True,
            )
            self._assign(link)
        link.command({"op": "restored"})

    def statistics(self) -> dict[str, float]:
        figures = [link.figures for link in self._links]
        return {
            **self.times,
            "staleness": float(max((one.staleness for one in figures), default=0)),
            "dropped": float(max((one.dropped + one.lost for one in figures), default=0)),
            "skipped": float(self._skipped),
        }

    @property
    def ends_last(self) -> bool:
        return self._is_chief and (self._has_others or self._push_every > 1 or self._pull_every > 1)

    def finish(self) -> None:
        """Performs the last exchange, which includes pending gradients."""
        changed = [self._trained.names[number] for number in self._installed.changed()]
        if changed and not self.steps and (self._has_others or self._environment.group_size > 1):
            raise UsageProblem(
                f"The parameter {changed[0]} was changed, but the optimizer that was passed to "
                "distribute() has never stepped, so each worker has trained alone.",
                "Update parameters with that optimizer's step(), or set strategy.kind to all_reduce.",
            )
        if self._environment.group_size > 1 and not self._has_others:
            compare_at_end(self._environment, self._number, self.parameters)
        if changed and self.ends_last:
            print(
                f"torchyard: the parameter {changed[0]} was changed after the last step, and is replaced "
                "by the servers' own.",
                flush=True,
            )
        self._finish()
        self.flush(self.steps)

    def wait_for_other_groups(self, *, logs: bool) -> None:
        """Waits until the other groups have left, as Servers.wait_for_other_groups() does."""
        self._servers.wait_for_other_groups(logs=logs)

    def leave(self) -> None:
        try:
            self._finish()
        except RolesError as error:
            print(f"torchyard: {error}", flush=True)
        for link in self._links:
            link.close(goodbye=True)

    def abandon(self) -> None:
        """Disconnects after an exception. The servers report the cause to the other workers of the group."""
        servers = {link.peer.name for link in self._links}
        lost = [link.lost for link in self._links if link.lost is not None]
        cause = min(lost, key=lambda error: error.name not in servers, default=None)
        for link in self._links:
            link.close(goodbye=False, cause=cause)
