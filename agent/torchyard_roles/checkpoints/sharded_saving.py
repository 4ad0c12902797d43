"""Saves and loads models that are sharded over ranks. Each rank writes and reads its own part."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist

from torchyard_roles.checkpoints import sharded_files
from torchyard_roles.checkpoints.sharded_tensors import set_from_first_rank
from torchyard_roles.errors import UsageProblem

if TYPE_CHECKING:
    from torchyard_roles.model_optimizer_pairs import OptimizerList


class ShardedSaving:
    """The collective calls for sharded checkpoints. All ranks make the same calls in the same order.

    A save in the background hardly delays training: a thread copies the values during the next backward pass, and then
    writes the copies. This is safe because scripts do not change parameters or optimizer state between the end of a
    training forward pass and the end of its backward pass, and because the end of the backward pass waits until the
    values are copied. The memory of the copies is reused by the next save.

    Args:
        mesh: The mesh of the sharded parameters.
        device: The device of this rank.
        group: A gloo group of all ranks that is used for these calls only.
    """

    def __init__(self, mesh: Any, group: Any, device: torch.device) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        self._device = device
        self._group = group
        self._mesh = mesh if mesh.device_type == "cpu" else DeviceMesh("cpu", mesh.mesh)
        self._buffers: dict[str, torch.Tensor] = {}
        self._sources: dict[str, Any] = {}
        """The sharded tensors of a save whose values have not yet been copied."""
        self._copies: dict[str, Any] = {}
        """All tensors of the save in progress, by name."""
        self._copied = threading.Event()
        """Cleared while a thread copies values."""
        self._copied.set()
        self._problem: Exception | None = None
        self._deferred: Callable[[], None] | None = None
        self._ready: torch.cuda.Event | None = None
        self._writer: threading.Thread | None = None
        self.needs_values = False
        """Whether the model has no values yet, because the chief's model is on the meta device."""

    def agree(self, ok: bool) -> bool:
        """Returns whether `ok` is true on all ranks."""
        flag = torch.tensor([ok], dtype=torch.int32, device="cpu")
        dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self._group)
        return bool(flag.item())

    def copy(self, model: torch.nn.Module, optimizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns this rank's part of the state. Sharded tensors are copied to the CPU later, at the latest by write().

        Returns:
            A dict of the tensors' copies by their names in DCP, to which copies of sharded tensors are added later, and
            the optimizer's state without its sharded tensors, which is not copied.
        """
        sharded, rest = sharded_files.split_optimizer(optimizer.state_dict())
        tensors = {
            f"{sharded_files.MODEL}.{name}": value
            for name, value in model.state_dict().items()
            if isinstance(value, torch.Tensor)
        }
        found = {**tensors, **sharded}
        self._sources = {name: value for name, value in found.items() if hasattr(value, "device_mesh")}
        # Buffers are copied immediately, because forward passes change them.
        plain = {name: value for name, value in found.items() if name not in self._sources}
        self._copies = {name: value.detach().to("cpu", copy=True) for name, value in plain.items()}
        self._problem = None
        return self._copies, rest

    def defer(self, write: Callable[[], None]) -> None:
        """Postpones a save: a thread that starts after the next training forward pass calls `write`."""
        self._deferred = write

    @property
    def is_busy(self) -> bool:
        """Whether a save is postponed or being written."""
        return self._deferred is not None or (self._writer is not None and self._writer.is_alive())

    def begin(self) -> None:
        """Starts the postponed save, if there is one. Called when a training forward pass ends."""
        write, self._deferred = self._deferred, None
        if write is None:
            return
        self._copied.clear()
        if self._device.type == "cuda":
            self._ready = torch.cuda.Event()
            self._ready.record(torch.cuda.current_stream(self._device))
        self._writer = threading.Thread(target=self._run, args=(write,), name="torchyard-checkpoint")
        self._writer.start()

    @property
    def is_copying(self) -> bool:
        return not self._copied.is_set()

    def settle(self) -> None:
        """Waits until the values of a save are copied, or copies them if the save is postponed.

        Must be called before the values change.
        """
        if self._deferred is not None:
            self._copy_values()
        self._copied.wait()

    def wait(self) -> None:
        """Waits until the save in the background is written. A postponed save is written by the calling thread."""
        write, self._deferred = self._deferred, None
        if write is not None:  # No thread can be started while the interpreter exits.
            write()
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _run(self, write: Callable[[], None]) -> None:
        try:
            self._copy_values()
        except Exception as error:  # write() raises this error in the calling thread.
            self._problem = error
        finally:
            self._copied.set()
        write()

    def write(self, folder: Path, tensors: dict[str, Any]) -> None:
        """Writes the tensors that copy() returned to a folder that all ranks share.

        Raises CheckpointException if a rank cannot write its part.
        """
        from torch.distributed import checkpoint

        if self._problem is not None:
            raise self._problem
        self._copy_values()
        checkpoint.save(tensors, storage_writer=checkpoint.FileSystemWriter(folder), process_group=self._group)

    def load(self, folder: Path, model: torch.nn.Module) -> None:
        """Loads this rank's part of the model. Raises UsageProblem on all ranks if one of them cannot read its part."""
        prefix = f"{sharded_files.MODEL}."
        state = model.state_dict()
        self._read(folder, {prefix + name: each for name, each in state.items() if isinstance(each, torch.Tensor)})

    def load_optimizer(
        self, folder: Path, rest: dict[str, Any], optimizer: torch.optim.Optimizer | OptimizerList
    ) -> dict[str, Any]:
        """Returns the optimizer's state, including this rank's part of its sharded tensors.

        Args:
            rest: The state without the sharded tensors, from optimizer.pt.

        Raises:
            UsageProblem: One of the ranks cannot read its part. Raised on all ranks.
        """
        groups = [each.param_groups for each in getattr(optimizer, "optimizers", [optimizer])]
        tensors = {
            name: _empty(each.size, each.properties.dtype, sharded_files.parameter_of(name, groups))
            for name, each in sharded_files.tensors_of(folder).items()
            if name.startswith(f"{sharded_files.OPTIMIZER}.")
        }
        if tensors:
            self._read(folder, tensors)
        return sharded_files.with_tensors(rest, tensors)

    def load_full(self, model: torch.nn.Module, whole: Mapping[str, torch.Tensor] | None) -> None:
        """Sets the model of all ranks to the whole tensors of the first rank. Other ranks pass None."""
        for name, value in model.state_dict().items():
            if isinstance(value, torch.Tensor):
                set_from_first_rank(value, None if whole is None else whole[name], self._device)

    def _read(self, folder: Path, tensors: dict[str, Any]) -> None:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.api import CheckpointException

        try:
            checkpoint.load(tensors, storage_reader=sharded_files.reader(folder), process_group=self._group)
        except CheckpointException as error:
            first = next(iter(error.failures.values()), (error,))[0]
            why = (str(first).splitlines() or [type(first).__name__])[0].rstrip(".")
            raise UsageProblem(
                f"The checkpoint {folder} cannot be read by all ranks: {why}.",
                "All hosts must see the folder: set program.checkpoint_dir to one that they share. Move a damaged "
                "checkpoint away.",
            ) from error

    @torch.no_grad()  # type: ignore[untyped-decorator]  # mypy does not analyse torch.
    def _copy_values(self) -> None:
        """Copies the values of the save in progress that have not yet been copied."""
        from torch.distributed.tensor import DTensor

        sources, self._sources = self._sources, {}
        is_cuda, ready = self._device.type == "cuda", self._ready
        self._ready = None
        with ExitStack() as entered:
            stream = torch.cuda.Stream(self._device) if is_cuda else None
            if stream is not None:
                entered.enter_context(torch.cuda.stream(stream))
                if ready is None:
                    torch.cuda.synchronize(self._device)
                else:
                    stream.wait_event(ready)
            for name, value in sources.items():
                local = value.detach().to_local()
                buffer = self._buffers.get(name)
                if buffer is None or buffer.shape != local.shape or buffer.dtype != local.dtype:
                    buffer = torch.empty(local.shape, dtype=local.dtype, device="cpu", pin_memory=is_cuda)
                    self._buffers[name] = buffer
                buffer.copy_(local, non_blocking=True)
                self._copies[name] = DTensor.from_local(
                    buffer, self._mesh, value.placements, run_check=False, shape=value.shape, stride=value.stride()
                )
            if stream is not None:
                stream.synchronize()


def _empty(size: torch.Size, dtype: torch.dtype, parameter: Any) -> Any:
    """Returns an empty tensor for a value of the optimizer's state.

    The tensor is sharded like its parameter if it has the same shape, and otherwise replicated.
    """
    from torch.distributed.tensor import Replicate, empty

    mesh = parameter.device_mesh
    placements = parameter.placements if size == parameter.shape else [Replicate()] * mesh.ndim
    return empty(*size, dtype=dtype, device_mesh=mesh, placements=placements)
