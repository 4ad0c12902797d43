"""What a training script holds: its place among the others, and the four calls that make it one of them."""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING, Any

from torchyard_roles import checks
from torchyard_roles.environment import Environment, read
from torchyard_roles.errors import UsageProblem
from torchyard_roles.progress import Progress
from torchyard_roles.reporting import Reporter

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader, Dataset

    from torchyard_roles.strategies.strategy import Strategy

REPORT_WAIT_S = 0.2
"""How long the first and the last report may wait for a keeper that is busy; all others never wait."""

_joined: Cluster | None = None


def join() -> Cluster:
    """Take this process's place in the run, and wait until the other trainers are there.

    Without Torchyard's or torchrun's environment it is a run of one process, and nothing is waited for.
    Called again it returns the same cluster. Parameter servers and reducers do not return from here.
    Raises RolesError with a sentence where the environment cannot work.
    """
    global _joined
    if _joined is None or _joined.has_left:
        environment = read(os.environ)
        if environment.role in ("ps", "reducer"):
            raise SystemExit(
                f"torchyard_roles: {environment.replica or environment.role} has nothing to serve: this version "
                "has no strategy with parameter servers or reducers. Remove their pool from the topology, and set "
                "strategy.kind to all_reduce."
            )
        checks.check_torch()
        # torch and all that needs it are imported here, so that importing torchyard_roles costs nothing.
        from torchyard_roles import devices, strategies

        device = devices.choose(environment)
        strategy = strategies.choose(environment)
        strategy.start(device)
        _joined = Cluster(environment, strategy, device)
        atexit.register(_joined._leave_at_exit)
    return _joined


class Cluster:
    """The run as this process sees it. Made by join()."""

    def __init__(self, environment: Environment, strategy: Strategy, device: torch.device) -> None:
        self._environment = environment
        self._strategy = strategy
        self._device = device
        self._progress = Progress()
        self._reporter = Reporter(environment)
        self._process = os.getpid()
        self._distributed = False
        self._left = False

    @property
    def role(self) -> str:
        """`chief`, `worker` or `evaluator`."""
        return self._environment.role

    @property
    def index(self) -> int:
        """This replica's number among those of its role."""
        return self._environment.index

    @property
    def rank(self) -> int | None:
        """This process's number among the trainers; None for an evaluator."""
        return self._environment.rank

    @property
    def world_size(self) -> int:
        """How many processes train, for an evaluator too."""
        return self._environment.world_size

    @property
    def is_chief(self) -> bool:
        """Whether this is the one trainer that saves and prints for all: rank 0."""
        return self._environment.trains and self._environment.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this process computes: model and batches are brought there."""
        return self._device

    @property
    def has_left(self) -> bool:
        return self._left

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """The model and optimizer to train with from here on; all trainers start from the chief's parameters.

        Called once, before the first step. Raises UsageProblem where it cannot be meant like that.
        """
        from torchyard_roles import devices

        if self._distributed:
            raise UsageProblem(
                "distribute() was called a second time.",
                "Call it once; put several models into one torch.nn.ModuleDict with one optimizer.",
            )
        checks.check_trainable(model, optimizer)
        model.to(self._device)
        devices.move_optimizer(optimizer, self._device)
        model, optimizer = self._strategy.distribute(model, optimizer, self._device)
        optimizer.register_step_post_hook(self._stepped)
        self._distributed = True
        return model, optimizer

    def loader(
        self,
        dataset: Dataset[Any],
        batch_size: int = 64,
        shuffle: bool = True,
        *,
        seed: int | None = None,
        **options: Any,
    ) -> DataLoader[Any]:
        """This worker's share of the data, in batches of `batch_size` of its own, on its device.

        `seed` fixes the order, which changes with every epoch; without one several workers take 0, and a single
        process takes torch's generator as any DataLoader does. `options` are DataLoader's.
        """
        from torchyard_roles import sharding

        return sharding.make_loader(
            dataset,
            self._strategy.share(),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            device=self._device,
            progress=self._progress,
            options=options,
        )

    def report(self, **metrics: Any) -> None:
        """Tell the desktop numbers such as `loss=loss`; tensors of one number may be given as they are.

        Costs nothing to speak of in every step: at most 5 a second are sent, and only those read a tensor.
        Optional: steps and samples a second are counted by themselves.
        """
        self._progress.note(metrics)
        self._send_if_due(at_step=False)

    def leave(self) -> None:
        """Send the last report and part from the others. Done by itself when the script ends."""
        if self._left or os.getpid() != self._process:
            return
        self._left = True
        self._send_last()
        self._strategy.leave()

    def _stepped(self, *_: Any) -> None:
        self._progress.step()
        self._send_if_due(at_step=True)

    def _send_if_due(self, *, at_step: bool) -> None:
        if self._reporter.is_open and self._progress.due(at_step=at_step):
            wait_s = 0.0 if self._progress.was_taken else REPORT_WAIT_S
            self._reporter.send(self._progress.take(), wait_s)

    def _send_last(self) -> None:
        if self._reporter.is_open and self._progress.unsent:
            self._reporter.send(self._progress.take(), REPORT_WAIT_S)
        self._reporter.close()

    def _leave_at_exit(self) -> None:
        if hasattr(sys, "last_value"):
            # An exception ended the script. Parting in good order could wait for a GPU that waits for peers, and
            # the peers learn soonest from the connections that end with this process.
            if not self._left and os.getpid() == self._process:
                self._send_last()
            return
        self.leave()
