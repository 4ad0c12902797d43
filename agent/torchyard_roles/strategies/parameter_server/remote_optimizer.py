"""A worker's optimizer, told to the servers by its class's name under torch.optim and its arguments as JSON.

Nothing is unpickled. What only says how the arithmetic is carried out (`foreach`, `fused`, `capturable`,
`differentiable`) stays with the worker: a server steps small pieces on the CPU.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

import torch

from torchyard_roles.errors import UsageProblem

HOW_NOT_WHAT = frozenset({"foreach", "fused", "capturable", "differentiable"})
SHAPED = frozenset({"Adafactor", "Muon"})
"""Their arithmetic depends on a parameter's shape, so that no shard and no chunk may cut one."""
FUSED = frozenset({"Adagrad", "Adam", "AdamW"})
"""Stepped by torch's fused kernels: one pass over a chunk instead of one for each operation."""
NOT_FUSED = frozenset({torch.float64})
"""Dtypes whose results have to be those of one process to the last digits, which the fused kernels are not."""
UNSERVED = {
    "LBFGS": "it evaluates the model several times in a step",
    "SparseAdam": "it takes sparse gradients only",
}
STATES = {"SGD": 1, "Rprop": 2, "Adagrad": 1, "Adadelta": 2, "Adafactor": 1, "Muon": 1, "ASGD": 1, "RMSprop": 3}
"""Tensors of the parameters' size that a class keeps at most; 3 where nothing is said (Adam with amsgrad)."""

Arguments = dict[str, Any]


def class_name(optimizer: torch.optim.Optimizer) -> str:
    """Its name under torch.optim. Raises UsageProblem for what a server cannot step."""
    kind = type(optimizer)
    name = kind.__name__
    if getattr(torch.optim, name, None) is not kind:
        raise UsageProblem(
            f"The optimizer {kind.__module__}.{name} is not one of torch.optim's, which are all that servers know.",
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
    """The options of its parameter groups as they are now, fit for JSON.

    Raises UsageProblem for a value that is neither number, text, nor a list of them.
    """
    return [
        {
            name: _plain(name, value)
            for name, value in group.items()
            if name not in ("params", "param_names") and name not in HOW_NOT_WHAT
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
        f"The optimizer's {name} is a {type(value).__name__}, which cannot be told to the servers.",
        "Only numbers, text and lists of them can.",
    )


def as_text(groups: list[Arguments]) -> str:
    """For the wire, and to see whether anything has changed. Infinities are spelt as Python's JSON does."""
    return json.dumps(groups, separators=(",", ":"), sort_keys=True)


def from_wire(groups: Any) -> list[Arguments]:
    """What as_text() became on the other side: lists are tuples again. Raises ValueError for what it cannot be."""
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
    """The optimizer `torch.optim.name` on these leaves, with a parameter group's options.

    Options that are not the constructor's own, such as a scheduler's `initial_lr`, are kept in the group all the same.
    Raises ValueError where torch knows none such or refuses the options.
    """
    kind: Any = getattr(torch.optim, name, None)
    if not inspect.isclass(kind) or not issubclass(kind, torch.optim.Optimizer) or name in UNSERVED:
        raise ValueError(f"torch {torch.__version__} has no optimizer {name!r} that a server could run")
    known = inspect.signature(kind).parameters
    leaves = list(parameters)
    accepted = {key: value for key, value in options.items() if key in known}
    if (
        name in FUSED
        and "fused" in known
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
    """A call of its step() without what torch wraps around it for its profiler and compiler.

    The wrappers cost more than the arithmetic of a small chunk. They also switch gradients off, which is done here.
    """
    step = inspect.unwrap(type(optimizer).step)

    def call() -> None:
        with torch.no_grad():
            step(optimizer)

    return call


def apply(optimizer: torch.optim.Optimizer, options: Arguments) -> None:
    """Let new options, such as a learning rate, hold from the next step on."""
    (group,) = optimizer.param_groups
    group.update(options)


def state_bytes(name: str, parameter_bytes: int) -> int:
    """At most so much does the optimizer's state take for parameters of that size."""
    return math.ceil(STATES.get(name, 3) * parameter_bytes)


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
