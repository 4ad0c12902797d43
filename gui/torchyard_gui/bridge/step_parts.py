"""What a replica's steps are made of, in words: computing, exchanging, waiting, and how old what it worked with was."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QCoreApplication

from torchyard_core.telemetry.amounts import count, seconds
from torchyard_gui.bridge.run_parts import Track

translate = QCoreApplication.translate

WRITTEN: dict[str, Callable[[float], str]] = {
    "compute_s": seconds,
    "exchange_s": seconds,
    "wait_s": seconds,
    "staleness": count,
    "dropped": count,
    "skipped": count,
}
"""By the field of a report, how its value is written."""
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
    }[field]


def sentence_of(field: str) -> str:
    """What a field is."""
    return {
        "compute_s": translate("Runs", "Time that a step takes to compute"),
        "exchange_s": translate("Runs", "Time that a step takes to send and receive gradients or parameters"),
        "wait_s": translate("Runs", "Time that a step waits for other replicas"),
        "staleness": translate("Runs", "How many versions behind the servers its parameters are"),
        "dropped": translate("Runs", "Pushes that the servers have dropped so far: too old, or not waited for"),
        "skipped": translate("Runs", "Steps that were skipped so far: gradients were not finite"),
    }[field]


def step_parts(track: Track) -> list[tuple[str, str]]:
    """(name, value) of what a replica told."""
    told = ((field, track.ring.last(field)) for field in WRITTEN)
    return [(name_of(field).lower(), written(field, value)) for field, value in told if value is not None]
