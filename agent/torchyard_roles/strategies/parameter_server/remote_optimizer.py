"""The description of a worker's optimizer for servers: its class name in torch.optim and its arguments as JSON.

The description is never unpickled. It omits options that select an implementation (`foreach`, `fused`, `capturable`,
`differentiable`), because a server updates small tensors on the CPU.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

import torch

from torchyard_roles.errors import UsageProblem

IMPLEMENTATION_OPTIONS = frozenset({"foreach", "fused", "capturable", "differentiable"})
SHAPED = frozenset({"Adafactor", "Muon"})
"""Optimizers whose step depends on a parameter's shape. A parameter must then not be divided between chunks."""
FUSED = frozenset({"Adagrad", "Adam", "AdamW"})
"""Optimizers for which torch has fused kernels. They process a chunk in one pass instead of one pass per operation."""
NOT_FUSED = frozenset({torch.float64})
"""Dtypes for which fused kernels are not precise enough to give the same result as a single process."""
UNSERVED = {"LBFGS": "it evaluates the model several times in a step", "SparseAdam": "it takes sparse gradients only"}
STATES = {"SGD": 1, "Rprop": 2, "Adagrad": 1, "Adadelta": 2, "Adafactor": 1, "Muon": 1, "ASGD": 1, "RMSprop": 3}
"""Largest number of state tensors per parameter, by optimizer. Optimizers that are not listed have at most 3."""

Arguments = dict[str, Any]


def class_name(optimizer: torch.optim.Optimizer) -> str:
    """Returns the optimizer's class name in torch.optim. Raises UsageProblem if a server cannot run the optimizer."""
    kind = type(optimizer)
    name = kind.__name__
    if getattr(torch.optim, name, None) is not kind:
        raise UsageProblem(
            f"Parameter servers support only the optimizers of torch.optim, and not {kind.__module__}.{name}.",
            "Use one of torch.optim, or a strategy whose optimizer runs on the workers: all_reduce or "
            "reduction_server.",
        )
    if name in UNSERVED:
        raise UsageProblem(
            f"Parameter servers cannot run torch.optim.{name}: {UNSERVED[name]}.",
            "Use another optimizer, such as torch.optim.AdamW.",
        )
    return name


def arguments(optimizer: torch.optim.Optimizer) -> list[Arguments]:
    """Returns the current options of all parameter groups as JSON values.

    Raises UsageProblem if an option is not None, a number, a tensor with one element, text, or a list of these.
    """
    return [
        {
            name: _plain(name, value)
            for name, value in group.items()
            if name not in ("params", "param_names") and name not in IMPLEMENTATION_OPTIONS
        }
        for group in optimizer.param_groups
    ]


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise UsageProblem(
                f"The optimizer's {name} is a tensor of {value.numel()} numbers; servers take one number."
            )
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(name, one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UsageProblem(
        f"The optimizer's {name} is a {type(value).__name__}, which cannot be sent to the servers.",
        "Use numbers, text and lists of them.",
    )


def from_wire(groups: Any) -> list[Arguments]:
    """Converts received JSON values to options, in which lists become tuples. Raises ValueError if they are invalid."""
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ValueError("an optimizer's arguments are a list of objects, one a parameter group")
    return [{str(name): _tuples(value) for name, value in group.items()} for group in groups]


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(one) for one in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"not an optimizer's argument: {value!r}")


def build(name: str, options: Arguments, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """Creates the optimizer `torch.optim.name` for the given leaf tensors, with the options of a parameter group.

    Options that the constructor does not accept, such as a scheduler's `initial_lr`, are kept in the group. Raises
    ValueError if torch has no such optimizer or rejects the options.
    """
    kind: Any = getattr(torch.optim, name, None)
    if not inspect.isclass(kind) or not issubclass(kind, torch.optim.Optimizer) or name in UNSERVED:
        raise ValueError(f"torch {torch.__version__} has no optimizer {name!r} that a server could run")
    names = inspect.signature(kind).parameters
    leaves = list(parameters)
    accepted = {key: value for key, value in options.items() if key in names}
    if (
        name in FUSED
        and "fused" in names
        and all(leaf.is_floating_point() and leaf.dtype not in NOT_FUSED for leaf in leaves)
    ):
        accepted["fused"] = True
    maker: Any = kind
    try:
        made: torch.optim.Optimizer = maker([{"params": leaves}], **accepted)
    except (TypeError, ValueError) as error:
        raise ValueError(f"torch.optim.{name} refuses its arguments: {error}") from error
    apply(made, options)
    return made


def bare_step(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Returns a function that calls step() without torch's wrappers for profiling and compiling.

    For a small chunk, the wrappers take more time than the step. The returned function disables gradients, as the
    wrappers do.
    """
    step = inspect.unwrap(type(optimizer).step)

    def call() -> None:
        with torch.no_grad():
            step(optimizer)

    return call


def apply(optimizer: torch.optim.Optimizer, options: Arguments) -> None:
    """Sets the optimizer's options, such as the learning rate, for the next step."""
    (group,) = optimizer.param_groups
    group.update(options)


def state_bytes(name: str, parameter_bytes: int) -> int:
    """Returns an upper bound of the size in bytes of the optimizer's state, without scalars such as step counts."""
    return math.ceil(STATES.get(name, 3) * parameter_bytes)


Step = Callable[[torch.optim.Optimizer], None]


def hand_over(optimizer: torch.optim.Optimizer, step: Step) -> Callable[[], None]:
    """Replaces `optimizer.step()` by `step(optimizer)`. The optimizer's hooks are still called.

    Returns:
        A function that calls the original step without hooks. The gradients must be unscaled, because the function
        hides a GradScaler's attributes from the optimizer.
    """
    own = type(optimizer).step
    # torch replaces the class's step() by a wrapper that calls the hooks.
    plain = own.__wrapped__ if getattr(own, "hooked", False) else own

    def shared_step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        step(self)
        self._opt_called = True  # Schedulers print a warning if this attribute is missing.
        return loss

    hooked = torch.optim.Optimizer.profile_hook_step(shared_step)
    # Schedulers set this attribute on a step() that they have wrapped.
    hooked._wrapped_by_lr_sched = True
    vars(optimizer)["step"] = MethodType(hooked, optimizer)
    # If this attribute is set, a GradScaler calls step() even if gradients are not finite.
    vars(optimizer)["_step_supports_amp_scaling"] = True

    def own_step() -> None:
        hidden = {name: vars(optimizer).pop(name) for name in ("grad_scale", "found_inf") if name in vars(optimizer)}
        try:
            plain(optimizer)
        finally:
            # The attributes are restored because the GradScaler deletes them after the step.
            vars(optimizer).update(hidden)

    return own_step
