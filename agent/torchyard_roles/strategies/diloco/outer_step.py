"""The outer parameters of DiLoCo and the step of the outer optimizer.

A group with the parameters θ_g contributes the pseudo-gradients (outer gradients) Δ_g = θ − θ_g, where θ are the outer
parameters. The weighted average Δ over all groups is the gradient of the outer optimizer, which is SGD with learning
rate η and Nesterov momentum μ, as in torch.optim.SGD:

    m ← μ m + Δ ;  θ ← θ − η (Δ + μ m)

θ and m are on the CPU, in float64 for parameters of double precision, and in float32 for all others. Floating-point
buffers are averaged without an outer optimizer.
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
        copies: Copies values between the tensors' GPU and the CPU, or None if the tensors are on the CPU.
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
        """The values that stage() copied to the GPU for the next scatter()."""
        self._spare: torch.Tensor | None = None
        """A flat tensor whose memory is reused, because writing to newly allocated memory takes much longer."""

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
        """Returns `outer` minus the tensors' values, as one flat tensor."""
        if self.copies is not None:
            values = self.gather()
            return torch.sub(outer, values, out=values)
        values = self._flat_tensor()
        for (part, tensor), (whole, _) in zip(self._parts(values), self._parts(outer)):
            torch.sub(whole, _real(tensor), out=part)
        return values

    def snapshot(self) -> Callable[[], torch.Tensor]:
        """Captures the tensors' current values, and returns a function that returns these as one flat tensor.

        The returned function may be called once, on any thread. Values on a GPU are first copied within the GPU, so
        that training can continue before the values have reached the CPU.
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
        """Keeps the memory of `values` for the next flat tensor that gather(), difference() or snapshot() returns."""
        self._spare = values

    def stage(self, values: torch.Tensor) -> None:
        """Copies `values` to the GPU ahead of the next scatter(), which must be called with the same values.

        Does nothing if the tensors are on the CPU. May run on any thread.
        """
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
        """Gathers the values of sharded tensors on the group's first rank. All ranks of the group must call this."""

    def spread(self, device: torch.device, *, is_first: bool) -> None:
        """Broadcasts the first rank's values of the tensors to all ranks of the group. All ranks must call this method.

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
        """Returns a flat tensor for all values, with arbitrary contents."""
        spare, self._spare = self._spare, None
        return large_buffers.zeros(self.elements, self.dtype) if spare is None else spare

    def _parts(self, values: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        start = 0
        for tensor in self.tensors:
            shape = _real(tensor).shape
            yield values[start : start + shape.numel()].view(shape), tensor
            start += shape.numel()


def flats_of(parameters: Iterable[torch.Tensor], buffers: Iterable[torch.Tensor], fragment: int = 0) -> list[Flat]:
    """Returns a fragment's flat tensors: for each outer dtype, one of the parameters and one of the buffers, if any.

    Buffers whose values are neither floating-point nor complex are omitted.
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

    Only one thread at a time may change these values. Server threads send copies of the values to other groups.
    """

    def __init__(self, flats: Sequence[Flat]) -> None:
        self.flats: Sequence[Flat] = flats
        self.theta: list[torch.Tensor] = []
        self.momentum: list[torch.Tensor] = []
        self.round = NOT_BEGUN
        self.changed = threading.Condition()
        """Guards θ, m and `round`, and is notified when load() or step() changes these."""

    def numbers(self, fragment: int | None = None) -> list[int]:
        """Returns the indices in `flats` of a fragment's flat tensors, or all indices if `fragment` is None."""
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
        """Returns the number of finished rounds, and copies of the outer parameters and momentum."""
        with self.changed:
            return self.round, [each.clone() for each in self.theta], [each.clone() for each in self.momentum]

    def differences(self, fragment: int | None = None) -> list[torch.Tensor]:
        """Returns this group's pseudo-gradients Δ_g = θ − θ_g: the outer parameters minus the group's parameters."""
        return [self.flats[number].difference(self.theta[number]) for number in self.numbers(fragment)]

    def snapshot(self, fragment: int | None = None) -> Callable[[], list[torch.Tensor]]:
        """Captures the group's current parameters, and returns a function that computes their pseudo-gradients Δ_g.

        The returned function may be called once, on any thread, before the fragment's next outer step.
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
        """Keeps the memory of pseudo-gradients that are no longer needed, for the next pseudo-gradients."""
        for number, values in zip(self.numbers(fragment), differences):
            self.flats[number].recycle(values)

    def stage(self, fragment: int | None = None) -> None:
        """Copies θ to the parameters' GPU before install() is called, so that training does not wait for the copy."""
        for number in self.numbers(fragment):
            self.flats[number].stage(self.theta[number])

    @torch.no_grad()  # type: ignore[untyped-decorator]  # mypy does not analyse torch.
    def step(self, average: Sequence[torch.Tensor], lr: float, momentum: float, fragment: int | None = None) -> None:
        """Takes an outer step with the averaged pseudo-gradients, and counts the round. May overwrite `average`."""
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
        """Returns the number of finished rounds and copies of the outer parameters and momentum, for a checkpoint."""
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
