"""Sharding of models and of the optimizers that refer to their parameters (FSDP2, `fully_shard`).

`fully_shard` replaces each parameter with a DTensor. The optimizers, which the script has created from the original
parameters, get the new ones at the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from torchyard_roles.checkpoints.sharded_tensors import as_parameter, set_from_first_rank
from torchyard_roles.errors import UsageProblem


class ParameterPlaces:
    """The places of the models' parameters in an optimizer.

    While the parameters are replaced, the optimizer refers to none of them, so that each is freed once it is sharded.
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
        """Puts the new parameters, by name, at the places of the old ones."""
        for group, names in zip(self._optimizer.param_groups, self._names):
            group["params"].extend(parameters[name] for name in names)
        for name, state in self._state.items():
            parameter = parameters[name]
            self._optimizer.state[parameter] = {key: as_parameter(value, parameter) for key, value in state.items()}


def named_parameters(models: Sequence[torch.nn.Module]) -> dict[str, torch.nn.Parameter]:
    """Returns the parameters of all models, each once, by names that are unique among the models."""
    return dict(torch.nn.ModuleList(models).named_parameters())


def is_on_meta(models: Sequence[torch.nn.Module]) -> bool:
    """Returns whether a parameter or buffer is on the meta device, so that it has no values."""
    tensors = [each for model in models for each in (*model.parameters(), *model.buffers())]
    return any(each.is_meta for each in tensors)


def full_values(models: Sequence[torch.nn.Module]) -> dict[str, torch.Tensor]:
    """Returns the parameters' current values, which stay where they are when the parameters are sharded."""
    return {name: each.detach() for name, each in named_parameters(models).items()}


def spread_values(
    models: Sequence[torch.nn.Module], values: dict[str, torch.Tensor] | None, device: torch.device
) -> None:
    """Sets the sharded parameters of all ranks to the first rank's full `values`, one parameter after another.

    Args:
        values: The values by name on the first rank, None on the others.
        device: The device of the exchange.
    """
    for name, parameter in named_parameters(models).items():
        set_from_first_rank(parameter, None if values is None else values[name], device)


def spread_buffers(models: Sequence[torch.nn.Module], device: torch.device) -> None:
    """Sets the buffers of all ranks to the first rank's values."""
    for model in models:
        for buffer in model.buffers():
            values = buffer.detach().to(device).contiguous()
            dist.broadcast(values, src=0)
            buffer.detach().copy_(values)


def reshard(models: Sequence[torch.nn.Module]) -> None:
    """Frees the gathered parameters that a forward pass without a backward pass has left, so that none is outdated."""
    for model in models:
        for module in model.modules():
            free: Any = getattr(module, "reshard", None)
            if free is not None and hasattr(module, "set_requires_gradient_sync"):
                free()


def check_all_trained(
    models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], strategy: str
) -> None:
    """Raises UsageProblem for parameters that no optimizer trains, which sharded worker groups do not exchange.

    Args:
        strategy: The kind of the strategy that exchanges between the groups.
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
