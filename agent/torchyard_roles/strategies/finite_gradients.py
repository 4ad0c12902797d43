"""The check for NaN and infinite gradients before each step (`strategy.on_nan`).

Gradients are checked immediately before the optimizer uses them. At that time they are equal on all ranks, so all ranks
make the same decision without communication. Only ranks with sharded gradients must communicate.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import torch

from torchyard_roles.errors import NotFinite
from torchyard_roles.optimizer_hooks import before_step


class FiniteGradients:
    """The check of one optimizer's gradients for NaN and infinite values.

    With `on_nan="fail"` a failed check raises NotFinite. On a GPU the result is read asynchronously, in the next step
    or in check(), which is called before a checkpoint is saved and at the end. With `on_nan="skip"` a failed check
    removes the gradients, so the optimizer changes neither the parameters nor its state. On a GPU, this check waits for
    the backward pass in every step. If a GradScaler skips steps whose gradients are not finite, this class does not
    check the gradients.

    Attributes:
        step: The number of the last step that has begun.
        skipped: The number of skipped steps.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        on_nan: str,
        agree: Callable[[torch.Tensor, int], torch.Tensor] | None = None,
    ) -> None:
        """Installs the check of the gradients before each step of an optimizer.

        Args:
            agree: Takes this rank's flag and the step number, and returns whether the flag is true on all ranks.
                Needed if each rank has only a part of the gradients. Called once in each step or, if the step has a
                closure, in each call of the closure.
        """
        self._agree = agree
        self.step = 0
        self.skipped = 0
        self._on_nan = on_nan
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._late: tuple[int, torch.Tensor, torch.cuda.Event] | None = None
        before_step(optimizer, self._before_step)

    def check(self) -> None:
        """Waits for the result of the last step's check, which may have run on the GPU.

        If the gradients were not finite, this call and all later calls raise NotFinite.
        """
        if self._late is not None:
            step, flag, ready = self._late
            ready.synchronize()
            if not flag.item():
                raise self._error(step, [])
            self._late = None

    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> Any:
        self.check()
        self.step += 1

        def checked(loss: Any) -> Any:
            self._check_gradients(optimizer)
            return loss

        replaced = with_closure(arguments, named, checked)
        if replaced is None:
            self._check_gradients(optimizer)
        return replaced

    def _check_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        if getattr(optimizer, "found_inf", None) is not None:
            if self._agree is not None:
                self._agree(torch.ones((), dtype=torch.bool, device="cpu"), self.step)
            return  # A GradScaler sets found_inf only on optimizers that skip such steps themselves.
        parameters = [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
        flag = all_finite([_local(parameter.grad) for parameter in parameters])
        if self._agree is not None:
            flag = self._agree(flag, self.step)
        if flag.is_cuda and self._on_nan == "fail":
            host = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=True)
            host.copy_(flag, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
            self._late = self.step, host, ready
            return
        if flag.item():
            return
        if self._on_nan == "skip":
            self.skipped += 1
            for parameter in parameters:
                parameter.grad = None
            return
        raise self._error(self.step, parameters)

    def _error(self, step: int, parameters: list[torch.nn.Parameter]) -> NotFinite:
        broken = [self._names.get(each, "a parameter") for each in parameters if not all_finite([_local(each.grad)])]
        where = f" in {len(broken)} of {len(parameters)} parameters, the first being {broken[0]}" if broken else ""
        return NotFinite(
            f"The gradients of step {step} are NaN or infinite{where}.",
            "Lower the learning rate or clip the gradients, or set strategy.on_nan to skip to leave such steps out.",
        )


def all_finite(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Returns whether all gradients are finite, as a bool tensor on the first gradient's device.

    The check calls the function by which GradScaler unscales gradients, with a factor of 1, so no gradient changes. One
    call handles all gradients of one dtype and device, and takes at most a fifth of the time of computing a norm. On
    GPUs the function does not support bfloat16, and treats float64 as float32. For these dtypes, the largest magnitude
    is checked, which is NaN if any element is NaN. For complex dtypes and on other devices, each element is checked.

    On CPUs GradScaler's function also writes all gradients, which takes more time than a step of SGD. Therefore the sum
    of each gradient is computed first, which takes 40% of the time. If the sum is finite, so are all elements.
    Otherwise the sum may have overflowed, and the elements are checked.
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in gradients:
        values = gradient._values() if gradient.is_sparse else gradient
        if values.numel():
            kinds.setdefault((values.device, values.dtype), []).append(values)
    if not kinds:
        return torch.ones((), dtype=torch.bool, device="cpu")
    flags = []
    with torch.no_grad():
        for (device, dtype), each in kinds.items():
            has_sums = device.type == "cpu" and dtype in (torch.float32, torch.float64)
            if has_sums and all(math.isfinite(values.sum().item()) for values in each):
                continue
            if device.type == "cuda" and dtype in (torch.bfloat16, torch.float64):
                flags.append(torch.stack(list(torch._foreach_norm(each, float("inf")))).isfinite().all())
            elif dtype.is_floating_point and device.type in ("cpu", "cuda"):
                # GradScaler's function requires these two arguments as float32, even if torch's default dtype is
                # different.
                broken, one = (torch.full((1,), value, dtype=torch.float32, device=device) for value in (0.0, 1.0))
                torch._amp_foreach_non_finite_check_and_unscale_(each, broken, one)
                flags.append(broken[0] == 0)
            else:
                flags.append(torch.stack([values.isfinite().all() for values in each]).all())
        if not flags:
            return torch.ones((), dtype=torch.bool, device="cpu")
        if len(flags) == 1:
            return flags[0]
        return torch.stack([flag.to(flags[0].device) for flag in flags]).all()


def _local(gradient: Any) -> torch.Tensor:
    """Returns this rank's part of a gradient that is sharded over ranks."""
    part: torch.Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return part


def with_closure(arguments: tuple[Any, ...], named: dict[str, Any], after: Callable[[Any], Any]) -> Any:
    """Returns the arguments of step() with a closure that calls the original closure and returns `after(loss)`.

    Returns None if step() was called without a closure. Step pre-hooks use this function to run `after` when the
    closure has computed the gradients.
    """
    closure = named.get("closure", arguments[1] if len(arguments) > 1 else None)
    if closure is None:
        return None

    def followed() -> Any:
        return after(closure())

    if "closure" in named:
        return arguments, {**named, "closure": followed}
    return (arguments[0], followed, *arguments[2:]), named
