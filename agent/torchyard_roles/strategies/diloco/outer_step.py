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

NOT_BEGUN = -1


class Flat:
    """Tensors of a model whose values are exchanged as one contiguous tensor on the CPU."""

    def __init__(self, tensors: list[torch.Tensor], dtype: torch.dtype, *, is_buffer: bool) -> None:
        self.tensors = tensors
        self.dtype = dtype
        self.is_buffer = is_buffer
        self.elements = sum(_real(tensor).numel() for tensor in tensors)

    def gather(self) -> torch.Tensor:
        """Return a copy of the values."""
        values = torch.empty(self.elements, dtype=self.dtype, device="cpu")
        for part, tensor in self._parts(values):
            part.copy_(_real(tensor))
        return values

    def scatter(self, values: torch.Tensor) -> None:
        """Write values to the tensors. Version counters stay unchanged, since no graph exists between two steps."""
        for part, tensor in self._parts(values):
            _real(tensor).copy_(part)

    def _parts(self, values: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        start = 0
        for tensor in self.tensors:
            shape = _real(tensor).shape
            yield values[start : start + shape.numel()].view(shape), tensor
            start += shape.numel()


def flats_of(parameters: Iterable[torch.Tensor], buffers: Iterable[torch.Tensor]) -> list[Flat]:
    """Return the trained parameters and the floating-point buffers, by the dtype of their outer parameters."""
    found = []
    for is_buffer, tensors in ((False, list(parameters)), (True, list(buffers))):
        for dtype in (torch.float32, torch.float64):
            chosen = [tensor for tensor in tensors if _outer_dtype(tensor) is dtype]
            if any(tensor.numel() for tensor in chosen):
                found.append(Flat(chosen, dtype, is_buffer=is_buffer))
    return found


class OuterParameters:
    """θ and m of one group, with the number of finished rounds.

    The training thread changes these values, and a server sends copies to returning groups.
    """

    def __init__(self, flats: Sequence[Flat]) -> None:
        self.flats = flats
        self.theta: list[torch.Tensor] = []
        self.momentum: list[torch.Tensor] = []
        self.round = NOT_BEGUN
        self.changed = threading.Condition()
        """Guards all fields above; notified when `round` changes."""

    def begin(self, round_: int = 0) -> None:
        """Set θ to the parameters of the model, and m to 0."""
        theta = [flat.gather() for flat in self.flats]
        self.load(theta, self.empty(), round_)

    def empty(self) -> list[torch.Tensor]:
        """Return a tensor of zeros for each flat tensor."""
        return [torch.zeros(flat.elements, dtype=flat.dtype, device="cpu") for flat in self.flats]

    def load(self, theta: list[torch.Tensor], momentum: list[torch.Tensor], round_: int) -> None:
        with self.changed:
            self.theta, self.momentum, self.round = theta, momentum, round_
            self.changed.notify_all()

    def copies(self) -> tuple[int, list[torch.Tensor], list[torch.Tensor]]:
        """Return the round, and copies of θ and m."""
        with self.changed:
            return self.round, [each.clone() for each in self.theta], [each.clone() for each in self.momentum]

    def differences(self) -> list[torch.Tensor]:
        """Return Δ_g = θ − θ_g of this group."""
        found = []
        for flat, theta in zip(self.flats, self.theta):
            values = flat.gather()
            found.append(torch.sub(theta, values, out=values))
        return found

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not followed by mypy
    def step(self, average: Sequence[torch.Tensor], lr: float, momentum: float) -> None:
        """Take a step of the outer optimizer, and finish the round. `average` is overwritten."""
        with self.changed:
            for flat, theta, buffer, delta in zip(self.flats, self.theta, self.momentum, average):
                if flat.is_buffer:
                    theta.sub_(delta)
                    continue
                if momentum:
                    buffer.mul_(momentum).add_(delta)
                    delta.add_(buffer, alpha=momentum)
                theta.add_(delta, alpha=-lr)
            self.round += 1
            self.changed.notify_all()

    def install(self) -> None:
        """Write θ to the model: θ_g ← θ."""
        for flat, theta in zip(self.flats, self.theta):
            flat.scatter(theta)

    def state(self) -> dict[str, Any]:
        """Return copies for a checkpoint."""
        round_, theta, momentum = self.copies()
        return {"round": round_, "theta": theta, "momentum": momentum}


def _outer_dtype(tensor: torch.Tensor) -> torch.dtype | None:
    """Return the dtype of a tensor's outer parameters; None for values that cannot be averaged."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    return torch.float64 if tensor.dtype in (torch.float64, torch.complex128) else torch.float32


def _real(tensor: torch.Tensor) -> torch.Tensor:
    data = tensor.detach() if tensor.requires_grad else tensor
    return torch.view_as_real(data.data) if data.is_complex() else data.data
