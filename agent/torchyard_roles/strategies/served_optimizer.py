"""The script's own optimizer whose step() is taken by the servers.

It stays the object that the script made, of its own class: learning-rate schedulers, `state_dict`, `param_groups`, step
hooks, copies and torch.save() go on working. Its state is on the servers, so `state` stays empty here. Only the
attribute `step` is set, which torch leaves out of what it copies and pickles: a copy is a plain optimizer that steps by
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

Step = Callable[[torch.optim.Optimizer], None]


def hand_over(optimizer: torch.optim.Optimizer, step: Step) -> Callable[[], None]:
    """From now on `optimizer.step()` calls `step(optimizer)`, within its hooks.

    Returns its own, without hooks, for gradients that are unscaled: what a GradScaler tells it is kept from it.
    """
    own = type(optimizer).step
    plain = own.__wrapped__ if getattr(own, "hooked", False) else own  # torch wraps a class's step to call the hooks

    def shared_step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        step(self)
        self._opt_called = True  # for schedulers, which warn where no step came before theirs
        return loss

    hooked = torch.optim.Optimizer.profile_hook_step(shared_step)
    # Schedulers mark a step that they watch, whether they were made before distribute() or after it.
    hooked._wrapped_by_lr_sched = True
    vars(optimizer)["step"] = MethodType(hooked, optimizer)
    # GradScaler then leaves it to step() what to do about gradients that are not finite.
    vars(optimizer)["_step_supports_amp_scaling"] = True

    def own_step() -> None:
        told = {name: vars(optimizer).pop(name) for name in ("grad_scale", "found_inf") if name in vars(optimizer)}
        try:
            plain(optimizer)
        finally:
            vars(optimizer).update(told)  # which the scaler takes away itself

    return own_step
