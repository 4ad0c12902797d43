"""What a replica's steps are made of, in words: computing, exchanging, waiting, and how old what it worked with was;
and how one that serves them does."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QCoreApplication

from torchyard_core.formatting import count, seconds, traffic
from torchyard_gui.bridge.run_state_types import Track

translate = QCoreApplication.translate

WRITTEN: dict[str, Callable[[float], str]] = {
    "compute_s": seconds,
    "exchange_s": seconds,
    "wait_s": seconds,
    "staleness": count,
    "dropped": count,
    "skipped": count,
    "version": count,
    "clients": count,
    "bytes_s": traffic,
}
"""By the field of a report, how its value is written."""
OF_SERVERS = ("version", "clients", "bytes_s")
"""What only servers and reducers tell."""
NONE = "–"


def written(field: str, value: float | None) -> str:
    """A value with its unit; a dash where the strategy has none, never a zero."""
    return NONE if value is None else WRITTEN[field](value)


def name_of(field: str) -> str:
    """What the window calls a field."""
    return {
        "compute_s": translate("Runs", "Compute"),
        "exchange_s": translate("Runs", "Exchange"),
        "wait_s": translate("Runs", "Waiting"),
        "staleness": translate("Runs", "Staleness"),
        "dropped": translate("Runs", "Dropped"),
        "skipped": translate("Runs", "Skipped"),
        "version": translate("Runs", "Version"),
        "clients": translate("Runs", "Trainers"),
        "bytes_s": translate("Runs", "Traffic"),
    }[field]


def sentence_of(field: str, *, served: bool = False) -> str:
    """What a field is; `served`: of a server or reducer, some of whose numbers mean something else."""
    of_server = {
        "wait_s": translate("Runs", "Time that the newest step waited here for its last trainer"),
        "staleness": translate("Runs", "How many versions behind the newest gradients were"),
        "skipped": translate("Runs", "Steps that were left out here so far: no gradients were finite"),
    }
    if served and field in of_server:
        return of_server[field]
    return {
        "compute_s": translate("Runs", "Time that a step takes to compute"),
        "exchange_s": translate("Runs", "Time that a step takes to send and receive gradients or parameters"),
        "wait_s": translate("Runs", "Time that a step waits for other replicas"),
        "staleness": translate("Runs", "How many versions behind the servers its parameters are"),
        "dropped": translate("Runs", "Pushes that the servers have dropped so far: too old, or not waited for"),
        "skipped": translate("Runs", "Steps that were skipped so far: gradients were not finite"),
        "version": translate("Runs", "Pushes that a server has accepted so far, of whole worker groups"),
        "clients": translate("Runs", "Trainers that are connected to a server or reducer"),
        "bytes_s": translate("Runs", "Bytes a second that a server or reducer sends and receives together"),
    }[field]


def step_parts(track: Track) -> list[tuple[str, str]]:
    """(name, value) of what a replica told."""
    told = ((field, track.ring.last(field)) for field in WRITTEN)
    return [(name_of(field).lower(), written(field, value)) for field, value in told if value is not None]
