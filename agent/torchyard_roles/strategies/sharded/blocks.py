"""The blocks (FSDP units) of a model: modules whose parameters are gathered, used and freed together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchyard_roles.errors import UsageProblem

CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict)
"""Module classes that have no forward pass, so their parameters cannot be gathered before a forward pass."""


def blocks_of(model: torch.nn.Module, classes: Sequence[str] = ()) -> list[torch.nn.Module]:
    """Returns the blocks of a model in the model's order, without the model itself.

    Args:
        classes: The class names of the blocks. By default, the blocks are the modules of one class: of the classes that
            occur at least twice, the class with the most parameters, or the outermost of several such classes.

    Raises:
        UsageProblem: The model has no module of a named class.
    """
    modules: dict[str, list[torch.nn.Module]] = {}
    for module in model.modules():
        if module is not model and not isinstance(module, CONTAINERS) and _has_parameters(module):
            modules.setdefault(type(module).__name__, []).append(module)
    missing = [name for name in classes if name not in modules]
    if missing:
        raise UsageProblem(
            f"strategy.shard_modules names {missing[0]}, but {type(model).__name__} contains no module of that class "
            "with parameters.",
            f"Its classes are {', '.join(sorted(modules)) or 'none'}. Name some of these, or leave the setting out.",
        )
    chosen = list(classes)
    if not chosen:
        repeated = [name for name, found in modules.items() if len(found) > 1]
        chosen = sorted(repeated, key=lambda name: -_elements(modules[name]))[:1]
    return [
        module
        for module in model.modules()
        if module is not model
        and type(module).__name__ in chosen
        and not isinstance(module, CONTAINERS)
        and _has_parameters(module)
    ]


def check_shardable(model: torch.nn.Module, blocks: Sequence[torch.nn.Module]) -> None:
    """Raises UsageProblem if a parameter has no dimension to split, has sparse gradients, or is in several blocks."""
    chosen = set(map(id, blocks))
    found: dict[int, tuple[str, int]] = {}
    owner_of = {"": id(model)}
    for path, module in model.named_modules(remove_duplicate=False):
        owner_of[path] = id(module) if id(module) in chosen else owner_of[path.rpartition(".")[0]]
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
            raise UsageProblem(
                f"The gradients of `{path or type(module).__name__}` are sparse, so they cannot be sharded.",
                "Create the embedding with sparse=False, or set strategy.shard to none.",
            )
        for own_name, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = f"{path}.{own_name}" if path else own_name
            if parameter.dim() == 0:
                raise UsageProblem(
                    f"`{name}` is a single number, which cannot be sharded.",
                    "Give the parameter one dimension: torch.nn.Parameter(torch.zeros(1)).",
                )
            other, owner = found.setdefault(id(parameter), (name, owner_of[path]))
            if owner != owner_of[path]:
                raise UsageProblem(
                    f"`{other}` and `{name}` are one parameter in two blocks, which would be sharded apart.",
                    "Name in strategy.shard_modules only classes that share no parameters, set strategy.shard to none, "
                    "or give each module a parameter of its own.",
                )


def _has_parameters(module: torch.nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _elements(modules: Sequence[torch.nn.Module]) -> int:
    """Returns the number of elements of all parameters. A shared parameter is counted once."""
    parameters = {id(each): each.numel() for module in modules for each in module.parameters()}
    return sum(parameters.values())
