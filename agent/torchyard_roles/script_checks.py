"""Checks of the environment and of a script's calls, before training."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchyard_roles.errors import EnvironmentProblem, UsageProblem

if TYPE_CHECKING:
    import torch

OLDEST_TORCH = (2, 4)


def check_torch() -> None:
    """Raises EnvironmentProblem if torch is not installed or too old."""
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


def versions() -> dict[str, str]:
    """Returns the version of torch and a hash of the training script, keyed by their names in error messages."""
    import hashlib
    from pathlib import Path

    import torch

    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        script = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12] if path else ""
    except OSError:
        script = ""
    return {"the version of torch": torch.__version__, "the SHA-256 of the training script": script}


def check_plain(model: torch.nn.Module) -> None:
    """Raises UsageProblem if the model is already distributed, by DDP, FSDP or tensor parallelism."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    if isinstance(model, (DataParallel, DistributedDataParallel)):
        raise UsageProblem(
            f"distribute() got a model that is in {type(model).__name__} already.",
            "Give it the plain model: gradients are averaged without a wrapper.",
        )
    if any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        raise UsageProblem(
            f"distribute() got {type(model).__name__} with parameters that are sharded over ranks already (FSDP2, "
            "tensor parallel).",
            "Give it the model before fully_shard() or parallelize_module(), or train without distribute(): an "
            "unmodified torchrun script runs under program.launcher torch.",
        )


def check_trainable(models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raises UsageProblem if the models have no trainable parameters, or an optimizer has none of these parameters."""
    names = ", ".join(type(each).__name__ for each in models)
    trainable = {id(parameter) for model in models for parameter in model.parameters() if parameter.requires_grad}
    if not trainable:
        raise UsageProblem(
            f"The model {names} has no trainable parameters.",
            "Give distribute() the model whose parameters the optimizer trains.",
        )
    for number, optimizer in enumerate(optimizers, 1):
        if any(id(parameter) in trainable for group in optimizer.param_groups for parameter in group["params"]):
            continue
        several = len(optimizers) > 1
        which = f"Optimizer {number} of {len(optimizers)}, {type(optimizer).__name__}," if several else "The optimizer"
        raise UsageProblem(
            f"{which} holds none of the model's parameters, so its steps would not train the model.",
            "Make it from model.parameters() of a model that distribute() is given. To train a single tensor, such as "
            "a temperature, make it a torch.nn.Parameter of a module.",
        )


def check_stateful(name: str, each: Any) -> None:
    """Raises UsageProblem if cluster.checkpoint() cannot save the object, because it has no state_dict()."""
    if not hasattr(each, "state_dict") or not hasattr(each, "load_state_dict"):
        raise UsageProblem(
            f"checkpoint({name}=…) got a {type(each).__name__}, which has no state_dict().",
            "Give it objects with state_dict() and load_state_dict().",
        )


def check_clipping(max_norm: float | None, value: float | None) -> None:
    """Raises UsageProblem unless exactly one of the limits of clip_gradients() is given and is greater than 0."""
    if (max_norm is None) == (value is None):
        raise UsageProblem(
            "clip_gradients() takes either a norm or a value.",
            "Call clip_gradients(1.0) for a norm of at most 1, or clip_gradients(value=0.5).",
        )
    if value is not None and not value > 0:
        raise UsageProblem(f"clip_gradients(value={value}) leaves no gradient.", "Give it a value above 0.")
    if max_norm is not None and not max_norm > 0:
        raise UsageProblem(f"clip_gradients({max_norm}) leaves no gradient.", "Give it a norm above 0.")
