"""Mistakes that are cheaper to name before training than to find in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torchyard_roles.errors import EnvironmentProblem, UsageProblem

if TYPE_CHECKING:
    import torch

OLDEST_TORCH = (2, 4)


def check_torch() -> None:
    """Raises EnvironmentProblem where this Python has no torch, or one that is too old."""
    try:
        import torch
    except ImportError as error:
        raise EnvironmentProblem(
            f"torch cannot be imported by {sys.executable}: {error}.",
            "Install torch for this Python, or name another as the host's python.",
        ) from error
    numbers = torch.__version__.split("+")[0].split(".")[:2]
    if tuple(int(number) for number in numbers if number.isdecimal()) < OLDEST_TORCH:
        oldest = ".".join(str(number) for number in OLDEST_TORCH)
        raise EnvironmentProblem(
            f"torch {torch.__version__} is too old: torchyard_roles needs {oldest} or newer.",
            "Install a newer torch for this Python, or name another as the host's python.",
        )


def check_trainable(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raises UsageProblem for a pair that could not train together."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    if isinstance(model, (DataParallel, DistributedDataParallel)):
        raise UsageProblem(
            f"distribute() got a model that is in {type(model).__name__} already.",
            "Give it the plain model: it does the wrapping.",
        )
    trainable = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    if not trainable:
        raise UsageProblem(
            f"The model {type(model).__name__} has no trainable parameters.",
            "Give distribute() the model whose parameters the optimizer trains.",
        )
    if not any(id(parameter) in trainable for group in optimizer.param_groups for parameter in group["params"]):
        raise UsageProblem(
            "The optimizer holds none of the model's parameters, so its steps would not train the model.",
            "Make it from model.parameters() of the same model that distribute() is given.",
        )
