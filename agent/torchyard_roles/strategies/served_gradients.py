"""What a worker pushes: its gradients of a step, or the sum of those since its last push; finite ones only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchyard_roles.errors import NotFinite, UsageProblem
from torchyard_roles.strategies.finite import all_finite


class Gradients:
    """Of a worker's parameters, called `names`. `skips`: what is not finite counts for nothing, instead of raising.

    `sums`: what is pushed is the sum over several steps.
    """

    def __init__(
        self,
        worker: str,
        optimizer: torch.optim.Optimizer,
        names: Sequence[str],
        parameters: Sequence[torch.nn.Parameter],
        *,
        skips: bool,
        sums: bool,
    ) -> None:
        self._worker = worker
        self._optimizer: Any = optimizer
        self._names = names
        self._parameters = parameters
        self._skips = skips
        self._sums: list[torch.Tensor | None] | None = [None] * len(parameters) if sums else None

    def prepare(self, step: int) -> bool:
        """Whether this step's count for nothing. Raises NotFinite where the topology wants that."""
        found = getattr(self._optimizer, "found_inf", None)  # GradScaler's, for the time of this step
        if found is not None:
            if bool(found):
                return True
            scale = getattr(self._optimizer, "grad_scale", None)
            if scale is not None:  # the script has not called its unscale_()
                for parameter in self._parameters:
                    if parameter.grad is not None:
                        parameter.grad.div_(scale.to(parameter.grad.device))
        if self.are_finite():
            return False
        if self._skips:
            return True
        name = next(
            name
            for name, parameter in zip(self._names, self._parameters)
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all())
        )
        raise NotFinite(
            f"The gradients of {self._worker} in step {step} are not finite, first in {name}.",
            "Lower the learning rate or clip the gradients, or set strategy.on_nan to skip.",
        )

    def prepare_void(self, step: int) -> None:
        """The same for what are known not to be finite."""
        if not self._skips and not bool(getattr(self._optimizer, "found_inf", None) or False):
            self.prepare(step)

    def check_unscaled(self) -> None:
        """Raises UsageProblem where those that were clipped had a GradScaler's scale in them."""
        if getattr(self._optimizer, "grad_scale", None) is not None:
            raise UsageProblem(
                "clip_gradients() was called on gradients that a GradScaler has scaled.",
                "Call scaler.unscale_(optimizer) before it.",
            )

    def are_finite(self) -> bool:
        """This worker's own. Raises UsageProblem for sparse ones."""
        gradients = [(name, p.grad) for name, p in zip(self._names, self._parameters) if p.grad is not None]
        for name, gradient in gradients:
            if gradient.is_sparse:
                raise UsageProblem(
                    f"The gradient of {name} is sparse, and parameter servers take dense ones only.",
                    "Make the embedding with sparse=False.",
                )
        return bool(all_finite([gradient for _, gradient in gradients]))

    def now(self, *, void: bool = False) -> list[torch.Tensor | None]:
        """This step's, one a parameter."""
        return [None if void else parameter.grad for parameter in self._parameters]

    def add(self, *, void: bool) -> None:
        """This step's to those that are held back."""
        assert self._sums is not None
        for number, gradient in enumerate(self.now(void=void)):
            if gradient is not None:
                before = self._sums[number]
                self._sums[number] = gradient.detach().clone() if before is None else before.add_(gradient)

    @property
    def holds_back(self) -> bool:
        """Whether there are gradients that were not pushed yet."""
        return self._sums is not None and any(each is not None for each in self._sums)

    def take(self) -> list[torch.Tensor | None]:
        """What was held back, to be pushed now: the caller's from here on."""
        assert self._sums is not None
        taken, self._sums = self._sums, [None] * len(self._sums)
        return taken
