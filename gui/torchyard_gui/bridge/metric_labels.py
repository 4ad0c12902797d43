"""Names, values and explanations of step parts (compute, exchange, waiting, staleness) and of server metrics."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QCoreApplication

from torchyard_core.formatting import count, format_byte_rate, seconds
from torchyard_gui.bridge.run_state_types import ReplicaStatus

translate = QCoreApplication.translate

WRITTEN: dict[str, Callable[[float], str]] = {
    "compute_s": seconds,
    "exchange_s": seconds,
    "wait_s": seconds,
    "staleness": count,
    "dropped": count,
    "skipped": count,
    "noise_scale": count,
    "version": count,
    "clients": count,
    "bytes_s": format_byte_rate,
}
"""Functions that format a value, by field of a report."""
OF_SERVERS = ("version", "clients", "bytes_s")
"""Fields that only servers and reducers report."""
IF_REPORTED = (*OF_SERVERS, "noise_scale")
"""Fields that are not shown for a trainer that does not report them."""
NONE = "–"


def written(field: str, value: float | None) -> str:
    """Returns a value with its unit, or a dash for None."""
    return NONE if value is None else WRITTEN[field](value)


def name_of(field: str) -> str:
    """Returns the displayed name of a metric."""
    return {
        "compute_s": translate("Runs", "Compute"),
        "exchange_s": translate("Runs", "Exchange"),
        "wait_s": translate("Runs", "Waiting"),
        "staleness": translate("Runs", "Staleness"),
        "dropped": translate("Runs", "Dropped"),
        "skipped": translate("Runs", "Skipped"),
        "noise_scale": translate("Runs", "Largest useful batch"),
        "version": translate("Runs", "Version"),
        "clients": translate("Runs", "Trainers"),
        "bytes_s": translate("Runs", "Traffic"),
    }[field]


def sentence_of(field: str, *, served: bool = False) -> str:
    """Returns a sentence that explains a metric. With `served`, the sentence explains the metric for servers and
    reducers.
    """
    of_server = {
        "wait_s": translate("Runs", "Time that the newest step waited here for its last trainer"),
        "staleness": translate("Runs", "Versions by which the newest gradients were behind"),
        "skipped": translate("Runs", "Steps skipped here so far because no gradients were finite"),
    }
    if served and field in of_server:
        return of_server[field]
    return {
        "compute_s": translate("Runs", "Time that a step takes to compute"),
        "exchange_s": translate("Runs", "Time that a step takes to send and receive gradients or parameters"),
        "wait_s": translate("Runs", "Time that a step waits for other replicas"),
        "staleness": translate("Runs", "Versions by which its parameters are behind the servers"),
        "dropped": translate("Runs", "Pushes that the servers have dropped so far: too old, or not waited for"),
        "skipped": translate("Runs", "Steps that were skipped so far: gradients were not finite"),
        "noise_scale": translate(
            "Runs", "Gradient noise scale in samples: larger global batches hardly reduce the number of steps"
        ),
        "version": translate("Runs", "Pushes that a server has accepted so far, of whole worker groups"),
        "clients": translate("Runs", "Trainers that are connected to a server or reducer"),
        "bytes_s": translate("Runs", "Bytes a second that a server or reducer sends and receives together"),
    }[field]


def step_parts(track: ReplicaStatus) -> list[tuple[str, str]]:
    """Returns the names and values of the metrics that a replica has reported."""
    values = ((field, track.ring.last(field)) for field in WRITTEN)
    return [(name_of(field).lower(), written(field, value)) for field, value in values if value is not None]
