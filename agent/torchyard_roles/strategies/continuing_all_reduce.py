"""all_reduce that continues without lost workers (`strategy.on_worker_loss: continue`).

When a worker is lost, the others abandon the step in progress, connect again and repeat it with their own batches. The
gradients are divided by the number of workers that take part. A lost worker that is started again joins at a step
boundary, with the state of one of the others.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from torchyard_roles.coordination import gloo_shutdown
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.data_loader import DataShare
from torchyard_roles.environment import Environment
from torchyard_roles.errors import PeerLost, UsageProblem
from torchyard_roles.strategies.all_reduce import AllReduce, hardware
from torchyard_roles.strategies.gradient_averaging import GradientAverager
from torchyard_roles.strategies.gradient_buckets import BUCKET_BYTES, Average
from torchyard_roles.strategies.gradient_noise import GradientNoise
from torchyard_roles.strategies.replaceable_group import ReplaceableGroup


class ContinuingAllReduce(AllReduce):
    """all_reduce whose gloo connections are replaced after a loss. torch.distributed is not initialized."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._environment = environment
        self._store: JoinStore | None = None
        self._announced = False
        self._sections = 0

    def share(self) -> DataShare:
        """Returns this worker's share. A worker that was added repeats the share of another one in another order.

        All workers must make equally many steps in an epoch, and the others do not divide their data again before the
        next restart.
        """
        parts = self._environment.started_with
        if not parts:
            return super().share()
        return DataShare(self._rank % parts, parts, repetition=self._rank // parts)

    def start(self, device: torch.device) -> None:
        if device.type != "cpu":
            raise UsageProblem(
                f"strategy.on_worker_loss: continue was chosen, and this worker trains on {device.type}; this version "
                "supports it on CPUs only.",
                "Set strategy.on_worker_loss to restart.",
            )
        self._store = JoinStore.of(self._environment)
        self.members = self._make_group(self._store)

    def _make_group(self, store: JoinStore) -> ReplaceableGroup:
        return ReplaceableGroup(store, self._environment)

    def _make_averager(self, device: torch.device) -> GradientAverager:
        group = self.members
        assert group is not None
        averager = GradientAverager(
            device,
            self._exchange_of_section,
            factor=1 / len(group.ranks),
            bucket_bytes=BUCKET_BYTES,
            hardware=hardware(device),
            group=group,
            noise=GradientNoise(len(group.ranks)),
        )
        group.on_members = averager.set_members
        group.on_repeat = averager.withdraw
        return averager

    def _exchange_of_section(self) -> Average:
        """Creates the exchange of one section.

        Collectives are matched by their order, and the sections of several optimizers share one group. So only buckets
        of the first section are sent during the backward pass, and those of the others when all ranks agree on them.
        """
        group = self.members
        assert group is not None
        self._sections += 1
        if self._sections == 1:
            return lambda flat, round_, bucket: group.launch(flat)

        def later(flat: torch.Tensor, round_: int, bucket: int) -> Callable[[], object]:
            return lambda: group.launch(flat)()

        return later

    def _has_stepped(self, *arguments: Any) -> None:
        super()._has_stepped(*arguments)
        if self.members is not None:
            self.members.has_trained = True
        if not self._announced and self.members is not None:
            self._announced = True
            if self._rank == self.first_rank:
                self.members.membership.announce_training()

    def exchange_state(self) -> dict[str, Any]:
        """Returns the state of the exchange for a worker that returns."""
        assert self._averager is not None
        return self._averager.state()

    def load_exchange_state(self, state: dict[str, Any], step: int) -> None:
        """Sets the state of the exchange to that of another worker after `step`."""
        assert self._averager is not None
        self._averager.load_state(state)
        for each in self.finite:
            each.step = step

    def finish(self) -> bool:
        if self.members is not None:
            self.members.end()
        try:
            return super().finish()
        except PeerLost:
            return False  # Another worker has left, or was lost, during the last comparison.

    def leave(self) -> None:
        super().leave()
        if self.members is not None:
            self.members.close()
            gloo_shutdown.settle()
        if self._store is not None:
            self._store.close()
