"""The outer parameters of DiLoCo and the step of the outer optimizer.

With the outer parameters θ and the parameters θ_g of a group, the group contributes Δ_g = θ − θ_g. The average Δ of all
groups is the gradient of the outer optimizer, which is SGD with Nesterov momentum, as in torch.optim.SGD:

    m ← μ m + Δ ;  θ ← θ − η (Δ + μ m)

θ and m are on the CPU, in float32 or in the wider dtype of the parameter. Buffers with floating-point values are
averaged without an outer optimizer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import torch
import torch.distributed as dist

from torchyard_roles.exchange import large_buffers
from torchyard_roles.exchange.pinned_copies import pinned_copies_of
from torchyard_roles.strategies.gloo_group import packed_bytes, runs_of, unpack_bytes

NOT_BEGUN = -1


class Flat:
    """Tensors of a model whose values are exchanged as one contiguous tensor on the CPU.

    Attributes:
        copies: The object that copies from and to the tensors' GPU, or None if the tensors are on the CPU.
    """

    def __init__(self, tensors: list[torch.Tensor], dtype: torch.dtype, *, is_buffer: bool, fragment: int = 0) -> None:
        self.tensors = tensors
        self.fragment = fragment
        self.dtype = dtype
        self.is_buffer = is_buffer
        self.elements = sum(_real(tensor).numel() for tensor in tensors)
        gpus = [tensor.device for tensor in tensors if tensor.device.type == "cuda"]
        self.copies = pinned_copies_of(gpus[0]) if gpus else None
        self._staged: torch.Tensor | None = None
        """The values that stage() copied to the GPU."""
        self._spare: torch.Tensor | None = None
        """A tensor for the next values. Writing to new memory takes several times as long."""

    def gather(self) -> torch.Tensor:
        """Returns a copy of the tensors' values as one flat tensor."""
        values = self._flat_tensor()
        if self.copies is not None:
            self.copies.to_host((part, _real(tensor)) for part, tensor in self._parts(values))
            return values
        for part, tensor in self._parts(values):
            part.copy_(_real(tensor))
        return values

    def difference(self, outer: torch.Tensor) -> torch.Tensor:
        """Returns the values `outer` minus those of the tensors, as one flat tensor."""
        if self.copies is not None:
            values = self.gather()
            return torch.sub(outer, values, out=values)
        values = self._flat_tensor()
        for (part, tensor), (whole, _) in zip(self._parts(values), self._parts(outer)):
            torch.sub(whole, _real(tensor), out=part)
        return values

    def snapshot(self) -> Callable[[], torch.Tensor]:
        """Returns a function that returns the current values as one flat tensor. It may be called once, on any thread.

        Values on a GPU are first copied on the GPU, so that training can continue before they have reached the CPU.
        """
        copies = self.copies
        if copies is None:
            values = self.gather()
            return lambda: values
        kept = [torch.empty(self.elements, dtype=self.dtype, device=copies.device)]
        for part, tensor in self._parts(kept[0]):
            part.copy_(_real(tensor))
        fence = copies.fence()

        def on_the_cpu() -> torch.Tensor:
            values = self._flat_tensor()
            copies.to_host([(values, kept.pop())], fence)
            return values

        return on_the_cpu

    def recycle(self, values: torch.Tensor) -> None:
        """Keeps a tensor that gather(), difference() or snapshot() returned, whose values are no longer needed."""
        self._spare = values

    def stage(self, values: torch.Tensor) -> None:
        """Copies values to the GPU, for the next call of scatter() with the same values. May run on any thread."""
        if self.copies is not None:
            self._staged = self.copies.to_device(values)

    def discard_staged(self) -> None:
        self._staged = None

    def scatter(self, values: torch.Tensor, mixing: float = 0.0) -> None:
        """Merges values into the tensors: tensor ← α tensor + (1 − α) values, with α = `mixing`.

        Autograd does not track this change, because no graph needs the old values between steps.
        """
        staged, self._staged = self._staged, None
        if staged is not None and self.copies is not None:
            self.copies.used(staged)
            values = staged
        for part, tensor in self._parts(values):
            target = _real(tensor)
            new = part.to(target.device)
            if mixing:
                new = torch.mul(target.to(self.dtype), mixing).add_(new, alpha=1 - mixing)
            target.copy_(new)

    def collect(self) -> None:  # Tensors that are not sharded need no collective calls.
        """Gathers the values of a sharded model, for gather(). All ranks of the group must call this method."""

    def spread(self, device: torch.device, *, is_first: bool) -> None:
        """Sets the tensors on all ranks of a group to the first rank's values. All ranks must call this method.

        Args:
            device: The device that the group's collective calls use.
        """
        for run in runs_of(_real(tensor) for tensor in self.tensors):
            packed = packed_bytes(run).to(device)
            dist.broadcast(packed, src=0)
            if not is_first:
                unpack_bytes(packed, run)

    def release(self) -> None:  # Only a sharded group has gathered values to free.
        """Frees the values that collect() gathered."""

    def _flat_tensor(self) -> torch.Tensor:
        """Returns a flat tensor with any contents."""
        spare, self._spare = self._spare, None
        return large_buffers.zeros(self.elements, self.dtype) if spare is None else spare

    def _parts(self, values: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        start = 0
        for tensor in self.tensors:
            shape = _real(tensor).shape
            yield values[start : start + shape.numel()].view(shape), tensor
            start += shape.numel()


def flats_of(parameters: Iterable[torch.Tensor], buffers: Iterable[torch.Tensor], fragment: int = 0) -> list[Flat]:
    """Divides the trained parameters and floating-point buffers of a fragment by the dtype of their outer parameters.

    Other buffers are omitted.
    """
    found = []
    for is_buffer, tensors in ((False, list(parameters)), (True, list(buffers))):
        for dtype in (torch.float32, torch.float64):
            chosen = [tensor for tensor in tensors if _outer_dtype(tensor) is dtype]
            if any(tensor.numel() for tensor in chosen):
                found.append(Flat(chosen, dtype, is_buffer=is_buffer, fragment=fragment))
    return found


class OuterParameters:
    """The parameters θ and the momentum m of one group's outer optimizer, with the number of finished rounds.

    Only one thread at a time may change these values. The threads of a server send copies of them to other groups.
    """

    def __init__(self, flats: Sequence[Flat]) -> None:
        self.flats: Sequence[Flat] = flats
        self.theta: list[torch.Tensor] = []
        self.momentum: list[torch.Tensor] = []
        self.round = NOT_BEGUN
        self.changed = threading.Condition()
        """Guards θ, m and `round`, and is notified when they are replaced or stepped."""

    def numbers(self, fragment: int | None = None) -> list[int]:
        """Returns the numbers of a fragment's flat tensors, or of all flat tensors if `fragment` is None."""
        return [number for number, flat in enumerate(self.flats) if fragment is None or flat.fragment == fragment]

    def begin(self, round_: int = 0) -> None:
        """Sets the outer parameters to the parameters of the model, and the momentum to 0."""
        theta = [flat.gather() for flat in self.flats]
        self.load(theta, self.empty(), round_)

    def empty(self) -> list[torch.Tensor]:
        """Returns a tensor of zeros for each flat tensor."""
        return [large_buffers.zeros(flat.elements, flat.dtype) for flat in self.flats]

    def load(self, theta: list[torch.Tensor], momentum: list[torch.Tensor], round_: int) -> None:
        with self.changed:
            self.theta, self.momentum, self.round = theta, momentum, round_
            self.changed.notify_all()
        for flat in self.flats:
            flat.discard_staged()

    def copies(self) -> tuple[int, list[torch.Tensor], list[torch.Tensor]]:
        """Returns the number of the round, and copies of the outer parameters and momentum."""
        with self.changed:
            return self.round, [each.clone() for each in self.theta], [each.clone() for each in self.momentum]

    def differences(self, fragment: int | None = None) -> list[torch.Tensor]:
        """Returns the differences Δ_g = θ − θ_g between the outer parameters and this group's parameters."""
        return [self.flats[number].difference(self.theta[number]) for number in self.numbers(fragment)]

    def snapshot(self, fragment: int | None = None) -> Callable[[], list[torch.Tensor]]:
        """Returns a function that returns Δ_g of the current parameters, even if they change before it is called.

        It may be called once, on any thread, before the next step of this fragment.
        """
        parts = [(number, self.flats[number].snapshot()) for number in self.numbers(fragment)]

        def differences() -> list[torch.Tensor]:
            found = []
            for number, values_of in parts:
                values = values_of()
                found.append(torch.sub(self.theta[number], values, out=values))
            return found

        return differences

    def recycle(self, differences: Iterable[torch.Tensor], fragment: int | None = None) -> None:
        """Keeps the memory of differences whose values are no longer needed, for the next differences."""
        for number, values in zip(self.numbers(fragment), differences):
            self.flats[number].recycle(values)

    def stage(self, fragment: int | None = None) -> None:
        """Copies θ to the parameters' GPU before install() is called, so that training does not wait for the copy."""
        for number in self.numbers(fragment):
            self.flats[number].stage(self.theta[number])

    @torch.no_grad()  # type: ignore[untyped-decorator]  # mypy does not analyse torch.
    def step(self, average: Sequence[torch.Tensor], lr: float, momentum: float, fragment: int | None = None) -> None:
        """Takes a step of the outer optimizer and counts the round as finished. May overwrite `average`."""
        with self.changed:
            for number, delta in zip(self.numbers(fragment), average):
                theta, buffer = self.theta[number], self.momentum[number]
                if self.flats[number].is_buffer:
                    theta.sub_(delta)
                    continue
                if momentum:
                    buffer.mul_(momentum).add_(delta)
                    delta.add_(buffer, alpha=momentum)
                theta.add_(delta, alpha=-lr)
            self.round += 1
            self.changed.notify_all()

    @torch.no_grad()  # type: ignore[untyped-decorator]  # mypy does not analyse torch.
    def install(self, fragment: int | None = None, mixing: float = 0.0) -> None:
        """Merges the outer parameters into the model: θ_g ← α θ_g + (1 − α) θ, with α = `mixing`."""
        for number in self.numbers(fragment):
            self.flats[number].scatter(self.theta[number], mixing)

    def state(self) -> dict[str, Any]:
        """Returns copies of the outer parameters and momentum, for a checkpoint."""
        round_, theta, momentum = self.copies()
        return {"round": round_, "theta": theta, "momentum": momentum}


def _outer_dtype(tensor: torch.Tensor) -> torch.dtype | None:
    """Returns the dtype of a tensor's outer parameters, or None if the tensor's values cannot be averaged."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    return torch.float64 if tensor.dtype in (torch.float64, torch.complex128) else torch.float32


def _real(tensor: torch.Tensor) -> torch.Tensor:
    data = tensor.detach() if tensor.requires_grad else tensor
    return torch.view_as_real(data.data) if data.is_complex() else data.data
