"""The script's own optimizer whose step() is taken by the servers.

It stays the object that the script made, and an instance of its class: learning-rate schedulers, `state_dict`,
`param_groups` and step hooks go on working. Its state is on the servers, so `state` stays empty here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[torch.optim.Optimizer], None]


def hand_over(optimizer: torch.optim.Optimizer, step: Step) -> Callable[[], None]:
    """From now on `optimizer.step()` calls `step(optimizer)`, within its hooks.

    Returns its own, without hooks, for gradients that are unscaled: what a GradScaler tells it is kept from it.
    """
    kind = type(optimizer)
    own = kind.step
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
    hooked.hooked = True
    # Schedulers mark a step that they watch, whether they were made before distribute() or after it.
    hooked._wrapped_by_lr_sched = True
    optimizer.__class__ = type(
        kind.__name__,
        (kind,),
        {
            "__module__": kind.__module__,
            "__doc__": kind.__doc__,
            "step": hooked,
            # GradScaler then leaves it to step() what to do about gradients that are not finite.
            "_step_supports_amp_scaling": True,
        },
    )
    vars(optimizer).pop("step", None)  # a scheduler's, made before distribute()

    def own_step() -> None:
        told = {name: vars(optimizer).pop(name) for name in ("grad_scale", "found_inf") if name in vars(optimizer)}
        try:
            plain(optimizer)
        finally:
            vars(optimizer).update(told)  # which the scaler takes away itself

    return own_step
