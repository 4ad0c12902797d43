"""The gradients that a worker pushes: the gradients of one step, or their sum over all steps since the last push."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchyard_roles.errors import NotFinite, UsageProblem
from torchyard_roles.strategies.finite_gradients import all_finite

Marks = dict[int, tuple[torch.Tensor, int]]
"""Gradients and their version counters, by parameter number, for the detection of later changes."""

_MARK = "_accumulated_at"
"""Attribute of a gradient that holds its version counter after the last accumulation."""


class LocalGradientGuard:
    """Detects changes of gradients and parameters between backward() and step() in a group of several workers.

    The servers average the gradients in step(). Until then `.grad` contains local gradients, so a change such as
    clipping has a different result than it would have on averaged gradients. Such changes are detected by the version
    counters of the gradients. The version counters of parameters show whether a parameter was changed for a second
    backward pass and then restored.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer: Any = optimizer
        self._watched: dict[int, tuple[str, torch.nn.Parameter]] = {}
        self._versions: dict[int, int] = {}
        """Version counters of the parameters at the first gradient of this step."""

    def watch(self, names: Sequence[str], parameters: Sequence[torch.nn.Parameter]) -> None:
        """Starts watching the parameters that are not yet watched."""
        for name, parameter in zip(names, parameters):
            if id(parameter) not in self._watched:
                self._watched[id(parameter)] = name, parameter
                parameter.register_post_accumulate_grad_hook(self._accumulated)

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if not self._versions:
            self._versions = {key: each._version for key, (_, each) in self._watched.items()}
        setattr(parameter.grad, _MARK, parameter.grad._version)

    def installed(self) -> None:
        """Accepts the current parameters, which have been received from the servers, as unchanged.

        If the script has several pairs, one pair's step may receive parameters after another pair's gradients were
        computed.
        """
        if self._versions:
            self._versions = {key: each._version for key, (_, each) in self._watched.items()}

    def allow(self) -> None:
        """Accepts the current gradients, which clip_gradients() has changed, as unchanged."""
        for _, parameter in self._watched.values():
            if hasattr(parameter.grad, _MARK):
                setattr(parameter.grad, _MARK, parameter.grad._version)

    def check(self, changed: Callable[[], Sequence[int]], *, may_be_unscaled: bool = False) -> None:
        """Raises UsageProblem if gradients have changed, or parameters have changed without being sent to the servers.

        Args:
            changed: Returns the numbers of the parameters that have changed since the last step. These are sent to the
                servers. Called only if a version counter has changed.
            may_be_unscaled: Whether a GradScaler may have unscaled the gradients. Only step() knows this for certain.
        """
        found = getattr(self._optimizer, "found_inf", None) is not None
        is_unscaled = found and getattr(self._optimizer, "grad_scale", None) is None
        more = {0, 1} if may_be_unscaled else {int(is_unscaled)}
        versions, self._versions = self._versions, {}
        for number, (key, (name, parameter)) in enumerate(self._watched.items()):
            gradient = parameter.grad
            mark = getattr(gradient, _MARK, None)
            is_touched = gradient is not None and mark is not None and gradient._version - mark not in more
            if is_touched and bool(gradient.any()):  # Setting gradients to zeros, as zero_grad() does, is allowed.
                raise UsageProblem(
                    f"The gradient of {name} was changed between backward() and step(), where it is not averaged "
                    "yet: the parameter servers average gradients in the step.",
                    "Clip with cluster.clip_gradients(), and scale the loss instead of its gradients; or set "
                    "strategy.kind to all_reduce.",
                )
            is_moved = versions.get(key, parameter._version) != parameter._version
            if is_moved and number not in changed():
                raise UsageProblem(
                    f"The parameter {name} was changed and changed back between backward() and step(), by gradients "
                    "that are not averaged yet: the parameter servers average gradients in the step.",
                    "Set strategy.kind to all_reduce, where gradients are averages after backward().",
                )


class Gradients:
    """The gradients of one pair on one worker.

    Args:
        names, parameters: The names and parameters of the worker's pair. Parameters may be added later.
        skips: If True, steps whose gradients are not finite are skipped. If False, such gradients raise NotFinite.
        sums: Whether sums of gradients over several steps are pushed.
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
        self._sums: dict[int, torch.Tensor] | None = {} if sums else None

    def prepare(self, step: int) -> bool:
        """Unscales and checks the gradients of this step, and returns whether the step must be skipped.

        Raises NotFinite if gradients are not finite, unless `skips` is true.
        """
        found = getattr(self._optimizer, "found_inf", None)  # A GradScaler sets this attribute only during the step.
        if found is not None:
            if bool(found):
                return True
            scale = getattr(self._optimizer, "grad_scale", None)
            if scale is not None:  # The script has not called unscale_() before the step.
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
        """Handles gradients that are not finite: raises NotFinite unless this object or a GradScaler skips the step."""
        if not self._skips and not bool(getattr(self._optimizer, "found_inf", None) or False):
            self.prepare(step)

    def check_unscaled(self) -> None:
        """Raises UsageProblem if a GradScaler had not unscaled the gradients when they were clipped."""
        if getattr(self._optimizer, "grad_scale", None) is not None:
            raise UsageProblem(
                "clip_gradients() was called on gradients that a GradScaler has scaled.",
                "Call scaler.unscale_(optimizer) before it.",
            )

    def are_finite(self) -> bool:
        """Returns whether the local gradients are finite. Raises UsageProblem if a gradient is sparse."""
        gradients = [(name, p.grad) for name, p in zip(self._names, self._parameters) if p.grad is not None]
        for name, gradient in gradients:
            if gradient.is_sparse:
                raise UsageProblem(
                    f"The gradient of {name} is sparse, and parameter servers take dense ones only.",
                    "Make the embedding with sparse=False.",
                )
        return bool(all_finite([gradient for _, gradient in gradients]))

    def now(self, *, void: bool = False) -> list[torch.Tensor | None]:
        """Returns the gradients of this step, one per parameter. If `void` is true, each gradient is None."""
        return [None if void else parameter.grad for parameter in self._parameters]

    def marks(self) -> Marks:
        """Returns the current gradients and their version counters, for are_marked() and are_others()."""
        return {n: (each, each._version) for n, each in enumerate(self.now()) if each is not None}

    def are_marked(self, marks: Marks) -> bool:
        """Returns whether the gradients are still those in `marks` and have not changed."""
        now = self.marks()
        return now.keys() == marks.keys() and all(
            each is marks[number][0] and version == marks[number][1] for number, (each, version) in now.items()
        )

    def are_others(self, marks: Marks) -> bool:
        """Returns whether every gradient in `marks` has been replaced by another gradient."""
        return not any(number in marks and each is marks[number][0] for number, (each, _) in self.marks().items())

    def add(self, *, void: bool) -> None:
        """Adds the gradients of this step to the pending sum."""
        assert self._sums is not None
        for number, gradient in enumerate(self.now(void=void)):
            if gradient is not None:
                before = self._sums.get(number)
                self._sums[number] = gradient.detach().clone() if before is None else before.add_(gradient)

    @property
    def holds_back(self) -> bool:
        """Whether there is a sum of gradients that has not been pushed."""
        return bool(self._sums)

    def take(self) -> list[torch.Tensor | None]:
        """Removes and returns the pending sum: one tensor per parameter, or None for a parameter without a gradient."""
        assert self._sums is not None
        taken, self._sums = self._sums, {}
        return [taken.get(number) for number in range(len(self._parameters))]


class ClippedGradients:
    """Gradients that clip_gradients() or clip_values() has clipped, and that must not change until the step."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._marks: Marks = {}
        self._limit: float | None = None

    def mark(self) -> None:
        """Records the current gradients, so that later changes can be detected."""
        self._marks = self._gradients.marks()

    def limit(self, value: float) -> None:
        """Sets a limit for the elements of the next step's mean gradient. The smallest of several limits is used."""
        if self._limit is not None and self._gradients.are_marked(self._marks):
            value = min(value, self._limit)
        self._limit = value
        self.mark()

    def take_limit(self) -> float | None:
        """Removes and returns the limit for this step, or None if there is none or all gradients have been replaced.

        Raises UsageProblem if gradients have changed since limit() was called.
        """
        limit, self._limit = self._limit, None
        if limit is None:
            return None
        if self._gradients.are_others(self._marks) and not self._gradients.are_marked(self._marks):
            self._marks = {}
            return None
        self.check()
        return limit

    def check(self) -> None:
        """Raises UsageProblem if the gradients have changed since mark(), or were not unscaled by a GradScaler."""
        marks, self._marks = self._marks, {}
        if not self._gradients.are_marked(marks):
            raise UsageProblem(
                "Gradients were changed between clip_gradients() and optimizer.step().",
                "Call it right before the step; of several optimizers, name the one that steps next: "
                "clip_gradients(1.0, optimizer=…).",
            )
        self._gradients.check_unscaled()
