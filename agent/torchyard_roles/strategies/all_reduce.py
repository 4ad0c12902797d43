"""Synchronous training: every worker averages its gradients with all others in each step (DDP's ring).

Equal to one process that trains on the whole batch, as long as the workers' batches are of equal size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem
from torchyard_roles.sharding import Share
from torchyard_roles.strategies import gloo, unused
from torchyard_roles.strategies.exposed import Exposed
from torchyard_roles.strategies.finite import FiniteGradients
from torchyard_roles.strategies.strategy import Strategy

if TYPE_CHECKING:
    from pathlib import Path


class AllReduce(Strategy):
    """The trainers as one torch world: NCCL for GPUs, gloo for CPUs."""

    def __init__(self, environment: Environment) -> None:
        if environment.rank is None:
            raise ValueError("only trainers reduce")
        self._rank = environment.rank
        self._world_size = environment.world_size
        self._master = environment.master
        self._on_nan = environment.options.on_nan
        self.finite: FiniteGradients | None = None
        """What watches the optimizer that was given to distribute()."""
        self._exposed: Exposed | None = None
        self._owns_group = False

    def start(self, device: torch.device) -> None:
        if not dist.is_available():
            raise EnvironmentProblem(
                f"torch {torch.__version__} on this host was built without torch.distributed.",
                "Install one of the builds from pytorch.org.",
            )
        if dist.is_initialized():
            return  # the script has made its world itself, and will end it
        if not self._master:
            raise EnvironmentProblem(
                f"There are {self._world_size} workers, but MASTER_ADDR and MASTER_PORT do not say where.",
                "In a topology set program.launcher to torch; elsewhere start the script with torchrun.",
            )
        # With GPUs there is gloo beside NCCL, for small things that live on the CPU.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=self._rank, world_size=self._world_size)
        self._owns_group = True

    def share(self) -> Share:
        return Share(self._rank, self._world_size)

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        self._watch(model, optimizer)
        shared = self._shared(model, device)
        self._exposed = Exposed(shared, device, meets=True)
        return shared, optimizer

    def _shared(self, model: torch.nn.Module, device: torch.device, **options: Any) -> SharedModel:
        """Any model will do, so DDP looks for parameters that a step leaves unused: without, the second step fails.

        The price is a walk through the graph in C++ and, in each step, a sum of one flag for each parameter.
        """
        ids = [device.index] if device.type == "cuda" else None
        shared = SharedModel(model, device_ids=ids, find_unused_parameters=True, **options)
        unused.spend_warning(shared.process_group)
        return shared

    def statistics(self) -> dict[str, float]:
        found = {"skipped": float(self.finite.skipped)} if self.finite and self.finite.skipped else {}
        if self._exposed is not None:
            exposed_s, found["wait_s"] = self._exposed.times()
            found["exchange_s"] = exposed_s - found["wait_s"]
        return found

    def _watch(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """From now on no step is made with gradients that are not finite."""
        self.finite = FiniteGradients(model, optimizer, self._on_nan)

    def finish(self) -> bool:
        self._check()
        return False

    def save(self, folder: Path, step: int) -> None:
        self._check()

    def restore(self, folder: Path, step: int) -> None:
        if self.finite is not None:
            self.finite.step = step

    def _check(self) -> None:
        """Raises NotFinite where the last step's gradients on a GPU were not finite: nobody has looked yet."""
        if self.finite is not None:
            self.finite.check()

    def leave(self) -> None:
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
            gloo.settle()
        self._owns_group = False


class SharedModel(DistributedDataParallel):  # type: ignore[misc]  # torch is not followed by mypy, see pyproject.toml
    """DistributedDataParallel that a script cannot tell from its own model.

    It has the model's own attributes and methods, and saves under the model's own names (without `module.`), so
    that what a cluster has saved loads into one process, and the other way round.
    """

    device_ids: list[int] | None

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # `module` itself is missing only while DDP's constructor runs.
            if name == "module":
                raise
            return getattr(self.module, name)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if inputs or named or not self.device_ids:
            return super().forward(*inputs, **named)
        ids, self.device_ids = self.device_ids, None  # DDP moves the first of the inputs to the GPU, which is missing
        try:
            return super().forward()
        finally:
            self.device_ids = ids

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.module.state_dict(*arguments, **options)

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.module.load_state_dict(*arguments, **options)

    # Of a container, such as a Sequential: Python looks for these in the class alone.

    def __len__(self) -> int:
        return len(self.module)

    def __bool__(self) -> bool:
        return True  # and not what __len__ says, which other models do not have

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)

    def __contains__(self, item: object) -> bool:
        return item in self.module

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]
