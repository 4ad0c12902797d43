"""Hooks on a script's model that are neither copied nor saved with the model.

`copy.deepcopy(model)`, `torch.optim.swa_utils.AveragedModel(model)` and `torch.save(model)` omit the hooks. A saved
model therefore loads without Torchyard, and also with `weights_only=True`. If a model's own copying code copies the
hooks, the copies are objects of the standard library that do nothing.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
from typing import Any, Callable

import torch

from torchyard_roles.model_optimizer_pairs import unwrap


class ModuleHook:
    """A module hook that is skipped in compiled code, because a Python call would cause a graph break there."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        if not torch.compiler.is_compiling():
            self._call(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # nullcontext.__exit__ accepts any arguments and returns None, so it can replace a hook.
        return getattr, (contextlib.nullcontext(), "__exit__")


class NoSync:
    """A callable that is installed as `model.no_sync`, for scripts that use this method of DistributedDataParallel."""

    def __init__(self, accumulating: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._accumulating = accumulating

    def __call__(self) -> contextlib.AbstractContextManager[None]:
        return self._accumulating()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (contextlib.nullcontext,)


def before_forward(model: torch.nn.Module, call: Callable[[], None]) -> None:
    """Registers `call` to be called before each forward pass of the model with gradients enabled.

    A script may call only parts of the model, such as `model.encoder(x)`. Therefore hooks are also installed on the
    children. These hooks are removed at the first forward pass of the whole model, to save time.
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
    """Returns the result of the module's `__reduce_ex__`, without the hooks, for copying and pickling."""
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
