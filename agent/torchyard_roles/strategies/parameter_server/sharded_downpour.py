"""Downpour with worker groups that shard their model (`strategy.shard`).

The ranks of a group average their gradients in the backward pass, after which each rank has a part of them. In the
optimizer's step() the group's first rank gathers the whole gradients on the CPU, exchanges them with the parameter
servers as a group of one worker would do, and distributes the received parameters to the ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from torchyard_roles.coordination.gloo_shutdown import wait_for_all_ranks
from torchyard_roles.data_loader import DataShare
from torchyard_roles.environment import Environment
from torchyard_roles.errors import PeerLost
from torchyard_roles.strategies.first_ranks import call_with_beats
from torchyard_roles.strategies.parameter_server import remote_optimizer
from torchyard_roles.strategies.parameter_server.sandblaster_downpour import ParameterServerStrategy
from torchyard_roles.strategies.parameter_server.sharded_pair import ShardedPair
from torchyard_roles.strategies.sharded.sharded_model import check_all_trained
from torchyard_roles.strategies.sharded.strategy import ShardedAllReduce
from torchyard_roles.strategies.strategy import GroupedStrategy

WAITS, FAILED, DONE = 0, 1, 2
"""States of a call on the first rank, which the first rank broadcasts to the other ranks."""


class ShardedDownpour(GroupedStrategy):
    """A rank of a worker group that shards its model."""

    needs_optimizer = ParameterServerStrategy.needs_optimizer

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._options = environment.options
        self._is_first = environment.group_rank == 0
        self._inside: ShardedAllReduce = ShardedAllReduce(
            replace(environment, rank=environment.group_rank, world_size=environment.group_size)
        )
        self._served: ParameterServerStrategy | None = None
        """The exchange with the servers, on the first rank."""
        if self._is_first:
            # The optimizers of `_served` have copies of the whole parameters, and never step. Between pulls, the
            # optimizers of the sharded models take the steps.
            self._served = ParameterServerStrategy(
                replace(environment, group_rank=0, group_size=1), steps_between_pulls=False
            )
        self._pairs: list[ShardedPair] = []
        self._distributed: list[int] = []
        """On the first rank: WorkerPair.changes of each pair when its parameters were last distributed to the ranks."""
        self._device = torch.device("cpu")
        self._spent_s = 0.0
        """Time in seconds spent in the optimizers' steps since the last boundary."""
        self._finished = False

    def start(self, device: torch.device) -> None:
        self._device = device
        self._inside.start(device)
        self.sharded_saving = self._inside.sharded_saving
        self._exchange(lambda served: served.start(torch.device("cpu")))

    def share(self) -> DataShare:
        return DataShare(self._environment.rank or 0, self._environment.world_size)

    def prepare(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], device: torch.device
    ) -> None:
        """Shards the models. Raises UsageProblem if servers cannot train them or run their optimizers."""
        for each in optimizers:
            remote_optimizer.class_name(each)
        check_all_trained(models, optimizers, "downpour")
        self._inside.prepare(models, optimizers, device)
        # Other groups' parameter values are not needed, because the servers have the values of the chief's group.
        if self._environment.group > 0:
            assert self.sharded_saving is not None
            self.sharded_saving.needs_values = False

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        self._inside.distribute(model, optimizer, device)
        pair = ShardedPair(model, optimizer, self._inside.finite[-1], device, is_first=self._is_first)
        if self._environment.group == 0:  # The other groups receive the values from the servers.
            pair.gather_values()
        self._pairs.append(pair)
        self._distributed.append(0)
        self._exchange(pair.begin)
        pair.distribute_buffers()
        pair.replace_step(partial(self._step, pair))
        return model, optimizer

    def _step(self, pair: ShardedPair) -> None:
        began = time.monotonic()
        skips = pair.prepare_step()
        if not skips:
            pair.gather_gradients()
        self._exchange(lambda _: pair.exchange(skips=skips))
        if pair.steps % self._options.pull_every and not skips:
            pair.step_locally()
        self._spent_s += time.monotonic() - began

    def restore(self, folder: Path, step: int) -> None:
        self._inside.restore(folder, step)
        for pair in self._pairs:
            pair.steps = step
        self._exchange(lambda served: served.restore(folder, step))
        for pair in self._pairs:
            pair.distribute_buffers()

    def at_boundary(self, step: int) -> None:
        self._spent_s = 0.0
        if self._served is not None:
            self._served.at_boundary(step)

    def flush(self, step: int) -> None:
        self._check()
        if self._options.push_every > 1:
            self._exchange(lambda served: served.flush(step))

    def save(self, folder: Path, step: int) -> None:
        self._check()
        self._exchange(lambda served: served.save(folder, step))

    def _check(self) -> None:
        """Raises NotFinite if the last step's gradients were not finite. Waits for a check that runs on the GPU."""
        for each in self._inside.finite:
            each.check()

    def statistics(self) -> dict[str, float]:
        found = self._inside.statistics()
        if self._served is not None:
            served = self._served.statistics()
            served.pop("compute_s", None)  # The time between two exchanges includes the gathering of gradients.
            found = {**served, "skipped": max(served["skipped"], found.get("skipped", 0.0))}
        found["exchange_s"] = max(0.0, self._spent_s - found.get("wait_s", 0.0))
        return found

    @property
    def ends_last(self) -> bool:
        options = self._options
        differs = self._environment.groups > 1 or max(options.push_every, options.pull_every) > 1
        return bool(self._pairs) and self._environment.group == 0 and differs

    def finish(self) -> bool:
        """Performs the last exchanges. In the chief's group, all ranks wait until all other groups have ended."""
        if self._finished or not self._pairs:
            return False
        self._check()
        self._exchange(lambda served: served.finish())
        self._finished = True
        wait_for_all_ranks()
        return self.ends_last

    def leave(self) -> None:
        if self._served is not None:
            self._served.leave()
        self._inside.leave()

    def abandon(self) -> None:
        if self._served is not None:
            self._served.abandon()
        self._inside.abandon()

    def _exchange(self, call: Callable[[ParameterServerStrategy], object]) -> None:
        """Runs `call` on the first rank, and distributes the parameters that the first rank received during the call.

        All ranks must call this method.
        """
        assert self.sharded_saving is not None
        self.sharded_saving.settle()
        is_new = self._on_first_rank(partial(call, self._served)) if self._served is not None else self._await_first()
        for pair, has_new in zip(self._pairs, is_new):
            if has_new:
                pair.distribute_values()

    def _on_first_rank(self, call: Callable[[], object]) -> list[int]:
        """Runs `call`, and returns for each pair whether the call changed the parameters of its copy."""
        assert self._served is not None
        pairs = [0] * len(self._pairs)
        problems: list[BaseException] = []

        def checked() -> None:
            try:
                call()
            except BaseException as error:  # SystemExit is included. The exception is re-raised below.
                problems.append(error)
                raise

        try:
            call_with_beats(checked, lambda: self._broadcast([WAITS, *pairs]))
        except BaseException:  # After any exception, the other ranks must not wait for this rank.
            if problems:  # If the call itself did not fail, a broadcast did, and another broadcast would fail too.
                self._broadcast([FAILED, *pairs])
            raise
        changes = [pair.changes for pair in self._served.pairs[: len(pairs)]]
        pairs = [int(now != before) for now, before in zip(changes, self._distributed)]
        self._distributed[:] = changes
        self._broadcast([DONE, *pairs])
        return pairs

    def _await_first(self) -> list[int]:
        """Waits until the first rank's call has ended, and returns its result.

        Raises PeerLost if the call failed.
        """
        outcome = WAITS
        while outcome == WAITS:
            outcome, *pairs = self._broadcast([WAITS] * (1 + len(self._pairs)))
        if outcome == FAILED:
            first = self._environment.peers.trainer_process(0, self._environment.group)
            name, host = first or (f"rank 0 of group {self._environment.group}", "another host")
            raise PeerLost(name, host, "its exchange with the parameter servers has failed")
        return pairs

    def _broadcast(self, numbers: list[int]) -> list[int]:
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        dist.broadcast(tensor, src=0)
        return [int(number) for number in tensor.tolist()]
