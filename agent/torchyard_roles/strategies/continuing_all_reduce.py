"""The strategy `all_reduce` with `on_worker_loss: continue`: training continues without lost workers.

When a worker is lost, the others abandon the step in progress, reconnect, and repeat the step with their own batches.
The gradients are divided by the number of workers that take part. A lost worker that is started again joins at a step
boundary with the state of one of the other workers.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from torchyard_roles.coordination import gloo_shutdown
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.data_loader import DataShare
from torchyard_roles.environment import Environment
from torchyard_roles.errors import PeerLost
from torchyard_roles.strategies.all_reduce import AllReduce, hardware
from torchyard_roles.strategies.gradient_averaging import GradientAverager
from torchyard_roles.strategies.gradient_buckets import BUCKET_BYTES, Average
from torchyard_roles.strategies.gradient_noise import GradientNoise
from torchyard_roles.strategies.nccl_group import prepare_nccl
from torchyard_roles.strategies.replaceable_group import ReplaceableGroup


class ContinuingAllReduce(AllReduce):
    """The strategy `all_reduce` that replaces its connections after the loss of a worker.

    It does not initialize torch.distributed.
    """

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._environment = environment
        self._store: JoinStore | None = None
        self._announced = False
        self._sections = 0

    def share(self) -> DataShare:
        """Returns this worker's share of the data.

        The data is divided among the workers that started together, and is not divided again until the next restart. A
        worker that is added later gets the share of one of these workers, in a different order. All workers must take
        the same number of steps in an epoch.
        """
        parts = self._environment.started_with
        if not parts:
            return super().share()
        return DataShare(self._rank % parts, parts, repetition=self._rank // parts)

    def start(self, device: torch.device) -> None:
        if device.type == "cuda":
            prepare_nccl()
        self._store = JoinStore.of(self._environment)
        self.members = self._make_group(self._store, device)

    def _make_group(self, store: JoinStore, device: torch.device) -> ReplaceableGroup:
        return ReplaceableGroup(store, self._environment, device)

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
        """Returns the function that averages the buckets of one section.

        Collectives must be called in the same order on all ranks, and the sections of several optimizers share one
        group. Therefore only buckets of the first section are sent during the backward pass. The buckets of other
        sections are sent when all ranks have agreed on them.
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
        """Returns the state of the gradient exchange, which is sent to a returning worker."""
        assert self._averager is not None
        return self._averager.state()

    def load_exchange_state(self, state: dict[str, Any], step: int) -> None:
        """Sets the state of the gradient exchange to another worker's state after `step`."""
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
            return False  # Another worker left, or was lost, while the final parameters were compared.

    def leave(self) -> None:
        super().leave()
        if self.members is not None:
            self.members.close()
            gloo_shutdown.settle()
        if self._store is not None:
            self._store.close()
