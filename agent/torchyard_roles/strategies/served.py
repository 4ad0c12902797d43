"""Training through parameter servers: sandblaster (synchronous) and downpour (asynchronous between worker groups).

Each server holds a shard of the parameters and its optimizer's state. A worker pushes its gradients chunk by chunk,
the server takes their mean over the worker's group, steps, and sends the new parameters back: M bytes each way and
step, in max(M/B, N·M/(S·B)) seconds, since all chunks are under way at once. Sandblaster is downpour with one group
that pushes and pulls in each step; then the exchange is part of the step. With several groups it is overlapped with
the next step's computing, and its parameters are installed when that is done (Dean et al. 2012, Large Scale
Distributed Deep Networks).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from torchyard_roles.checkpoints import files
from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem, PeerLost, RolesError, UsageProblem
from torchyard_roles.exchange.wire import Peer
from torchyard_roles.layout import Layout
from torchyard_roles.serving import messages, optimizers
from torchyard_roles.serving.exchanges import Completion, Exchange
from torchyard_roles.serving.link import ServerLink
from torchyard_roles.serving.servers import Servers, on_all
from torchyard_roles.serving.staging import Row, Staging
from torchyard_roles.sharding import Share
from torchyard_roles.strategies import served_optimizer
from torchyard_roles.strategies.served_gradients import Gradients
from torchyard_roles.strategies.strategy import Strategy

MEET_S = 120.0
"""For all servers to be there: each has torch to import first."""


class Served(Strategy):
    """One worker, with a link to each server."""

    def __init__(self, environment: Environment, *, chunk_bytes: int | None = None) -> None:
        options = environment.options
        self._environment = environment
        self._is_chief = environment.rank == 0
        self._leads_group = environment.group_rank == 0
        self._asynchronous = environment.strategy == "downpour"
        self._overlaps = self._asynchronous and environment.groups > 1
        self._push_every = options.push_every if self._asynchronous else 1
        self._pull_every = options.pull_every if self._asynchronous else 1
        self._chunk_bytes = chunk_bytes
        self._links: list[ServerLink] = []
        self._arrived_rows: dict[str, torch.Tensor] = {}
        self._kept: set[str] = set()
        """Servers that went on as they were when this group was started again."""
        self._steps = 0
        self._told = ""  # the options that servers were told last
        self._flushed = 0
        """The last step that flush() was called for."""
        self._exchange: Completion | None = None
        self._pulls = False
        self._held: Exchange | None = None
        """Between clip_gradients() and the optimizer's step: what the servers have summed already."""
        self._factor: float | None = None
        self._is_void = False
        """Whether this worker's own part of it was not finite."""
        self._waited = 0.0
        self._clipped_s = 0.0
        """Of this step, spent in clip_gradients()."""
        self._skipped = 0
        """Steps whose gradients of this worker's own counted for nothing."""
        self._stepped_at = 0.0
        self._times = {"compute_s": 0.0, "exchange_s": 0.0, "wait_s": 0.0}
        self._local_step: Callable[[], None] = lambda: None

    def start(self, device: torch.device) -> None:
        servers = self._environment.peers.ps
        if not servers:
            raise EnvironmentProblem(
                f"The strategy {self._environment.strategy} needs parameter servers, but none take part.",
                "Add a pool of role ps to the topology.",
            )
        if self._environment.options.server_groups > 1:
            raise EnvironmentProblem(
                f"strategy.server_groups is {self._environment.options.server_groups}, but the servers of "
                f"{self._environment.strategy} are one group: they share the parameters among themselves.",
                "Set it to 1, or leave it out.",
            )
        environment = self._environment
        for number, server in enumerate(servers):
            introduction = {
                "name": environment.name,
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

    def share(self) -> Share:
        return Share(self._environment.rank or 0, self._environment.world_size)

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        name = optimizers.class_name(optimizer)
        self._optimizer = optimizer
        self._layout, self._parameters = Layout.of(model, optimizer, name in optimizers.SHAPED)
        if optimizer.state and self._is_chief:
            print("torchyard: the servers begin with no state of the optimizer from earlier steps.", flush=True)
        self._buffers = Row(model.buffers())
        known = {id(parameter) for parameter in self._parameters}
        self._constants = Row(parameter for parameter in model.parameters() if id(parameter) not in known)
        self._told = optimizers.as_text(optimizers.arguments(optimizer))
        self._description = messages.text_of(
            {
                "layout": self._layout.fingerprint(),
                "options": json.loads(self._told),
                "optimizer": name,
                "chunk_bytes": self._chunk_bytes,
                "rows": {"buffers": self._buffers.bytes, "constants": self._constants.bytes},
            }
        )
        chunks = self._layout.chunks(len(self._links), self._chunk_bytes)
        self._gradients = Gradients(
            self._environment.name,
            optimizer,
            [entry.name for entry in self._layout.entries],
            self._parameters,
            skips=self._environment.options.on_nan == "skip",
            sums=self._push_every > 1,
        )
        self._staging = Staging(self._parameters, chunks, in_place=not self._overlaps)
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
        self._pull()
        self._local_step = served_optimizer.hand_over(optimizer, lambda _: self._step())
        self._stepped_at = time.monotonic()
        return model, optimizer

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
            link.tell({"op": "assign", "chunk": chunk.number}, self._staging.values(chunk))
        if link is self._row_link:
            for name, row in self._rows().items():
                if row.bytes:
                    link.tell({"op": name}, row.packed())

    def _rows(self) -> dict[str, Row]:
        """What no server steps, by what it is called on the wire."""
        return {"buffers": self._buffers, "constants": self._constants}

    # A step

    def _step(self) -> None:
        began = time.monotonic()
        self._times["compute_s"] = began - self._stepped_at - self._clipped_s
        self._steps += 1
        waited = self._step_held() if self._held is not None else self._push_and_pull()
        self._stepped_at = time.monotonic()
        exchanged = self._stepped_at - began + self._clipped_s
        self._clipped_s = 0.0
        self._times["wait_s"] = min(waited, exchanged)
        self._times["exchange_s"] = exchanged - self._times["wait_s"]

    def _push_and_pull(self) -> float:
        """A step's exchange. Seconds that servers waited in it."""
        void = self._gradients.prepare(self._steps)
        self._skipped += void
        waited = self._finish()
        pushes = self._steps % self._push_every == 0
        pulls = self._steps % self._pull_every == 0
        if self._push_every > 1:
            self._gradients.add(void=void)
        if pushes or pulls:
            single = self._push_every == 1
            gradients = self._gradients.now(void=void) if single else self._gradients.take() if pushes else []
            self._begin(gradients, pushes=pushes, pulls=pulls, void=void and single)
            if not self._overlaps:
                waited = self._finish()
        if not pulls and not void:
            self._local_step()
        return waited

    def flush(self, step: int) -> None:
        """Push what is held back since the last push. All members of a group do, be it nothing: a round is the mean of
        one push of each."""
        if self._push_every == 1 or step <= self._flushed or step % self._push_every == 0:
            return
        self._flushed = step
        self._finish()
        if self._gradients.holds_back or self._environment.group_size > 1:
            self._begin(self._gradients.take(), pushes=True, pulls=False, void=False)
            self._finish()

    def clip_gradients(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        """The servers sum the group's gradients and tell the norms of their shards; each worker makes the same factor
        of them, summed in double precision and in the servers' order, and the servers step with the first one that
        comes. So the pushes are over before the first new parameters travel: M/B seconds more than without clipping.

        Where not every step is pushed and pulled, each worker clips its own gradients.
        """
        if self._push_every > 1 or self._pull_every > 1:
            return super().clip_gradients(parameters, max_norm)
        if self._held is not None:
            raise UsageProblem(
                "clip_gradients() was called a second time before the optimizer's step.",
                "Call it once, right before optimizer.step().",
            )
        began = time.monotonic()
        self._is_void = not self._gradients.are_finite()  # what becomes of that is the step's: it knows of a GradScaler
        self._finish()
        self._begin(self._gradients.now(void=self._is_void), pushes=True, pulls=True, void=self._is_void, hold=True)
        completion = self._exchange
        self._exchange = None
        assert completion is not None
        completion.wait()
        # Who misses a shard's norm, because a round did not wait for it, leaves the factor to those who have them all.
        is_late = any(link.was_late for link in self._links)
        norm = math.sqrt(sum(link.square for link in self._links))
        for link in completion.lost:
            self._servers.recover(link)
        self._waited = max((link.figures.waited for link in self._links), default=0.0)
        # As torch.nn.utils.clip_grad_norm_ has it.
        self._factor = None if is_late else min(1.0, max_norm / (norm + 1e-6))
        self._clipped_s = time.monotonic() - began
        return torch.tensor(math.nan if self._is_void or is_late else norm)

    def _step_held(self) -> float:
        """Let the servers step with what they have summed."""
        self._held = None
        self._gradients.check_unscaled()
        if self._is_void:
            self._gradients.prepare_void(self._steps)  # which says where
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
    ) -> None:
        """Set an exchange going with all servers."""
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
        return max((link.figures.waited for link in self._links), default=0.0) if not self._overlaps else 0.0

    def _pull(self) -> None:
        """The servers' newest, now."""
        self._staging.fence()
        self._servers.pull()
        self._install_rows()

    def _install_rows(self) -> None:
        """Between two steps, as parameters are: a link's thread would change them in the midst of one."""
        for name, row in self._rows().items():
            arrived = self._arrived_rows.pop(name, None)
            if arrived is not None:
                row.unpack(arrived)

    def _tell_news(self) -> None:
        """What has changed since the last push: the optimizer's options, and the buffers of a group's first."""
        options = optimizers.as_text(optimizers.arguments(self._optimizer))
        changed, self._told = options != self._told, options
        for link in self._links:
            with suppress(PeerLost):  # the exchange that follows sees it as well, and raises it or waits for the server
                if changed:
                    link.tell({"op": "options"}, messages.text_of(json.loads(options)))
                if link is self._row_link and self._leads_group and self._buffers.bytes:
                    link.tell({"op": "buffers", "with_push": True}, self._buffers.packed())

    def _reenter(self, link: ServerLink) -> None:
        """Only a server that came back empty is begun anew, with the parameters that the chief has."""
        description = self._description
        if self._is_chief and not link.is_ready:
            self._enter(link)
        else:
            link.command({"op": "join"}, description)
        options = messages.text_of(json.loads(self._told))
        link.tell({"op": "options"}, options)

    # Checkpoints and the end

    def save(self, folder: Path, step: int) -> None:
        self._finish()
        kept = [checkpoint.step for checkpoint in files.complete(folder)[: files.KEPT]]
        on_all(self._links, lambda link: link.command({"op": "save", "step": step, "kept": kept}))
        if self._asynchronous:
            self._pull()

    def restore(self, folder: Path, step: int) -> None:
        self._steps = self._flushed = step
        if self._environment.group == 0:
            on_all(self._links, lambda link: self._restore(link, step))
        self._pull()

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
            **self._times,
            "staleness": float(max((one.staleness for one in figures), default=0)),
            "dropped": float(max((one.dropped + one.lost for one in figures), default=0)),
            "skipped": float(self._skipped),
        }

    @property
    def ends_last(self) -> bool:
        return self._is_chief and (self._overlaps or self._push_every > 1 or self._pull_every > 1)

    def finish(self) -> bool:
        """The last exchange, with what was held back. In asynchronous training the chief waits until all other groups
        have ended, and takes the parameters that are the sum of everything; others leave."""
        self._finish()
        self.flush(self._steps)
        if not self.ends_last:
            return False
        self._servers.wait_for_other_groups()
        self._pull()
        return True

    def leave(self) -> None:
        try:
            self._finish()
        except RolesError as error:
            print(f"torchyard: {error}", flush=True)
        for link in self._links:
            link.close(goodbye=True)

    def abandon(self) -> None:
        for link in self._links:
            link.close(goodbye=False)
