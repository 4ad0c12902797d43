"""The state of a run at a step boundary, which a worker that returns after its loss receives from a peer.

The state has the contents of a checkpoint and the state of the strategy's exchange.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torchyard_roles.checkpoints.restore import Resumed
from torchyard_roles.errors import UsageProblem

if TYPE_CHECKING:
    from torchyard_roles.checkpoints.saver import CheckpointSaver
    from torchyard_roles.strategies.base import Strategy


class PeerState(NamedTuple):
    """The state of a peer at a step boundary, as decoded by decode()."""

    step: int
    model: dict[str, Any]
    """The state of the model of the first distribute() call."""
    exchange: dict[str, Any]
    """The exchange's state, as returned by `Strategy.exchange_state()`."""
    resumed: Resumed
    """The remaining state, in the form in which a checkpoint is restored."""


def encode(saver: CheckpointSaver | None, strategy: Strategy, step: int) -> io.BytesIO:
    """Encodes the state of this process after `step`. If the state cannot be encoded, encodes the reason."""
    encoded = io.BytesIO()
    try:
        if saver is None:
            raise UsageProblem("A worker can only return if TORCHYARD_CHECKPOINTS names a folder.")
        torch.save({"step": step, "exchange": strategy.exchange_state(), **saver.contents()}, encoded)
    except UsageProblem as problem:  # Only the returning worker fails. The peer continues training.
        torch.save({"problem": problem.message}, encoded)
    return encoded


def decode(data: bytearray) -> PeerState:
    """Decodes a state that encode() has encoded. Raises UsageProblem if the peer sent a reason instead."""
    found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if "problem" in found:
        raise UsageProblem(f"The state of the run could not be sent to this worker: {found['problem']}")
    resumed = Resumed(found["step"], {**found["extra.pt"], "optimizer": found["optimizer.pt"]}, None)
    return PeerState(found["step"], found["model.pt"], found["exchange"], resumed)
