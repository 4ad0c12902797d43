"""What Torchyard attaches to a script's model. None of it is copied or saved with the model.

`copy.deepcopy(model)`, `torch.optim.swa_utils.AveragedModel(model)` and `torch.save(model)` leave the attachments out:
a saved model names the same classes as without Torchyard, so that `torch.load(weights_only=True)` needs no others.
Where a model copies its dictionaries in a way of its own, the copies of the attachments do nothing and are made of the
standard library alone, so that it is loaded where Torchyard is not installed.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
from typing import Any, Callable

import torch

from torchyard_roles.model_optimizer_pairs import unwrap


class ModuleHook:
    """A hook of a module. Inside compiled code it does nothing, so that it does not break the graph."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        if not torch.compiler.is_compiling():
            self._call(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes any arguments, returns None


class NoSync:
    """`model.no_sync()`, as DistributedDataParallel has it."""

    def __init__(self, accumulating: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._accumulating = accumulating

    def __call__(self) -> contextlib.AbstractContextManager[None]:
        return self._accumulating()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (contextlib.nullcontext,)


def before_forward(model: torch.nn.Module, call: Callable[[], None]) -> None:
    """Have `call` made before each forward of the model that records gradients.

    A script may never call the model itself, but its parts (`model.encoder(x)`, a method of the model): until it does,
    their forwards count too. After that they do not: a hook on each of many layers would cost more than it is worth.
    """
    parts: list[Any] = []

    def whole(*_: Any) -> None:
        while parts:
            parts.pop().remove()
        part()

    def part(*_: Any) -> None:
        if torch.is_grad_enabled():
            call()

    inner = unwrap(model)
    for module in (model, inner) if inner is not model else (model,):
        module.register_forward_pre_hook(ModuleHook(whole))
    parts += [module.register_forward_pre_hook(ModuleHook(part)) for module in inner.children()]
    for module in (model, inner, *inner.children()):
        copyreg.dispatch_table.setdefault(type(module), _reduced)


def _reduced(module: torch.nn.Module) -> Any:
    """As the module reduces itself for copies and pickles, without what is attached to it."""
    reduced = module.__reduce_ex__(2)
    state = reduced[2] if len(reduced) > 2 else None
    if not isinstance(state, dict):
        return reduced
    plain = {name: value for name, value in state.items() if not isinstance(value, NoSync)}
    for name in ("_forward_hooks", "_forward_pre_hooks"):
        hooks = plain.get(name, {})
        if any(isinstance(each, ModuleHook) for each in hooks.values()):
            plain[name] = type(hooks)((key, each) for key, each in hooks.items() if not isinstance(each, ModuleHook))
    return (*reduced[:2], plain, *reduced[3:])
