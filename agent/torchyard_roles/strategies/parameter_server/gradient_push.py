"""What a worker pushes: its gradients of a step, or the sum of those since its last push; finite ones only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchyard_roles.errors import NotFinite, UsageProblem
from torchyard_roles.strategies.finite_gradients import all_finite

Marks = dict[int, tuple[torch.Tensor, int]]
"""By the parameter's number, its gradient and that one's version counter."""

_MARK = "_accumulated_at"
"""Attribute of a gradient: its version counter when it was accumulated last."""


class Untouched:
    """Holds what a script may not do between backward() and step() in a group of several workers.

    There the servers average in the step: a script that reads or changes `.grad` before it has the worker's own, and
    would go another way than with averages. Clipping and the like are found by the gradients' version counters, and
    parameters that were moved for another backward pass and brought back by the parameters'.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer: Any = optimizer
        self._watched: dict[int, tuple[str, torch.nn.Parameter]] = {}
        self._versions: dict[int, int] = {}
        """Of the parameters, when this step's first gradient came."""

    def watch(self, names: Sequence[str], parameters: Sequence[torch.nn.Parameter]) -> None:
        """From now on. Those that are watched already stay so."""
        for name, parameter in zip(names, parameters):
            if id(parameter) not in self._watched:
                self._watched[id(parameter)] = name, parameter
                parameter.register_post_accumulate_grad_hook(self._accumulated)

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if not self._versions:
            self._versions = {key: each._version for key, (_, each) in self._watched.items()}
        setattr(parameter.grad, _MARK, parameter.grad._version)

    def installed(self) -> None:
        """The parameters have come from the servers, which may be between a backward pass and its step: the gradients
        that another pair's loss has left here are old ones."""
        if self._versions:
            self._versions = {key: each._version for key, (_, each) in self._watched.items()}

    def allow(self) -> None:
        """The gradients are meant to be as they are now."""
        for _, parameter in self._watched.values():
            if hasattr(parameter.grad, _MARK):
                setattr(parameter.grad, _MARK, parameter.grad._version)

    def check(self, changed: Callable[[], Sequence[int]], *, may_be_unscaled: bool = False) -> None:
        """Raises UsageProblem. `changed` gives the numbers of the parameters that hold something else than after the
        last step: the servers are told those, and they are asked for only where a version counter says so.
        `may_be_unscaled`: outside step() a GradScaler does not say whether it was asked."""
        found = getattr(self._optimizer, "found_inf", None) is not None
        is_unscaled = found and getattr(self._optimizer, "grad_scale", None) is None
        more = {0, 1} if may_be_unscaled else {int(is_unscaled)}
        versions, self._versions = self._versions, {}
        for number, (key, (name, parameter)) in enumerate(self._watched.items()):
            gradient = parameter.grad
            mark = getattr(gradient, _MARK, None)
            is_touched = gradient is not None and mark is not None and gradient._version - mark not in more
            if is_touched and bool(gradient.any()):  # zero_grad() may leave zeros
                raise UsageProblem(
                    f"The gradient of {name} was changed between backward() and step(), but it is this worker's own "
                    "there: the parameter servers average in the step.",
                    "Clip by cluster.clip_gradients(), and scale the loss instead of its gradients; or set "
                    "strategy.kind to all_reduce.",
                )
            is_moved = versions.get(key, parameter._version) != parameter._version
            if is_moved and number not in changed():
                raise UsageProblem(
                    f"The parameter {name} was changed and changed back between backward() and step(), by gradients "
                    "that are this worker's own there: the parameter servers average in the step.",
                    "Set strategy.kind to all_reduce, where gradients are averages after backward().",
                )


class Gradients:
    """Of a worker's parameters, called `names`; both may grow.

    `skips`: what is not finite counts for nothing, instead of raising. `sums`: what is pushed is the sum over several
    steps.
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

    def marks(self) -> Marks:
        """This step's, to be compared with those of later."""
        return {n: (each, each._version) for n, each in enumerate(self.now()) if each is not None}

    def are_marked(self, marks: Marks) -> bool:
        """Whether they still are those of marks(), unchanged."""
        now = self.marks()
        return now.keys() == marks.keys() and all(
            each is marks[number][0] and version == marks[number][1] for number, (each, version) in now.items()
        )

    def are_others(self, marks: Marks) -> bool:
        """Whether none of those of marks() is left."""
        return not any(number in marks and each is marks[number][0] for number, (each, _) in self.marks().items())

    def add(self, *, void: bool) -> None:
        """This step's to those that are held back."""
        assert self._sums is not None
        for number, gradient in enumerate(self.now(void=void)):
            if gradient is not None:
                before = self._sums.get(number)
                self._sums[number] = gradient.detach().clone() if before is None else before.add_(gradient)

    @property
    def holds_back(self) -> bool:
        """Whether there are gradients that were not pushed yet."""
        return bool(self._sums)

    def take(self) -> list[torch.Tensor | None]:
        """What was held back, to be pushed now: the caller's from here on."""
        assert self._sums is not None
        taken, self._sums = self._sums, {}
        return [taken.get(number) for number in range(len(self._parameters))]
