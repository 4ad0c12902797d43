"""Hooks that run exactly once in each step of an optimizer, even if its step() calls that of its base class.

torch wraps the step() of each optimizer class that has instances, and runs all hooks at the beginning and end of each
wrapper. If a subclass's step() calls super().step(), and the base class has instances too, each hook therefore runs
twice in a step. A step would then be counted twice, and gradients averaged twice.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable

from torch.optim import optimizer as torch_optimizer

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle


def before_step(optimizer: Optimizer, hook: Callable[..., Any]) -> RemovableHandle:
    """Registers `hook(optimizer, arguments, named)` to be called before each step of the optimizer.

    As with torch's own pre-hooks, the hook may return replaced arguments of step().
    """
    return optimizer.register_step_pre_hook(_once(hook))


def after_step(optimizer: Optimizer, hook: Callable[..., None]) -> RemovableHandle:
    """Registers `hook(optimizer, arguments, named)` to be called after each step of the optimizer."""
    return optimizer.register_step_post_hook(_once(hook))


def before_every_step(hook: Callable[..., None]) -> RemovableHandle:
    """Registers `hook(optimizer, arguments, named)` to be called before each step of any optimizer of this process."""
    return torch_optimizer.register_optimizer_step_pre_hook(_once(hook))


def after_every_step(hook: Callable[..., None]) -> RemovableHandle:
    """Registers `hook(optimizer, arguments, named)` to be called after each step of any optimizer of this process."""
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
