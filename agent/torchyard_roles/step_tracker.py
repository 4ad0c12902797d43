"""Detects the beginning and end of a run's steps by hooks on the script's optimizers, models and loaders.

With one optimizer, a step of the run ends with the optimizer's step(). With several optimizers, a step lasts until the
next batch of the cluster's loader or, in a script without such a loader, until each optimizer has stepped. In a script
without an optimizer, a step ends at the next forward pass or batch after a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from torchyard_roles.model_optimizer_pairs import Pairs
    from torchyard_roles.strategies.strategy import Strategy
    from torchyard_roles.training_metrics import Progress


class StepTracker:
    """The tracker of one process's steps.

    Args:
        progress: Counts the steps.
        before_step: Called when a forward pass or an optimizer is about to begin a step, before `at_boundary`.
        at_boundary: Called between two steps. Its arguments are the number of finished steps, whether this is the first
            call since the last step ended, and whether a step begins now. It returns False if training has ended.
        after_step: Called when a step has ended.
    """

    def __init__(
        self,
        strategy: Strategy,
        progress: Progress,
        *,
        before_step: Callable[[], None],
        at_boundary: Callable[[int, bool, bool], bool],
        after_step: Callable[[], None],
    ) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        """All optimizers given to distribute()."""
        self.in_step = False
        self._strategy = strategy
        self._progress = progress
        self._before_step = before_step
        self._at_boundary = at_boundary
        self._after_step = after_step
        self._accumulated_by_hand = False
        """Whether gradients were accumulated since the last step, in a script without an optimizer."""
        self._stepped: set[int] = set()
        """The IDs of the optimizers that have stepped in the current step of the run."""
        self._has_loader = False
        """Whether a loader of the cluster marks the start of each step."""
        self._evaluations = 0
        self._boundary_of = -1
        """The last step for which `at_boundary` was called."""

    def watch(self, pairs: Pairs) -> None:
        """Installs the hooks on models and optimizers by which steps are detected."""
        from torchyard_roles.module_hooks import NoSync, before_forward
        from torchyard_roles.optimizer_hooks import after_step, before_step

        for each in pairs.optimizers:
            before_step(each, lambda *_: self._begin())
            after_step(each, self._optimizer_stepped)
        if pairs.updates_by_hand:
            for parameter in pairs.model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self._accumulated)
        for model in pairs.models:
            before_forward(model, self._before_forward)
            if not hasattr(model, "no_sync"):
                model.no_sync = NoSync(self._strategy.accumulating)

    def at_loader_request(self, more: bool) -> None:
        """Handles the script's request for a batch of the cluster's loader. `more` is false after the last batch."""
        self._has_loader = True
        self.end_pending()
        self._boundary(begins=more)

    def evaluate(self, begins: bool) -> None:
        """Handles the start or end of an evaluation. Forward passes during an evaluation do not begin a step."""
        self._evaluations += 1 if begins else -1

    def end_pending(self) -> None:
        """Ends the current step, if there is one, in a script with several optimizers or with none.

        In other scripts, the optimizer's step() ends the step of the run.
        """
        if self._stepped or self._accumulated_by_hand:
            self._end()

    def _boundary(self, *, begins: bool) -> None:
        if self.in_step or not self.optimizers:
            return
        step = self._progress.steps
        is_new, self._boundary_of = step != self._boundary_of, step
        if self._at_boundary(step, is_new, begins):
            self.in_step = begins

    def _before_forward(self) -> None:
        self._strategy.before_forward()
        if self._accumulated_by_hand and not self._has_loader:
            self._end()
        if not self._evaluations:
            self._begin()

    def _accumulated(self, _: torch.Tensor) -> None:
        self._accumulated_by_hand = True

    def _begin(self) -> None:
        if not self.in_step:
            self._before_step()
            self._boundary(begins=True)

    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepped.add(id(optimizer))
        if len(self.optimizers) == 1 or (not self._has_loader and len(self._stepped) == len(self.optimizers)):
            self._end()

    def _end(self) -> None:
        self._stepped.clear()
        self._progress.step()
        self.in_step = self._accumulated_by_hand = False
        self._after_step()
