"""Functions that convert between whole tensors and tensors that are sharded over ranks (DTensor)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def local_part(full: torch.Tensor, like: Any) -> torch.Tensor:
    """Returns this rank's part of a whole tensor, sharded in the same way as the DTensor `like`."""
    for dimension, placement in enumerate(like.placements):
        if placement.is_shard():
            parts = full.chunk(like.device_mesh.size(dimension), dim=placement.dim)
            number = like.device_mesh.get_local_rank(dimension)
            full = parts[number] if number < len(parts) else full.narrow(placement.dim, 0, 0)
    return full


def whole_values(tensor: Any, device: torch.device) -> torch.Tensor:
    """Returns all values of a DTensor as a plain tensor. All ranks must call this function.

    Args:
        device: The device on which values are exchanged. Offloaded parameters are copied to it.
    """
    from torch.distributed.tensor import DTensor

    local = tensor.detach().to_local()
    if local.device.type != device.type:
        tensor = DTensor.from_local(
            local.to(device),
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )
    whole: torch.Tensor = tensor.detach().full_tensor()
    return whole


def set_from_first_rank(target: torch.Tensor, whole: torch.Tensor | None, device: torch.device) -> None:
    """Sets a tensor or DTensor on all ranks to the first rank's values. All ranks must call this function.

    Args:
        whole: The values as a plain tensor on the first rank, and None on the others.
        device: The device on which values are exchanged.
    """
    if whole is None:
        full = torch.empty(target.shape, dtype=target.dtype, device=device)
    else:
        full = whole.to(device=device, dtype=target.dtype).contiguous()
    dist.broadcast(full, src=0)
    with torch.no_grad():
        if hasattr(target, "device_mesh"):
            target.to_local().copy_(local_part(full, target))
        else:
            target.copy_(full)


def sharded_as(full: torch.Tensor, like: Any) -> Any:
    """Returns a DTensor with the values of `full`, sharded in the same way as the DTensor `like`."""
    from torch.distributed.tensor import DTensor

    local = local_part(full, like).to(like.to_local().device, copy=True).contiguous()
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=full.shape, stride=_stride(full.shape)
    )


def shard_optimizer_state(state: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """Returns the state of an optimizer, or of an OptimizerList, with each tensor sharded like its parameter.

    Tensors whose shape differs from that of the parameter, such as the number of steps, remain unsharded.
    """
    if "optimizers" in state:
        pairs = zip(state["optimizers"], optimizer.optimizers)
        return {"optimizers": [shard_optimizer_state(each, one) for each, one in pairs]}
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    sharded = {
        number: {name: as_parameter(value, parameters[number]) for name, value in each.items()}
        for number, each in state["state"].items()
    }
    return {**state, "state": sharded}


def as_parameter(value: Any, parameter: Any) -> Any:
    """Returns a value of an optimizer's state, sharded like the parameter if both have the same shape."""
    is_like = isinstance(value, torch.Tensor) and value.shape == parameter.shape and not hasattr(value, "device_mesh")
    return sharded_as(value, parameter) if is_like else value


def _stride(shape: torch.Size) -> tuple[int, ...]:
    """Returns the stride of a contiguous tensor."""
    stride: tuple[int, ...] = torch.empty(shape, device="meta").stride()
    return stride
