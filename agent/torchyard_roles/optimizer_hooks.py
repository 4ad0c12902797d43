"""Hooks that run exactly once in each step of an optimizer, even if its step() calls that of its base class.

torch runs all hooks at the beginning and end of each class's step(). If a subclass's step() calls super().step(), and
instances of the base class exist too, each of torch's hooks therefore runs twice in a step. A step would then be
counted twice, and gradients averaged twice.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable

from torch.optim import optimizer as torch_optimizer

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle


def before_step(optimizer: Optimizer, hook: Callable[..., Any]) -> RemovableHandle:
    """Calls `hook(optimizer, arguments, named)` before each step of the optimizer, as torch's own pre-hooks do."""
    return optimizer.register_step_pre_hook(_once(hook))


def after_step(optimizer: Optimizer, hook: Callable[..., None]) -> RemovableHandle:
    """Calls `hook(optimizer, arguments, named)` after each step of the optimizer."""
    return optimizer.register_step_post_hook(_once(hook))


def before_every_step(hook: Callable[..., None]) -> RemovableHandle:
    """Calls `hook(optimizer, arguments, named)` before each step of every optimizer of this process."""
    return torch_optimizer.register_optimizer_step_pre_hook(_once(hook))


def after_every_step(hook: Callable[..., None]) -> RemovableHandle:
    """Calls `hook(optimizer, arguments, named)` after each step of every optimizer of this process."""
    return torch_optimizer.register_optimizer_step_post_hook(_once(hook))


def _once(hook: Callable[..., Any]) -> Callable[..., Any]:
    def call(optimizer: Optimizer, arguments: Any, named: Any) -> Any:
        if not _is_nested(optimizer):
            return hook(optimizer, arguments, named)
        return None

    return call


def _is_nested(optimizer: Optimizer) -> bool:
    """Returns whether the step() that runs the current hook was called by another step() of the same optimizer.

    torch's wrapper of step() calls the hooks, so the outer frames of the stack are searched for another call of the
    wrapper. A counter of nested calls would be wrong after a step() that raised an exception, because no post-hook runs
    in this case.
    """
    wrapper = sys._getframe(2)
    frame = wrapper.f_back
    while frame is not None:
        if frame.f_code is wrapper.f_code and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False
