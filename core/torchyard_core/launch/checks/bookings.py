"""Verdicts on the bookings of the GPUs that a launch uses. Pure: `torchyard_core.booking` supplies the values."""

from __future__ import annotations

from torchyard_core.launch.checks.check import Check


def check_not_booked(gpus: str) -> Check:
    """A line for GPUs that no other user has booked."""
    return _line(f"{gpus}: not booked by others")


def check_booked_later(gpus: str, owner: str, theirs: str, when: str) -> Check:
    """A warning for GPUs of which `owner` has booked `theirs` at a time `when` the run may still use them."""
    hint = "Then this run may be stopped."
    return Check("booking", "", True, f"{gpus}: {owner} has booked {theirs} {when}", hint, warning=True)


def check_in_booking(gpus: str, title: str, until: str) -> Check:
    """A line for GPUs that a booking of the user holds."""
    return _line(f"{gpus}: in your booking {title!r}, until {until}")


def check_newly_booked(gpus: str, until: str) -> Check:
    """A line for GPUs that were booked for this run."""
    return _line(f"{gpus}: booked until {until}")


def check_calendar_unavailable(gpus: str, known: str, reason: str) -> Check:
    """A warning that the calendar cannot be reached for `reason`. `known` is the age of its cached copy."""
    message = f"the calendar cannot be reached ({known}): others may have booked {gpus} since"
    return Check("booking", "", True, message, reason, warning=True, code="store_away")


def _line(message: str) -> Check:
    return Check("booking", "", True, message)
