"""Shards models and the optimizers that refer to their parameters (FSDP2, `fully_shard`).

`fully_shard` replaces each parameter with a DTensor. The script has created its optimizers with the original
parameters, so the new parameters replace the old ones in the optimizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchyard_roles.checkpoints.sharded_tensors import as_parameter, set_from_first_rank
from torchyard_roles.errors import UsageProblem


class ParameterPlaces:
    """The positions of the models' parameters in an optimizer's parameter groups.

    While the parameters are being replaced, the optimizer refers to none of them. Therefore each parameter is freed as
    soon as it is sharded.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: dict[int, str]) -> None:
        """Removes the parameters from the optimizer.

        Args:
            names: The names of the parameters by their ids.

        Raises:
            UsageProblem: The optimizer refers to parameters of other models.
        """
        groups = optimizer.param_groups
        if any(id(each) not in names for group in groups for each in group["params"]):
            raise UsageProblem(
                f"{type(optimizer).__name__} has parameters that belong to none of distribute()'s models, so they "
                "cannot be sharded.",
                "Give distribute() all models that the optimizer trains, or set strategy.shard to none.",
            )
        self._optimizer = optimizer
        self._names = [[names[id(each)] for each in group["params"]] for group in groups]
        self._state = {names[id(parameter)]: state for parameter, state in optimizer.state.items()}
        optimizer.state.clear()
        for group in groups:
            group["params"].clear()

    def fill(self, parameters: dict[str, Any]) -> None:
        """Inserts the new parameters, given by name, at the positions of the old ones."""
        for group, names in zip(self._optimizer.param_groups, self._names):
            group["params"].extend(parameters[name] for name in names)
        for name, state in self._state.items():
            parameter = parameters[name]
            self._optimizer.state[parameter] = {key: as_parameter(value, parameter) for key, value in state.items()}


def named_parameters(models: Sequence[torch.nn.Module]) -> dict[str, torch.nn.Parameter]:
    """Returns the parameters of all models, without duplicates, by names that are unique among all models."""
    return dict(torch.nn.ModuleList(models).named_parameters())


def is_on_meta(models: Sequence[torch.nn.Module]) -> bool:
    """Returns whether a parameter or buffer is on the meta device and therefore has no values."""
    tensors = [each for model in models for each in (*model.parameters(), *model.buffers())]
    return any(each.is_meta for each in tensors)


def full_values(models: Sequence[torch.nn.Module]) -> dict[str, torch.Tensor]:
    """Returns the parameters' current values by name. These tensors keep their memory when parameters are sharded."""
    return {name: each.detach() for name, each in named_parameters(models).items()}


def spread_values(
    models: Sequence[torch.nn.Module], values: dict[str, torch.Tensor] | None, device: torch.device
) -> None:
    """Sets the sharded parameters on all ranks to the first rank's `values`, one parameter after another.

    Args:
        values: The whole values by name on the first rank, and None on the others.
        device: The device on which values are exchanged.
    """
    for name, parameter in named_parameters(models).items():
        set_from_first_rank(parameter, None if values is None else values[name], device)


def reshard(models: Sequence[torch.nn.Module]) -> None:
    """Frees the gathered parameters of a forward pass without a backward pass, because they would become outdated."""
    for model in models:
        for module in model.modules():
            free: Any = getattr(module, "reshard", None)
            if free is not None and hasattr(module, "set_requires_gradient_sync"):
                free()


def check_all_trained(
    models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], strategy: str
) -> None:
    """Raises UsageProblem if a parameter is trained by no optimizer, because worker groups would not exchange it.

    Args:
        strategy: The name of the strategy by which the groups exchange.
    """
    trained = {id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]}
    for model in models:
        for name, parameter in model.named_parameters():
            if id(parameter) not in trained or not parameter.requires_grad:
                raise UsageProblem(
                    f"No optimizer trains the parameter `{name}`, which {strategy} does not support with "
                    "strategy.shard.",
                    "Give it to an optimizer, make it a buffer, or set strategy.shard to none.",
                )
