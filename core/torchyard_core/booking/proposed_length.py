"""The length that is proposed for the booking of a run, derived from the durations of earlier runs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from torchyard_core.booking.model import USUAL_LENGTH
from torchyard_core.launch.runs.history import RunRecord

LONGER = 1.25
STEP = timedelta(minutes=15)


def proposed_length(records: Iterable[RunRecord], name: str) -> timedelta:
    """Returns 125 % of the duration of the newest successful run named `name`, rounded up to a multiple of 15 min.

    Returns 8 h if no run named `name` has succeeded.

    Args:
        records: The runs of this desktop, newest first.
        name: The name of the run.
    """
    for record in records:
        if record.name != name or not record.ended or record.state != "succeeded":
            continue
        try:
            took = datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.submitted)
        except (ValueError, TypeError):
            continue
        steps = -(-took * LONGER // STEP)  # The negated floor division rounds up.
        return max(STEP, STEP * steps)
    return USUAL_LENGTH
