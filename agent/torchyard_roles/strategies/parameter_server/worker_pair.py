"""One pair of model and optimizer under parameter servers, as one worker has it: what its step exchanges."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from torchyard_roles.checkpoints import files
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.environment import Environment
from torchyard_roles.errors import PeerLost, RolesError, StoreLost, StoreTimeout, UsageProblem
from torchyard_roles.exchange.chunk_staging import PackedTensors, Staging
from torchyard_roles.exchange.parameter_layout import ADDED, Chunk, Entry, Layout, added_chunks
from torchyard_roles.exchange.tensor_connection import Peer
from torchyard_roles.strategies.parameter_server import messages, remote_optimizer
from torchyard_roles.strategies.parameter_server import remote_optimizer as served_optimizer
from torchyard_roles.strategies.parameter_server.gradient_push import Gradients, Marks, Untouched
from torchyard_roles.strategies.parameter_server.parameter_changes import InstalledParameters, checksum
from torchyard_roles.strategies.parameter_server.server_group import Servers, on_all
from torchyard_roles.strategies.parameter_server.server_link import Completion, Exchange, ServerLink

LAST_CHECK_S = 30.0
"""How long a group's first worker waits for the others at its end, to compare parameters with theirs."""
MEET_S = 120.0
"""For all servers to be there: each has torch to import first."""


class WorkerPair:
    """One worker, with a link to each server. `number` counts the pairs. `overlaps`: whether an exchange goes on while
    the next step is computed; by default with several asynchronous groups."""

    def __init__(
        self,
        environment: Environment,
        number: int,
        *,
        chunk_bytes: int | None = None,
        overlaps: bool | None = None,
    ) -> None:
        options = environment.options
        self._environment = environment
        self._number = number
        self._is_chief = environment.rank == 0
        """Rank 0 of group 0."""
        self._leads_group = environment.group_rank == 0
        self._asynchronous = environment.strategy == "downpour"
        self._has_others = self._asynchronous and environment.groups > 1
        """Whether other groups push to the same servers."""
        self._overlaps = self._has_others if overlaps is None else overlaps
        self._push_every = options.push_every if self._asynchronous else 1
        self._pull_every = options.pull_every if self._asynchronous else 1
        self._chunk_bytes = chunk_bytes
        self._links: list[ServerLink] = []
        self.parameters: list[torch.nn.Parameter] = []
        self._arrived_rows: dict[str, torch.Tensor] = {}
        """Of each row, by what it is called on the wire, what the servers sent last."""
        self._has_constants = False
        self._sent_buffers: torch.Tensor | None = None
        """What the servers have of this group's first worker."""
        self._kept: set[str] = set()
        """Servers that went on as they were when this group was started again."""
        self._added: list[Entry] = []
        """Parameters that the optimizer was given, or that were unfrozen, since distribute()."""
        self.steps = 0
        self._told = ""  # the options that servers were told last
        self._is_restored = False
        self._flushed = 0
        """The last step that flush() was called for."""
        self._exchange: Completion | None = None
        self._pulls = False
        self._held: Exchange | None = None
        """Between clip_gradients() and the optimizer's step: what the servers have summed already."""
        self._factor = 1.0
        self._clip: float | None = None
        """Between clip_values() and the optimizer's step."""
        self._clipped: Marks = {}
        """The gradients that either was called for."""
        self._renews = False
        """Whether the servers have taken changes of the script's with what they hold."""
        self._is_void = False
        """Whether this worker's own part of it was not finite."""
        self._waited = 0.0
        self._clipped_s = 0.0
        """Of this step, spent in clip_gradients()."""
        self._skipped = 0
        """Steps whose gradients of this worker's own counted for nothing."""
        self._stepped_at = 0.0
        self.times = {"compute_s": 0.0, "exchange_s": 0.0, "wait_s": 0.0}
        """Of the last step."""
        self.spent = {"exchange_s": 0.0, "wait_s": 0.0}
        """Of all steps."""
        self._local_step: Callable[[], None] = lambda: None
        self._untouched: Untouched | None = None
        """Where gradients are not averages before the step."""

    def connect(self) -> None:
        """To all servers. Raises PeerLost where one does not come."""
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
            peer = Peer(server.name, server.address, server.port)
            self._links.append(ServerLink(peer, environment.key, introduction, outlives=self._asynchronous))
        on_all(self._links, lambda link: link.connect(MEET_S))

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, elsewhere: Callable[[], set[int]]
    ) -> None:
        """Begin on the servers, or join what the chief has begun there, and take over the optimizer's step().

        `elsewhere` gives the identities of the other pairs' parameters, of which the model may have some. Raises
        UsageProblem where the servers cannot serve this pair.
        """
        name = remote_optimizer.class_name(optimizer)
        layout, parameters = Layout.of(model, optimizer, name in remote_optimizer.SHAPED)
        self._elsewhere = elsewhere
        self._check_apart(layout.entries, parameters)
        self._model, self._optimizer = model, optimizer
        self._held_by = _held_by(optimizer)
        self._layout, self.parameters = layout, parameters
        self._names = [entry.name for entry in self._layout.entries]
        self._installed = InstalledParameters(self._names, self.parameters)
        if optimizer.state and self._is_chief:
            print("torchyard: the servers begin with no state of the optimizer from earlier steps.", flush=True)
        self._buffers = PackedTensors(model.buffers())
        known = {id(parameter) for parameter in self.parameters} | elsewhere()
        self._constants = PackedTensors(parameter for parameter in model.parameters() if id(parameter) not in known)
        self._told = remote_optimizer.as_text(remote_optimizer.arguments(optimizer))
        chunk_bytes = self._chunk_bytes
        if chunk_bytes is None and self._overlaps:
            chunk_bytes = self._layout.chunk_bytes_behind_computing(len(self._links))
        self._description = messages.text_of(
            {
                "layout": self._layout.fingerprint(),
                "options": json.loads(self._told),
                "optimizer": name,
                "chunk_bytes": chunk_bytes,
                "rows": {"buffers": self._buffers.bytes, "constants": self._constants.bytes},
            }
        )
        chunks = self._layout.chunks(len(self._links), chunk_bytes)
        self._gradients = Gradients(
            self._environment.name,
            optimizer,
            self._names,
            self.parameters,
            skips=self._environment.options.on_nan == "skip",
            sums=self._push_every > 1,
        )
        if self._environment.group_size > 1:
            self._untouched = Untouched(optimizer)
            self._untouched.watch(self._names, self.parameters)
        self._staging = Staging(self.parameters, in_place=not self._overlaps)
        self._servers = Servers(self._environment.name, self._links, self._staging, self._reenter)
        for number, link in enumerate(self._links):
            link.serves([chunk for chunk in chunks if chunk.shard == number])
        # The first server that has chunks hands round what no server steps.
        self._row_link = next(link for link in self._links if link.chunks)
        self._row_link.rows = {
            name: (row.bytes, partial(self._arrived_rows.__setitem__, name))
            for name, row in self._rows().items()
            if row.bytes
        }
        on_all(self._links, self._enter)
        self.pull()
        self._has_constants = True
        self._local_step = served_optimizer.hand_over(optimizer, lambda _: self._step())
        self._stepped_at = time.monotonic()

    def _check_apart(self, entries: Sequence[Entry], parameters: Sequence[torch.nn.Parameter]) -> None:
        elsewhere = self._elsewhere()
        for entry, parameter in zip(entries, parameters):
            if id(parameter) in elsewhere:
                raise UsageProblem(
                    f"Two optimizers train the parameter {entry.name}, but the servers of "
                    f"{self._environment.strategy} have one for each parameter.",
                    "Give each parameter to one optimizer, or set strategy.kind to all_reduce.",
                )

    def _enter(self, link: ServerLink) -> None:
        """Take part in what the server does: the chief begins, the others wait for that."""
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
            for name, row in self._rows().items():
                if row.bytes:
                    link.tell({"op": name}, row.packed())

    def _rows(self) -> dict[str, PackedTensors]:
        """What no server steps, by what it is called on the wire."""
        return {"buffers": self._buffers, "constants": self._constants}

    # A step

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
        """A step's exchange. Seconds that servers waited in it."""
        self._check_untouched()
        clip = self._taken_clip()
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
        if not pulls and not void:
            self._local_step()
            self._note()
        return waited

    def _check_untouched(self, *, clips: bool = False) -> None:
        if self._untouched is not None:
            self._untouched.check(self._installed.changed, may_be_unscaled=clips)

    def _end_last(self) -> float:
        """With a step's gradients at hand: end the exchange of the step before. Seconds that servers waited in it."""
        for link in self._links:
            link.note_gradients()
        waited = self._finish()
        held_by = _held_by(self._optimizer)
        if held_by != self._held_by:
            self._add_parameters()
            self._held_by = held_by
        return waited

    # What the optimizer is given later

    def _add_parameters(self) -> None:
        """Of parameters that were unfrozen or given to the optimizer since the last step, all workers alike, the first
        one of a group brings its values to the servers, unless another group's has. Raises UsageProblem for a parameter
        that the optimizer does not have any more."""
        group_of = {
            id(each): number for number, group in enumerate(self._optimizer.param_groups) for each in group["params"]
        }
        for entry, parameter in zip(self._layout.entries, self.parameters):
            if group_of.get(id(parameter)) != entry.group:
                raise UsageProblem(
                    f"The parameter {entry.name} is no longer in group {entry.group} of the optimizer, where it was.",
                    "Under parameter servers freeze it with requires_grad_(False) instead; groups may only be added.",
                )
        whole = self._layout.whole_parameters
        layout, parameters = Layout.of(self._model, self._optimizer, whole)
        known = {id(parameter) for parameter in self.parameters}
        new = [(entry, each) for entry, each in zip(layout.entries, parameters) if id(each) not in known]
        if not new:
            return
        self._check_apart([entry for entry, _ in new], [parameter for _, parameter in new])
        added: list[list[Chunk]] = [[] for _ in self._links]
        for number, (entry, _) in enumerate(new, len(self.parameters)):
            for chunk in added_chunks(entry, len(self._links), self._chunk_bytes, whole=whole):
                pieces = tuple(piece._replace(parameter=number) for piece in chunk.pieces)
                added[chunk.shard].append(chunk._replace(pieces=pieces))
        self._layout = Layout((*self._layout.entries, *(entry for entry, _ in new)), whole)
        self._names += [entry.name for entry, _ in new]
        self.parameters += [parameter for _, parameter in new]
        self._added += [entry for entry, _ in new]
        if self._untouched is not None:
            self._untouched.watch(self._names, self.parameters)
        for link, chunks in zip(self._links, added):
            link.serves([*link.chunks, *chunks])
        on_all(self._links, lambda link: self._add(link, [entry for entry, _ in new], compares=True))
        self._note()

    def _add(self, link: ServerLink, entries: list[Entry], *, compares: bool) -> None:
        """Tell a server of parameters that were added. `compares`: they have not been trained yet, and so are alike on
        all workers."""
        layout = Layout(tuple(entries), self._layout.whole_parameters)
        chunks = {chunk.number: chunk for chunk in link.chunks if chunk.number >= ADDED}
        names = {entry.name for entry in entries} if compares else set()
        told = {
            "layout": layout.fingerprint(),
            "options": remote_optimizer.arguments(self._optimizer),
            "checksums": {
                number: checksum(self._staging.values(chunk))
                for number, chunk in chunks.items()
                if self._names[chunk.pieces[0].parameter] in names
            },
        }
        numbers = link.command({"op": "add"}, messages.text_of(told))["assign"]
        for number in numbers:
            link.tell({"op": "assign", "chunk": number}, self._staging.values(chunks[number]))
        if numbers:
            link.command({"op": "added", "chunks": numbers})

    # What the script changes by itself

    def _changes(self) -> dict[int, int]:
        """Checksums of the chunks that the script has changed since the last step, by number. Raises UsageProblem where
        the servers cannot take such a change.

        All workers of a synchronous group make it alike: its first worker brings the new values to the servers before
        its push, which no round ends without, and the checksums in all pushes of the round say whether it was alike.
        """
        changed = set(self._installed.changed())
        if not changed:
            return {}
        refused = self._refuses_changes()
        if refused:
            raise UsageProblem(
                f"The script has changed the parameter {self._names[min(changed)]} outside optimizer.step(), and "
                f"{refused}",
                "Train with sandblaster without backup workers, or with all_reduce.",
            )
        chunks = [chunk for link in self._links for chunk in link.chunks]
        return {
            chunk.number: checksum(self._staging.values(chunk))
            for chunk in chunks
            if any(piece.parameter in changed for piece in chunk.pieces)
        }

    def _refuses_changes(self) -> str:
        """Half a sentence; empty where they can be taken."""
        if self._has_others:
            return "the servers have updates of other worker groups in it, which would be lost with that."
        if self._pull_every > 1 or self._push_every > 1:
            return "servers that are not asked in every step (push_every, pull_every) would undo that."
        if not self._asynchronous and self._environment.options.backup_workers:
            return "a step that does not wait for all workers (backup_workers) would undo that."
        return ""

    def flush(self, steps: int) -> None:
        """Push what is held back since the last push, where this pair has taken `steps` steps by then. All members of a
        group do, be it nothing: a round is the mean of one push of each."""
        if self._push_every == 1 or steps <= self._flushed or steps % self._push_every == 0:
            return
        self._flushed = steps
        self._finish()
        if self._gradients.holds_back or self._environment.group_size > 1:
            self._begin(self._gradients.take(), pushes=True, pulls=False, void=False)
            self._finish()

    def hold(self) -> None:
        """Push the gradients for the servers to sum, and begin to wait for their norm. Raises UsageProblem where what
        was pushed before has not been stepped with."""
        self._check_not_held()
        self._installed.check()
        self._check_untouched(clips=True)
        clip = self._taken_clip()
        changed = self._changes()
        self._end_last()
        self._is_void = not self._gradients.are_finite()  # what becomes of that is the step's: it knows of a GradScaler
        gradients = self._gradients.now(void=self._is_void)
        self._begin(gradients, pushes=True, pulls=True, void=self._is_void, hold=True, changed=changed, clip=clip)
        self._clipped = self._gradients.marks()
        self._renews = bool(changed)

    def _check_not_held(self) -> None:
        if self._held is not None:
            raise UsageProblem(
                "clip_gradients() was called a second time before the optimizer's step.",
                "Call it once, right before optimizer.step(); of several optimizers, name the one that steps next: "
                "clip_gradients(1.0, optimizer=…).",
            )

    def square(self) -> float:
        """The squared norm of what hold() has pushed: of the mean over the group."""
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
        """What is held is multiplied by `factor` in the step. `took_s`: seconds of clip_gradients()."""
        self._factor = factor
        self._clipped_s = took_s

    @property
    def is_void(self) -> bool:
        """Whether this worker's own part of what is held is not finite."""
        return self._held is not None and self._is_void

    def clip_values(self, value: float) -> None:
        """The servers bring each element of the mean gradient to between -`value` and `value` before the next step."""
        self._check_not_held()
        if self._clip is not None and self._gradients.are_marked(self._clipped):
            value = min(value, self._clip)
        self._clip = value
        self._clipped = self._gradients.marks()

    def allow_clipped(self) -> None:
        """This worker's own gradients were clipped here."""
        if self._untouched is not None:
            self._untouched.allow()

    def _taken_clip(self) -> float | None:
        """What the servers are to clip this step's gradients by: those that clip_values() was called for. Raises
        UsageProblem where others were added to them."""
        clip, self._clip = self._clip, None
        if clip is None:
            return None
        marks, self._clipped = self._clipped, {}
        if self._gradients.are_marked(marks):
            self._gradients.check_unscaled()
            return clip
        if self._gradients.are_others(marks):
            return None
        raise self._changed_since_clipped()

    def _changed_since_clipped(self) -> UsageProblem:
        return UsageProblem(
            "Gradients were changed between clip_gradients() and optimizer.step().",
            "Call it right before the step; of several optimizers, name the one that steps next: "
            "clip_gradients(1.0, optimizer=…).",
        )

    def _step_held(self) -> float:
        """Let the servers step with what they have summed."""
        self._held = None
        marks, self._clipped = self._clipped, {}
        if not self._gradients.are_marked(marks):
            raise self._changed_since_clipped()
        self._gradients.check_unscaled()
        if self._is_void:
            self._gradients.prepare_void(self.steps)  # which says where
        changed = self._installed.changed()
        if changed:
            raise UsageProblem(
                f"The script has changed the parameter {self._names[changed[0]]} between clip_gradients() and "
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
        """Set an exchange going with all servers. `changed` is what _changes() has found before it."""
        if pushes:
            self._tell_news()
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
        """Wait for the exchange under way, if any, and install what it brought. Seconds that servers waited in it."""
        if self._exchange is None:
            return 0.0
        completion, self._exchange = self._exchange, None
        self._servers.finish(completion, pulls=self._pulls)
        self._install_rows()
        if self._pulls or completion.lost:
            self._note()
        return max((link.figures.waited for link in self._links), default=0.0) if not self._overlaps else 0.0

    def pull(self) -> None:
        """The servers' newest, now."""
        self._staging.fence()
        self._servers.pull()
        self._install_rows()
        self._note()

    def _note(self) -> None:
        """What the parameters hold now has come from the servers."""
        self._installed.note()
        if self._untouched is not None:
            self._untouched.installed()

    def _install_rows(self) -> None:
        """Between two steps, as parameters are: a link's thread would change them in the midst of one.

        Frozen parameters come once. A server that has come back brings them again, as old as they were: other pairs may
        train some of them meanwhile.

        Buffers that have not changed are not sent again. So what came last is what all but the group's first worker
        have after each step; the first worker's own buffers are what the others get.
        """
        for name, row in self._rows().items():
            is_source = name == "constants" or self._leads_group
            arrived = self._arrived_rows.pop(name, None) if is_source else self._arrived_rows.get(name)
            if arrived is not None and not (name == "constants" and self._has_constants):
                row.unpack(arrived)

    def _tell_news(self) -> None:
        """What has changed since the last push: the optimizer's options, and the buffers of a group's first."""
        options = remote_optimizer.as_text(remote_optimizer.arguments(self._optimizer))
        changed, self._told = options != self._told, options
        buffers = self._buffers.packed() if self._leads_group and self._buffers.bytes else None
        for link in self._links:
            with suppress(PeerLost):  # the exchange that follows sees it as well, and raises it or waits for the server
                if changed:
                    link.tell({"op": "options"}, messages.text_of(json.loads(options)))
                if link is self._row_link and buffers is not None and not _equal(buffers, self._sent_buffers):
                    link.tell({"op": "buffers", "with_push": True}, buffers)
                    self._sent_buffers = buffers

    def _reenter(self, link: ServerLink) -> None:
        """Only a server that came back empty is begun anew, with the parameters that the chief has."""
        description = self._description
        if link is self._row_link:
            self._sent_buffers = None
        if self._is_chief and not link.is_ready:
            self._enter(link)
        else:
            link.command({"op": "join"}, description)
        options = messages.text_of(json.loads(self._told))
        link.tell({"op": "options"}, options)
        if self._added:
            self._add(link, self._added, compares=False)

    # Checkpoints and the end

    def save(self, folder: Path, step: int) -> None:
        changed = self._changes()
        for link in self._links:
            for chunk in link.chunks:
                if chunk.number in changed:
                    link.tell({"op": "set", "chunk": chunk.number}, self._staging.values(chunk))
        self._finish()
        kept = [checkpoint.step for checkpoint in files.complete(folder)[: files.KEPT]]
        on_all(self._links, lambda link: link.command({"op": "save", "step": step, "kept": kept}))
        if self._asynchronous:
            self.pull()

    def restore(self, step: int) -> None:
        """The servers' parts of that checkpoint; once."""
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
        """The last exchange, with what was held back."""
        changed = self._installed.changed()
        if changed and not self.steps and (self._has_others or self._environment.group_size > 1):
            raise UsageProblem(
                f"The parameter {self._names[changed[0]]} was changed, but the optimizer that distribute() was given "
                "has never stepped: each worker has trained alone.",
                "Update by that optimizer's step(), or set strategy.kind to all_reduce.",
            )
        self._compare_at_end()
        if changed and self.ends_last:
            print(
                f"torchyard: the parameter {self._names[changed[0]]} was changed after the last step, and is replaced "
                "by the servers' own.",
                flush=True,
            )
        self._finish()
        self.flush(self.steps)

    def wait_for_other_groups(self, *, says: bool) -> None:
        """As Servers.wait_for_other_groups()."""
        self._servers.wait_for_other_groups(says=says)

    def _compare_at_end(self) -> None:
        """What a script changes after its last step reaches no server: the workers of a synchronous group must do so
        alike. The first one compares, and does not wait long."""
        environment = self._environment
        alone = environment.group_size == 1 or self._has_others or environment.options.backup_workers > 0
        if alone or not environment.store or not environment.key:
            return
        own = str([checksum(each.detach().cpu().contiguous()) for each in self.parameters]).encode()
        key = f"finish/{environment.gang}/{environment.generation}/{self._number}"
        store = JoinStore.of(environment)
        try:
            if environment.group_rank > 0:
                store.set(f"{key}/{environment.group_rank}", hashlib.sha256(own).digest())
                return
            deadline = time.monotonic() + LAST_CHECK_S
            for rank in range(1, environment.group_size):
                theirs = store.get(f"{key}/{rank}", max(0.0, deadline - time.monotonic()))
                if theirs != hashlib.sha256(own).digest():
                    raise UsageProblem(
                        "The workers end with different parameters: something other than the optimizer that "
                        "distribute() was given has changed them after its last step, and not alike.",
                        "Give every optimizer to distribute(), or set strategy.kind to all_reduce.",
                    )
        except (StoreTimeout, StoreLost):
            print("torchyard: the workers' parameters were not compared at the end: one did not come.", flush=True)
        finally:
            store.close()

    def leave(self) -> None:
        try:
            self._finish()
        except RolesError as error:
            print(f"torchyard: {error}", flush=True)
        for link in self._links:
            link.close(goodbye=True)

    def abandon(self) -> None:
        """The other workers hear of this one's end from the servers, sooner maybe than of what has ended it: so they
        hear that instead."""
        servers = {link.peer.name for link in self._links}
        lost = [link.lost for link in self._links if link.lost is not None]
        cause = min(lost, key=lambda error: error.name not in servers, default=None)
        for link in self._links:
            link.close(goodbye=False, cause=cause)


def _equal(row: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and torch.equal(row, other)


def _held_by(optimizer: torch.optim.Optimizer) -> list[list[tuple[int, bool]]]:
    """Which parameters it has, a list a group, and whether they are trained."""
    return [[(id(each), each.requires_grad) for each in group["params"]] for group in optimizer.param_groups]
