"""What a host's keeper says of its ranks, as the events that the policy takes. Pure."""

from __future__ import annotations

from typing import Callable

from torchyard_agent.keeper.decisions import events
from torchyard_agent.keeper.decisions.events import Event
from torchyard_agent.keeper.link.gang_link import Message
from torchyard_agent.keeper.processes.failure_diagnosis import Cause


def event_of(host: str, message: Message) -> Event | None:
    """None for what the policy does not decide about, such as reports."""
    made = _EVENTS.get(message["say"])
    return made(host, message) if made is not None else None


def _failed(host: str, told: Message) -> Event:
    cause = Cause(told["cause"], told.get("consequence", False))
    return events.RankFailed(told["replica"], told["exit_code"], cause, told.get("curable", True))


_EVENTS: dict[str, Callable[[str, Message], Event]] = {
    "joined": lambda host, _: events.Joined(host),
    "has_gpus": lambda host, _: events.GpusTaken(host),
    "gpus_held": lambda host, told: events.GpusHeld(host, str(told["what"])),
    "spawned": lambda _, told: events.Spawned(told["replica"]),
    "failed": _failed,
    "ended": lambda _, told: events.Ended(told["replica"], told["exit_code"]),
    "cleared": lambda host, told: events.Cleared(host, told["gang"], told["generation"]),
    "back": lambda host, _: events.HostBack(host),
    "gone": lambda host, _: events.HostGone(host),
}
