"""Errors of bookings.

TorchyardError
├── Refused       a booking is refused, or the input is invalid (exit code 1; 2 for codes in WRONG_USAGE)
│   └── Clash     another booking holds a requested GPU at the requested time (in `search.conflict`)
├── StoreUnavailable  the database is unavailable (exit code 3)
├── PermissionDenied  the user has no permission for the action
├── StoreTooNew   the database schema is that of a newer version of Torchyard
├── StoreUnreadable  the database holds an invalid value
├── BadUrl        `bookings_url` is invalid, or names a database that cannot be used (exit code 2)
└── BadCalendar   an `.ics` file cannot be read (exit code 2)
"""

from __future__ import annotations

from torchyard_core.errors import TorchyardError, UsageError
from torchyard_core.next_steps import Advice, SetUpTeam

WRONG_USAGE = frozenset(
    (
        "ambiguous_time",
        "bad_rule",
        "bad_time",
        "no_gpus",
        "no_such_booking",
        "no_such_time",
        "unknown_gpu",
        "unknown_zone",
    )
)
"""Codes of invalid input. Errors with these codes have exit code 2."""


class Refused(TorchyardError):
    """Raised when a booking or the user's input is refused. `code` identifies the reason."""

    def __init__(self, message: str, *, code: str, hint: Advice = ""):
        super().__init__(message, code=code, hint=hint)
        if code in WRONG_USAGE:
            self.exit_code = UsageError.exit_code


class StoreUnavailable(TorchyardError):
    """Raised when the bookings database is unavailable. A later call may succeed."""

    exit_code = 3

    def __init__(self, message: str, *, hint: Advice = ""):
        super().__init__(message, code="store_away", hint=hint)


class DatabaseLoginRefused(StoreUnavailable):
    """Raised when the bookings database refuses the role or its password."""


class PermissionDenied(TorchyardError):
    """Raised when the user, role or program has no permission for the action."""

    def __init__(self, message: str, *, hint: Advice = ""):
        super().__init__(message, code="no_rights", hint=hint)


class StoreTooNew(TorchyardError):
    """Raised when the database schema is that of a newer version of Torchyard."""

    def __init__(self, place: str):
        super().__init__(
            f"{place} was made by a newer Torchyard than this one; nothing was changed.",
            code="store_too_new",
            hint="Upgrade Torchyard on this computer: `pip install --upgrade torchyard`.",
        )


class StoreUnreadable(TorchyardError):
    """Raised when the bookings database holds an invalid value."""

    def __init__(self, place: str, why: str):
        hint = ("Repair the database, with SQL if necessary.", SetUpTeam())
        super().__init__(f"{place} holds a value that cannot be read: {why}", code="store_unreadable", hint=hint)


class BadUrl(UsageError):
    """Raised when `bookings_url` is invalid, or names a database that cannot be used."""

    def __init__(self, message: str, *, hint: Advice = ""):
        super().__init__(message, code="bad_bookings_url", hint=hint)


class BadRole(BadUrl):
    """Raised when the role of `bookings_url` is missing or invalid."""


class BadCalendar(UsageError):
    """Raised when an `.ics` file cannot be read."""

    def __init__(self, message: str, *, hint: Advice = ""):
        super().__init__(message, code="bad_calendar", hint=hint)
