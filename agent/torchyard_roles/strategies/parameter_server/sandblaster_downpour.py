"""The strategies with parameter servers: sandblaster (synchronous) and downpour (asynchronous between worker groups).

Each server holds a shard of the parameters and of the optimizer's state. A worker pushes its gradients chunk by chunk.
The server averages them over the worker's group, updates the parameters, and sends the new parameters back. With M
bytes of gradients, N workers, S servers and links of B bytes/s, an exchange takes max(M/B, N·M/(S·B)) seconds.

Sandblaster is downpour with one group that pushes and pulls in each step, so that the exchange is part of the step. If
there are several groups, the exchange overlaps with the next step, and the new parameters are installed at the end of
that step (Dean et al. 2012, Large Scale Distributed Deep Networks). If N groups push in turn, the staleness of a
gradient is 2N−1 versions. Without the overlap, it would be N−1 versions. During training, parameters are installed only
in step() and clip_gradients(), and when a checkpoint is saved, because autograd rejects in-place changes between two
backward passes.

Each pair of a model and an optimizer is exchanged separately, in the step() of its optimizer.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import torch

from torchyard_roles.data_loader import DataShare
from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem, UsageProblem
from torchyard_roles.strategies.parameter_server.server_group import on_all
from torchyard_roles.strategies.parameter_server.worker_pair import WorkerPair
from torchyard_roles.strategies.strategy import Strategy

REMEMBERED = 1000
"""Number of past steps of the run for which the step counts of all pairs are kept, for use by flush()."""


class ParameterServerStrategy(Strategy):
    """The strategies sandblaster and downpour on one worker, with a WorkerPair for each model and optimizer.

    Args:
        chunk_bytes, overlaps, steps_between_pulls: Passed to WorkerPair.
    """

    needs_optimizer = "the parameter servers take the optimizer's steps"

    def __init__(
        self,
        environment: Environment,
        *,
        chunk_bytes: int | None = None,
        overlaps: bool | None = None,
        steps_between_pulls: bool = True,
    ) -> None:
        self._environment = environment
        self._chunk_bytes = chunk_bytes
        self._overlaps = overlaps
        self._steps_between_pulls = steps_between_pulls
        self.pairs: list[WorkerPair] = []
        """The pairs in the order of distribute(). start() connects the first one."""
        self._boundaries: deque[tuple[int, list[int]]] = deque(maxlen=REMEMBERED)
        """Recent steps of the run, with the number of steps of each pair at that time."""
        self._spent = {"exchange_s": 0.0, "wait_s": 0.0}
        """Times in seconds, summed over all pairs and over all steps of the run before the current step."""

    def start(self, device: torch.device) -> None:
        environment = self._environment
        if not environment.peers.ps:
            raise EnvironmentProblem(
                f"The strategy {environment.strategy} needs parameter servers, but none take part.",
                "Add a pool of role ps to the topology.",
            )
        if environment.options.server_groups > 1:
            raise EnvironmentProblem(
                f"strategy.server_groups is {environment.options.server_groups}, but the servers of "
                f"{environment.strategy} are one group: they share the parameters among themselves.",
                "Set it to 1, or leave it out.",
            )
        self._connect_next()

    def _connect_next(self) -> WorkerPair:
        pair = WorkerPair(
            self._environment,
            len(self.pairs),
            chunk_bytes=self._chunk_bytes,
            overlaps=self._overlaps,
            steps_between_pulls=self._steps_between_pulls,
        )
        self.pairs.append(pair)
        pair.connect()
        return pair

    def share(self) -> DataShare:
        return DataShare(self._environment.rank or 0, self._environment.world_size)

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        pair = self.pairs[-1]
        if pair.parameters:
            pair = self._connect_next()
        pair.distribute(model, optimizer, lambda: self._trained_elsewhere(pair))
        return model, optimizer

    def _trained_elsewhere(self, pair: WorkerPair) -> set[int]:
        return {id(parameter) for other in self.pairs if other is not pair for parameter in other.parameters}

    @property
    def _distributed(self) -> list[WorkerPair]:
        return [pair for pair in self.pairs if pair.parameters]

    def at_boundary(self, step: int) -> None:
        self._boundaries.append((step, [pair.steps for pair in self.pairs]))
        self._spent = self._all_spent()

    def clip_gradients(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        """Makes the servers clip the mean gradients of the group by their norm.

        The servers sum the gradients and report the norms of their shards. All workers compute the same factor from
        these norms, in double precision and in the order of servers, and each server uses the first factor that it
        receives. All pushes end before the first pull, so clipping takes M/B seconds for M bytes of gradients and links
        of B bytes/s.

        If a pair has any of `parameters`, all parameters of the pair are clipped. If some steps are not pushed or
        pulled, each worker clips its own gradients. Raises UsageProblem if there are backup workers, because the norm
        of a round without some members would not be known to all members.
        """
        options = self._environment.options
        if self._environment.strategy == "sandblaster" and options.backup_workers:
            raise UsageProblem(
                "clip_gradients() cannot be used with strategy.backup_workers: a step that does not wait for all "
                "workers has no norm that all of them know.",
                "Set backup_workers to 0, or clip each worker's own gradients with torch.nn.utils.clip_grad_norm_.",
            )
        pairs = self._pairs_with(parameters)
        if not self._exchanges_each_step:
            norm = super().clip_gradients(parameters, max_norm)
            for pair in pairs:
                pair.allow_clipped()
            return norm
        began = time.monotonic()
        for pair in pairs:
            pair.hold()
        norm = math.sqrt(sum(pair.square() for pair in pairs))
        # torch.nn.utils.clip_grad_norm_ uses the same small constant.
        factor = min(1.0, max_norm / (norm + 1e-6))
        took_s = time.monotonic() - began
        for pair in pairs:
            pair.scale(factor, took_s=took_s / len(pairs))
        is_void = any(pair.is_void for pair in pairs)
        return torch.tensor(math.nan if is_void else norm, dtype=torch.float32, device="cpu")

    def clip_values(self, parameters: Sequence[torch.Tensor], value: float) -> None:
        """Makes the servers clip the elements of the mean gradient.

        In a group of one worker, or if some steps are not pushed or pulled, the local gradients are clipped instead.
        """
        pairs = self._pairs_with(parameters)
        if self._environment.group_size > 1 and self._exchanges_each_step:
            for pair in pairs:
                pair.clip_values(value)
            return
        super().clip_values(parameters, value)
        for pair in pairs:
            pair.allow_clipped()

    @property
    def _exchanges_each_step(self) -> bool:
        options = self._environment.options
        return self._environment.strategy != "downpour" or max(options.push_every, options.pull_every) == 1

    def _pairs_with(self, parameters: Sequence[torch.Tensor]) -> list[WorkerPair]:
        wanted = {id(parameter) for parameter in parameters}
        return [pair for pair in self.pairs if any(id(parameter) in wanted for parameter in pair.parameters)]

    def flush(self, step: int) -> None:
        for number, pair in enumerate(self._distributed):
            pair.flush(next((taken[number] for at, taken in self._boundaries if at == step), pair.steps))

    def save(self, folder: Path, step: int) -> None:
        for pair in self._distributed:
            pair.save(folder, step)

    def restore(self, folder: Path, step: int) -> None:
        for pair in self._distributed:
            pair.restore(step)

    def statistics(self) -> dict[str, float]:
        each = [pair.statistics() for pair in self.pairs]
        if len(each) == 1:
            return each[0]
        spent = {name: value - self._spent[name] for name, value in self._all_spent().items()}
        return {
            **spent,
            "staleness": max(figures["staleness"] for figures in each),
            "dropped": sum(figures["dropped"] for figures in each),
            "skipped": sum(figures["skipped"] for figures in each),
        }

    def _all_spent(self) -> dict[str, float]:
        return {name: sum(pair.spent[name] for pair in self.pairs) for name in ("exchange_s", "wait_s")}

    @property
    def ends_last(self) -> bool:
        return self.pairs[0].ends_last

    def finish(self) -> bool:
        """Performs the last exchanges. In asynchronous training, the chief also waits until all other groups end."""
        for pair in self._distributed:
            pair.finish()
        if not self.ends_last:
            return False
        # All pairs must wait concurrently: a group that waits for the warm start of one pair has not left the other
        # pairs either.
        on_all(self._distributed, lambda pair: pair.wait_for_other_groups(logs=pair is self.pairs[0]))
        for pair in self._distributed:
            pair.pull()
        return True

    def leave(self) -> None:
        for pair in self.pairs:
            pair.leave()

    def abandon(self) -> None:
        for pair in self.pairs:
            pair.abandon()
