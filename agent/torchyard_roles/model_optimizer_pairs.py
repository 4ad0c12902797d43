"""The models and optimizers that a script gives to distribute(), combined into one object for saving and comparing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchyard_roles.errors import UsageProblem

if TYPE_CHECKING:
    import torch


class OptimizerList:
    """Several optimizers that are saved, restored and described as one."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Any, Any]:
        return {key: value for optimizer in self.optimizers for key, value in optimizer.state.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        states = state.get("optimizers", ())
        if len(states) != len(self.optimizers):
            raise UsageProblem(
                f"The checkpoint holds the state of {len(states) or 1} optimizers, but distribute() was given "
                f"{len(self.optimizers)}.",
                "Give distribute() the optimizers that the checkpoint was saved with, or name another checkpoint_dir.",
            )
        for optimizer, each in zip(self.optimizers, states):
            optimizer.load_state_dict(each)


class Pairs:
    """The models and optimizers of one call of distribute()."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        """Checks the arguments. Raises UsageProblem unless they are modules and optimizers, or sequences of them."""
        import torch

        self._given = model, optimizer
        self.models = _listed(model, torch.nn.Module, "model")
        self.optimizers: list[torch.optim.Optimizer] = (
            [] if optimizer is None else _listed(optimizer, torch.optim.Optimizer, "optimizer")
        )
        self.updates_by_hand = optimizer is None
        if self.updates_by_hand:
            # This optimizer is only a container of the parameters, for code that expects an optimizer. It never steps.
            parameters = [each for each in self.model.parameters() if each.requires_grad]
            self.optimizers = [
                torch.optim.SGD(parameters or [torch.nn.Parameter(torch.zeros(1, device="cpu"))], lr=0.0)
            ]

    @property
    def model(self) -> torch.nn.Module:
        """The plain model, or a ModuleList of all models."""
        import torch

        return unwrap(self.models[0]) if len(self.models) == 1 else torch.nn.ModuleList(map(unwrap, self.models))

    @property
    def optimizer(self) -> Any:
        return self.optimizers[0] if len(self.optimizers) == 1 else OptimizerList(self.optimizers)

    @property
    def gradient_bytes(self) -> int:
        """The total size in bytes of the gradients of all trained parameters."""
        trained = {id(each): each for group in self.optimizer.param_groups for each in group["params"]}
        return sum(each.numel() * each.element_size() for each in trained.values() if each.requires_grad)

    def model_of(self, optimizer: torch.optim.Optimizer) -> torch.nn.Module:
        """Returns the model that this optimizer trains, or `model` if the optimizer trains several models."""
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        trained = [each for each in self.models if any(id(parameter) in held for parameter in each.parameters())]
        return trained[0] if len(trained) == 1 else self.model

    def given(self) -> Any:
        """Returns the arguments in their original form, as the result of distribute()."""
        model, optimizer = self._given
        return model if self.updates_by_hand else (model, optimizer)


def groups_of(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the parameter groups in the state of an optimizer or of an OptimizerList."""
    return [group for each in state.get("optimizers", [state]) for group in each["param_groups"]]


def names_of(optimizer: Any) -> str:
    """Returns the class name of an optimizer, or the class names of all optimizers in a list."""
    optimizers = optimizer.optimizers if isinstance(optimizer, OptimizerList) else [optimizer]
    return ", ".join(type(each).__name__ for each in optimizers)


def _listed(value: Any, kind: type, word: str) -> list[Any]:
    if isinstance(value, kind):
        return [value]
    found = list(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)) else []
    if not found or not all(isinstance(each, kind) for each in found):
        raise UsageProblem(
            f"distribute() got a {type(value).__name__} as its {word}.",
            f"Give it one torch {'module' if word == 'model' else 'optimizer'}, or a list of them.",
        )
    return found


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """Removes the wrappers DistributedDataParallel, DataParallel and torch.compile(), in any order, from a module."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    inner: Any = model
    while True:
        if isinstance(inner, (DataParallel, DistributedDataParallel)):
            inner = inner.module
        elif type(inner).__name__ == "OptimizedModule" and "_orig_mod" in inner._modules:
            # The class is compared by name because importing torch._dynamo takes a second.
            inner = inner._modules["_orig_mod"]
        else:
            return inner
