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
from typing import Any

import torch
import torch.distributed as dist

NOT_BEGUN = -1


class Flat:
    """Tensors of a model whose values are exchanged as one contiguous tensor on the CPU."""

    def __init__(self, tensors: list[torch.Tensor], dtype: torch.dtype, *, is_buffer: bool, fragment: int = 0) -> None:
        self.tensors = tensors
        self.fragment = fragment
        self.dtype = dtype
        self.is_buffer = is_buffer
        self.elements = sum(_real(tensor).numel() for tensor in tensors)

    def gather(self) -> torch.Tensor:
        """Returns a copy of the tensors' values as one flat tensor."""
        values = torch.empty(self.elements, dtype=self.dtype, device="cpu")
        for part, tensor in self._parts(values):
            part.copy_(_real(tensor))
        return values

    def scatter(self, values: torch.Tensor) -> None:
        """Writes values to the tensors.

        Autograd does not track this, because between steps no graph needs the old values.
        """
        for part, tensor in self._parts(values):
            _real(tensor).copy_(part)

    def collect(self) -> None:  # Tensors that are not sharded need no collective calls.
        """If the group shards its model, gathers the values for gather().

        All ranks of the group must call this method.
        """

    def spread(self, device: torch.device, *, is_first: bool) -> None:
        """Sets the tensors on all ranks of a group to the first rank's values. All ranks must call this method.

        Args:
            device: The device that the group's collective calls use.
        """
        values = self.gather().to(device)
        dist.broadcast(values, src=0)
        if not is_first:
            self.scatter(values)

    def release(self) -> None:  # Only a sharded group has gathered values to free.
        """Frees the values that collect() has gathered."""

    def _parts(self, values: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        start = 0
        for tensor in self.tensors:
            shape = _real(tensor).shape
            yield values[start : start + shape.numel()].view(shape), tensor
            start += shape.numel()


def flats_of(parameters: Iterable[torch.Tensor], buffers: Iterable[torch.Tensor], fragment: int = 0) -> list[Flat]:
    """Divides the trained parameters and floating-point buffers of a fragment by the dtype of their outer parameters.

    Other buffers are left out.
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
        """Guards θ, m and `round`; notified when they are replaced or stepped."""

    def numbers(self, fragment: int | None = None) -> list[int]:
        """Returns the numbers of a fragment's flat tensors, or of all flat tensors if `fragment` is None."""
        return [number for number, flat in enumerate(self.flats) if fragment is None or flat.fragment == fragment]

    def begin(self, round_: int = 0) -> None:
        """Sets the outer parameters to the parameters of the model, and the momentum to 0."""
        theta = [flat.gather() for flat in self.flats]
        self.load(theta, self.empty(), round_)

    def empty(self) -> list[torch.Tensor]:
        """Returns a tensor of zeros for each flat tensor."""
        return [torch.zeros(flat.elements, dtype=flat.dtype, device="cpu") for flat in self.flats]

    def load(self, theta: list[torch.Tensor], momentum: list[torch.Tensor], round_: int) -> None:
        with self.changed:
            self.theta, self.momentum, self.round = theta, momentum, round_
            self.changed.notify_all()

    def copies(self) -> tuple[int, list[torch.Tensor], list[torch.Tensor]]:
        """Returns the number of the round, and copies of the outer parameters and momentum."""
        with self.changed:
            return self.round, [each.clone() for each in self.theta], [each.clone() for each in self.momentum]

    def differences(self, fragment: int | None = None) -> list[torch.Tensor]:
        """Returns the differences Δ_g = θ − θ_g between the outer parameters and this group's parameters."""
        found = []
        for number in self.numbers(fragment):
            values = self.flats[number].gather()
            found.append(torch.sub(self.theta[number], values, out=values))
        return found

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
            flat, theta = self.flats[number], self.theta[number]
            flat.scatter(flat.gather().mul_(mixing).add_(theta, alpha=1 - mixing) if mixing else theta)

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
