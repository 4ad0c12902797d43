"""Collective operations of all ranks over gloo, for small messages, for sparse gradients, and for tensors as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Generic, TypeVar

import torch
import torch.distributed as dist

from torchyard_roles.errors import PeerLost, RolesError

BROADCAST_BYTES = 64 * 1024 * 1024
"""Largest total size in bytes of tensors that are broadcast together."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Copies(Generic[Result]):
    """The functions that copy the result of an operation to a rank that does not have it.

    Attributes:
        encode: Returns the result as tensors of bytes on the CPU. Called before the result is overwritten.
        decode: Sets the result on this rank, and returns it.
    """

    encode: Callable[[Result], list[torch.Tensor]]
    decode: Callable[[list[torch.Tensor]], Result]


class GlooGroup:
    """A gloo group of all ranks. Exchanges raise PeerLost if a rank is lost.

    The group is separate from torch's default group, because the script may use that group itself.
    """

    is_joining = False
    """Whether this rank has returned after its loss and is not yet a member.

    A joining rank must not call other methods.
    """

    def __init__(self) -> None:
        self._group: Any = dist.new_group(backend="gloo")

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None

    def complete(self, operation: Callable[[], Result], copies: Copies[Result] | None = None) -> Result:
        """Runs an operation that consists of several exchanges, and returns its result. This class ignores `copies`."""
        return operation()

    def settle(self) -> None:
        """Waits until all ranks have the result of the last operation. Call this before the result is overwritten.

        The default implementation does nothing. Groups that continue after losing ranks override it.
        """

    def maximum(self, numbers: Sequence[int]) -> list[int]:
        """Returns the maximum of each number over all ranks."""
        message = torch.tensor(numbers, dtype=torch.int32, device="cpu")
        self.maximize(message)
        found: list[int] = message.tolist()
        return found

    def maximize(self, values: torch.Tensor, within_s: float | None = None) -> None:
        """Replaces each value by its maximum over all ranks. Waits at most `within_s` for the other ranks."""
        with naming_lost_ranks():
            work = dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
            work.wait(*([timedelta(seconds=within_s)] if within_s is not None else []))

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the mean of a small tensor over all ranks, on the tensor's device."""
        total = value.detach().to("cpu", torch.float64, copy=True)
        with naming_lost_ranks():
            dist.all_reduce(total, group=self._group)
        return (total / dist.get_world_size(self._group)).to(value)

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Sets the tensors on all ranks to the first rank's values, which are transferred as bytes.

        GPU tensors are transferred by torch's default group.
        """
        for run in runs_of(tensors):
            group = self._group if run[0].device.type == "cpu" else None
            packed = packed_bytes(run)
            with naming_lost_ranks():
                dist.broadcast(packed, src=0, group=group)
            unpack_bytes(packed, run)

    def average_sparse(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """Returns the mean over all ranks of a parameter's sparse gradient. The mean is computed on the CPU."""
        gradient = parameter.grad
        if gradient is None:
            no_indices = torch.empty((1, 0), dtype=torch.int64, device="cpu")
            no_rows = torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype, device="cpu")
            gradient = _sparse(no_indices, no_rows, parameter)
        elif not gradient.is_sparse:
            gradient = gradient.to_sparse(1)
        gradient = gradient.detach().cpu().coalesce()
        world_size = dist.get_world_size(self._group)
        counts = torch.zeros(world_size, dtype=torch.int64, device="cpu")
        counts[dist.get_rank(self._group)] = gradient._nnz()
        with naming_lost_ranks():
            dist.all_reduce(counts, group=self._group)
            most = int(counts.max())
            indices = torch.zeros((gradient.sparse_dim(), most), dtype=torch.int64, device="cpu")
            indices[:, : gradient._nnz()] = gradient.indices()
            values = torch.zeros((most, *gradient.values().shape[1:]), dtype=gradient.dtype, device="cpu")
            values[: gradient._nnz()] = gradient.values()
            all_indices = [torch.empty_like(indices) for _ in range(world_size)]
            all_values = [torch.empty_like(values) for _ in range(world_size)]
            dist.all_gather(all_indices, indices, group=self._group)
            dist.all_gather(all_values, values, group=self._group)
        sizes = counts.tolist()
        total = _sparse(
            torch.cat([each[:, :size] for each, size in zip(all_indices, sizes)], dim=1),
            torch.cat([each[:size] for each, size in zip(all_values, sizes)]),
            parameter,
        )
        return (total.coalesce() / world_size).to(parameter.device)


@contextmanager
def naming_lost_ranks() -> Iterator[None]:
    """Converts RuntimeError, by which torch.distributed reports lost ranks, to PeerLost."""
    try:
        yield
    except RolesError:
        raise
    except RuntimeError as error:
        why = (str(error).splitlines() or ["its connection ended"])[0].rstrip(".")
        raise PeerLost("another rank", "another host", why) from None


def _sparse(indices: torch.Tensor, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, tuple(like.shape), check_invariants=False)


def packed_bytes(run: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the bytes of several tensors on one device as one tensor."""
    return torch.cat([each.contiguous().reshape(-1).view(torch.uint8) for each in run])


def unpack_bytes(packed: torch.Tensor, run: Sequence[torch.Tensor]) -> None:
    """Writes the bytes that packed_bytes() returned to tensors. The tensors may be on another device."""
    for each, part in zip(run, packed.split([each.nbytes for each in run])):
        # The part is cloned because its bytes may not be aligned for the dtype.
        each.copy_(part.clone().view(each.dtype).view(each.shape))


def runs_of(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Divides tensors into runs: consecutive non-empty tensors on one device, of at most BROADCAST_BYTES in total.

    A larger tensor is a run of its own.
    """
    run: list[torch.Tensor] = []
    size = 0
    for each in tensors:
        if not each.numel():
            continue
        if run and (size + each.nbytes > BROADCAST_BYTES or each.device != run[0].device):
            yield run
            run, size = [], 0
        run.append(each)
        size += each.nbytes
    if run:
        yield run
