"""The device of a rank, and functions that move batches and optimizers to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem


def choose(environment: Environment) -> torch.device:
    """Returns the device `cuda:N` for process N of its replica if each process has a GPU, otherwise the CPU.

    Raises EnvironmentProblem if torch does not see the GPUs of the placement, because a rank on the CPU would block its
    peers on GPUs.
    """
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen >= environment.local_world_size:
        torch.cuda.set_device(environment.local_rank)  # After this call, "cuda" in the script means this GPU.
        return torch.device("cuda", environment.local_rank)
    if environment.is_torchyard and environment.visible_gpus:
        raise EnvironmentProblem(
            f"{environment.replica} was given the GPUs {environment.visible_gpus} for "
            f"{environment.local_world_size} ranks, but torch {torch.__version__} sees {seen}.",
            "Check nvidia-smi on this host, and that its torch is a build for CUDA.",
        )
    return torch.device("cpu")


def move(batch: Any, device: torch.device) -> Any:
    """Returns the batch with all its tensors on `device`, including tensors in nested containers."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move(value, device) for value in batch)
    return batch


def move_optimizer(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Moves the state of an optimizer to `device`. The state exists once the optimizer has stepped or been restored."""
    for state in optimizer.state.values():
        for name, value in state.items():
            # Optimizers keep a scalar `step` on the CPU. Sharded state is already on the device of its parameter.
            if isinstance(value, torch.Tensor) and value.dim() > 0 and not hasattr(value, "device_mesh"):
                state[name] = value.to(device)
