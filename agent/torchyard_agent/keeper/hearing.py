"""What a host's keeper says of its ranks, as the events that the policy takes. Pure."""

from __future__ import annotations

from typing import Callable

from torchyard_agent.keeper import moves
from torchyard_agent.keeper.causes import Cause
from torchyard_agent.keeper.gang import Message
from torchyard_agent.keeper.moves import Event


def event_of(host: str, message: Message) -> Event | None:
    """None for what the policy does not decide about, such as reports."""
    made = _EVENTS.get(message["say"])
    return made(host, message) if made is not None else None


def _failed(host: str, told: Message) -> Event:
    cause = Cause(told["cause"], told.get("consequence", False))
    return moves.RankFailed(told["replica"], told["exit_code"], cause, told.get("curable", True))


_EVENTS: dict[str, Callable[[str, Message], Event]] = {
    "joined": lambda host, _: moves.Joined(host),
    "has_gpus": lambda host, _: moves.GpusTaken(host),
    "gpus_held": lambda host, told: moves.GpusHeld(host, str(told["what"])),
    "spawned": lambda _, told: moves.Spawned(told["replica"]),
    "failed": _failed,
    "ended": lambda _, told: moves.Ended(told["replica"], told["exit_code"]),
    "cleared": lambda host, told: moves.Cleared(host, told["gang"], told["generation"]),
    "back": lambda host, _: moves.HostBack(host),
    "gone": lambda host, _: moves.HostGone(host),
}
