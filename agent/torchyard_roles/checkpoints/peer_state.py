"""The state of a run at a step boundary, which a worker that returns after its loss receives from a peer.

The state has the contents of a checkpoint and the state of the strategy's exchange.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch

from torchyard_roles.checkpoints.restore import Resumed
from torchyard_roles.errors import UsageProblem

if TYPE_CHECKING:
    from torchyard_roles.checkpoints.saver import CheckpointSaver
    from torchyard_roles.strategies.strategy import Strategy

LARGE = 1 << 14
"""Smallest size in bytes of a tensor that is sent directly from its memory, and received directly into memory."""


class PeerState(NamedTuple):
    """The state of a peer at a step boundary, as decoded by decode()."""

    step: int
    model: dict[str, Any]
    """The state of the first distribute() call's model."""
    exchange: dict[str, Any]
    """The exchange's state, as returned by `Strategy.exchange_state()`."""
    resumed: Resumed
    """The remaining state, in the form in which a checkpoint is restored."""


def encode(saver: CheckpointSaver | None, strategy: Strategy, step: int) -> list[torch.Tensor]:
    """Encodes the state of this process after `step`, or the reason why the state cannot be encoded.

    Returns:
        Tensors of bytes: first the structure of the state with its small values, then the values of each large tensor.
        The values share the memory of the original CPU tensors, so they are valid only until training continues.
    """
    large: list[torch.Tensor] = []

    def without_values(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.nbytes < LARGE:
            return tensor
        large.append(tensor.contiguous().reshape(-1).view(torch.uint8))
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    structure = io.BytesIO()
    try:
        if saver is None:
            raise UsageProblem("A worker can only return if TORCHYARD_CHECKPOINTS names a folder.")
        state = {"step": step, "exchange": strategy.exchange_state(), **saver.contents(copy=False)}
        torch.save(_with_tensors(state, without_values), structure)
    except UsageProblem as problem:  # The reason is sent in place of the state, so only the returning worker fails.
        large.clear()
        torch.save({"problem": problem.message}, structure)
    return [torch.frombuffer(structure.getbuffer(), dtype=torch.uint8), *large]


def decode(encoded: Sequence[torch.Tensor]) -> PeerState:
    """Decodes the result of encode(). Raises UsageProblem if the peer could not encode its state."""
    structure, *large = encoded
    values = iter(large)

    def with_values(tensor: torch.Tensor) -> torch.Tensor:
        return next(values).view(tensor.dtype).view(tensor.shape) if tensor.is_meta else tensor

    file = io.BytesIO(structure.numpy().tobytes())
    found = _with_tensors(torch.load(file, map_location="cpu", weights_only=True), with_values)
    if "problem" in found:
        raise UsageProblem(f"The state of the run could not be sent to this worker: {found['problem']}")
    resumed = Resumed(found["step"], {**found["extra.pt"], "optimizer": found["optimizer.pt"]}, None)
    return PeerState(found["step"], found["model.pt"], found["exchange"], resumed)


def _with_tensors(value: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Replaces each tensor of a state by `convert(tensor)`. Changes dicts and lists in place, and returns the state."""
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, dict):
        for key, each in value.items():
            value[key] = _with_tensors(each, convert)
    elif isinstance(value, list):
        value[:] = [_with_tensors(each, convert) for each in value]
    elif type(value) is tuple:
        return tuple(_with_tensors(each, convert) for each in value)
    return value
