"""Synchronous data-parallel training. In each step, a ring all-reduce averages the gradients of all workers.

With batches of equal size, the result equals that of one process that trains on all batches together, except for
rounding and for layers that combine samples, such as batch norm.
"""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist
from torch.utils import _pytree

from torchyard_roles.coordination import gloo_shutdown
from torchyard_roles.data_loader import DataShare
from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem
from torchyard_roles.module_hooks import ModuleHook
from torchyard_roles.optimizer_hooks import after_step, before_step
from torchyard_roles.strategies import finite_gradients
from torchyard_roles.strategies.finite_gradients import FiniteGradients
from torchyard_roles.strategies.gradient_averaging import GradientAverager
from torchyard_roles.strategies.gradient_buckets import BUCKET_BYTES, Average
from torchyard_roles.strategies.gradient_noise import GradientNoise
from torchyard_roles.strategies.strategy import Strategy

if TYPE_CHECKING:
    from pathlib import Path


class AllReduce(Strategy):
    """The strategy `all_reduce`: all trainers form one process group of torch.distributed (NCCL on GPUs, else gloo)."""

    def __init__(self, environment: Environment) -> None:
        if environment.rank is None:
            raise ValueError("only trainers take part in all_reduce")
        self._rank = environment.rank
        self._world_size = environment.world_size
        self._master = environment.master
        self._on_nan = environment.options.on_nan
        self.finite: list[FiniteGradients] = []
        """The gradient checks of the optimizers, in the order in which distribute() was called for them."""
        self._averager: GradientAverager | None = None
        self._handles: list[Any] = []
        self._groups: list[Any] = []
        self._owns_group = False

    def start(self, device: torch.device) -> None:
        if not dist.is_available():
            raise EnvironmentProblem(
                f"torch {torch.__version__} on this host was built without torch.distributed.",
                "Install one of the builds from pytorch.org.",
            )
        if dist.is_initialized():
            return  # The script has initialized torch.distributed itself.
        if not self._master:
            raise EnvironmentProblem(
                f"There are {self._world_size} workers, but MASTER_ADDR and MASTER_PORT are not set.",
                "In a topology set program.launcher to torch; elsewhere start the script with torchrun.",
            )
        # On GPUs, NCCL exchanges GPU tensors, and gloo exchanges small CPU tensors.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=self._rank, world_size=self._world_size)
        self._owns_group = True

    def share(self) -> DataShare:
        return DataShare(self._rank, self._world_size)

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """Installs hooks on the model and the optimizer. Neither object is wrapped or replaced."""
        if self._averager is None:
            self._averager = self._make_averager(device)
        self._averager.add(model, optimizer)
        self._handles += [
            model.register_forward_hook(ModuleHook(self._arm)),
            before_step(optimizer, self._about_to_step),
        ]
        self.watch_gradients(model, optimizer)
        return model, optimizer

    def watch_gradients(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Registers a check of the gradients before each step of the optimizer, according to `strategy.on_nan`.

        Subclasses that override distribute() must call this method.
        """
        self.finite.append(FiniteGradients(model, optimizer, self._on_nan))
        self._handles.append(after_step(optimizer, self._has_stepped))

    def _make_averager(self, device: torch.device) -> GradientAverager:
        return GradientAverager(
            device,
            self._ring,
            factor=1 / self._world_size,
            bucket_bytes=BUCKET_BYTES,
            hardware=hardware(device),
            noise=GradientNoise(self._world_size),
        )

    def _ring(self) -> Average:
        """Returns the function that averages the buckets of one section (`gradient_buckets.Section`).

        Each section has its own process group, because all ranks must call a group's collectives in the same order.
        """
        group = self.new_group()

        def average(flat: torch.Tensor, round_: int, bucket: int) -> Callable[[], object]:
            wait: Callable[[], object] = dist.all_reduce(flat, group=group, async_op=True).wait
            return wait

        return average

    def new_group(self) -> Any:
        """Creates a process group of all ranks, which leave() destroys. All ranks must call this method."""
        self._groups.append(dist.new_group())
        return self._groups[-1]

    def _arm(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        """Registers a hook that calls `GradientAverager.arm` at the start of the next backward pass.

        The hook is registered on an output of the model, because a backward pass computes gradients of outputs first.
        """
        if self._averager is None or not torch.is_grad_enabled():
            return
        for output in _pytree.tree_leaves(outputs):
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(self._averager.arm)
                return

    def _about_to_step(self, optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> Any:
        """Averages the gradients before a step, or after each call of the step's closure.

        If there is a closure, its loss is averaged too, so that a line search makes the same decisions on all ranks.
        """
        averager = self._averager
        assert averager is not None

        def averaged(loss: Any) -> Any:
            averager.settle([optimizer])
            if isinstance(loss, torch.Tensor):
                return averager.average_value(loss)
            if loss is None:
                return None
            return averager.average_value(torch.tensor(float(loss), dtype=torch.float64, device="cpu")).item()

        with_closure = finite_gradients.with_closure(arguments, named, averaged)
        if with_closure is None:
            averager.settle([optimizer])
        return with_closure

    def _has_stepped(self, *_: Any) -> None:
        if self._averager is not None:
            self._averager.stepped()

    def before_forward(self) -> None:
        if self._averager is not None:
            self._averager.before_forward()

    def accumulating(self) -> AbstractContextManager[None]:
        return nullcontext() if self._averager is None else self._averager.accumulating()

    def clip_gradients(self, parameters: Any, max_norm: float) -> torch.Tensor:
        self._settle()
        return super().clip_gradients(parameters, max_norm)

    def clip_values(self, parameters: Any, value: float) -> None:
        self._settle()
        super().clip_values(parameters, value)

    def _settle(self) -> None:
        """Averages the gradients that no backward pass has averaged."""
        if self._averager is not None:
            self._averager.settle()

    def statistics(self) -> dict[str, float]:
        skipped = sum(each.skipped for each in self.finite)
        found = {"skipped": float(skipped)} if skipped else {}
        if self._averager is not None:
            found["exchange_s"], found["wait_s"] = self._averager.times()
            noise_scale = self._averager.noise_scale
            if noise_scale is not None:
                found["noise_scale"] = noise_scale
        return found

    def at_boundary(self, step: int) -> None:
        if self._averager is not None:
            self._averager.note_samples(self.samples)

    def finish(self) -> bool:
        self._check()
        if self._averager is not None and not self._averager.finish() and self._rank == 0:
            print(
                "torchyard: the parameters of all ranks were not compared a last time: another rank had left, or did "
                "not come in time.",
                flush=True,
            )
        return False

    def save(self, folder: Path, step: int) -> None:
        self._check()
        if self._averager is not None:
            self._averager.want_check()

    def restore(self, folder: Path, step: int) -> None:
        for each in self.finite:
            each.step = step
        if self._averager is not None:
            self._averager.resume(step)

    def _check(self) -> None:
        """Raises NotFinite if the last step's gradients were not finite. Waits for a check that runs on the GPU."""
        for each in self.finite:
            each.check()

    def leave(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self._averager is not None:
            self._averager.close()
        if dist.is_initialized():
            if self._owns_group:
                dist.destroy_process_group()
            else:  # A process group that the script itself initialized is left unchanged.
                for group in self._groups:
                    dist.destroy_process_group(group)
            gloo_shutdown.settle()
        self._groups.clear()
        self._owns_group = False


def hardware(device: torch.device) -> str:
    """Returns a description of the hardware and torch version.

    Ranks with equal descriptions are expected to compute bitwise equal results.
    """
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} {torch.__version__}"
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {torch.__version__}"
