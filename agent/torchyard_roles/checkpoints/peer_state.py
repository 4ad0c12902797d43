"""The state of a run at a step boundary, which a worker that returns after its loss receives from a peer's memory.

It has the contents of a checkpoint, and the state of the strategy's exchange.
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
    """The decoded state."""

    step: int
    model: dict[str, Any]
    """The state of the model of the first distribute() call."""
    exchange: dict[str, Any]
    """The result of `Strategy.exchange_state()`."""
    resumed: Resumed
    """The remaining state, in the form in which a checkpoint is restored."""


def encode(saver: CheckpointSaver | None, strategy: Strategy, step: int) -> io.BytesIO:
    """Encodes the state of this process after `step`, or the reason why that is impossible."""
    encoded = io.BytesIO()
    try:
        if saver is None:
            raise UsageProblem("A worker can only return if TORCHYARD_CHECKPOINTS names a folder.")
        torch.save({"step": step, "exchange": strategy.exchange_state(), **saver.contents()}, encoded)
    except UsageProblem as problem:  # The peers continue training; only the returning worker fails.
        torch.save({"problem": problem.message}, encoded)
    return encoded


def decode(data: bytearray) -> PeerState:
    """Decodes the result of encode(). Raises UsageProblem with the peer's reason."""
    found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if "problem" in found:
        raise UsageProblem(f"The state of the run could not be sent to this worker: {found['problem']}")
    resumed = Resumed(found["step"], {**found["extra.pt"], "optimizer": found["optimizer.pt"]}, None)
    return PeerState(found["step"], found["model.pt"], found["exchange"], resumed)
