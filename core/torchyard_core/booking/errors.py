"""Why a booking is not made, as part of the tree of errors: each with a sentence, and the nearest way to the same.

TorchyardError
├── Refused       a rule, or a mistake in what was asked, says no (exit code 1)
│   └── Clash     somebody else has a GPU then: `conflict` says which, whose, when, and what is free nearby
├── StoreAway     the database does not answer (exit code 3)
├── NoRights      this role may not do that in the database
├── StoreTooNew   the database was made by a newer Torchyard
├── StoreUnreadable  the database holds a value that cannot be read
├── BadUrl        `bookings_url` cannot be used (exit code 2)
└── BadCalendar   an `.ics` file that cannot be read (exit code 2)
"""

from __future__ import annotations

from torchyard_core.errors import TorchyardError, UsageError

WRONG_USAGE = frozenset(
    {
        "ambiguous_time",
        "bad_rule",
        "bad_time",
        "no_gpus",
        "no_such_booking",
        "no_such_time",
        "unknown_gpu",
        "unknown_zone",
    }
)
"""Codes of what was asked for in words that mean nothing here: exit code 2."""


class Refused(TorchyardError):
    """Raised when a booking is not to be: nothing was changed. `code` names the rule."""

    def __init__(self, message: str, *, code: str, hint: str = ""):
        super().__init__(message, code=code, hint=hint)
        if code in WRONG_USAGE:
            self.exit_code = UsageError.exit_code


class StoreAway(TorchyardError):
    """Raised when the bookings database does not answer. The next call tries again."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str = ""):
        super().__init__(message, code="store_away", hint=hint)


class NoRights(TorchyardError):
    """Raised when the database does not let this role do what was asked."""

    def __init__(self, message: str, *, hint: str = ""):
        super().__init__(message, code="no_rights", hint=hint)


class StoreTooNew(TorchyardError):
    """Raised when the database has a schema that this version does not know."""

    def __init__(self, place: str):
        super().__init__(
            f"{place} was made by a newer Torchyard than this one; nothing was changed.",
            code="store_too_new",
            hint="Upgrade Torchyard on this computer: `pip install --upgrade torchyard`.",
        )


class StoreUnreadable(TorchyardError):
    """Raised when the bookings database holds a value that cannot be read."""

    def __init__(self, place: str, why: str):
        super().__init__(
            f"{place} holds a value that cannot be read: {why}",
            code="store_unreadable",
            hint="An admin of the database repairs it: `torchyard bookings setup-team URL`, else by SQL.",
        )


class BadUrl(UsageError):
    """Raised when `bookings_url` is not one, or lacks what it needs."""

    def __init__(self, message: str, *, hint: str = ""):
        super().__init__(message, code="bad_bookings_url", hint=hint)


class BadCalendar(UsageError):
    """Raised when an `.ics` file cannot be read."""

    def __init__(self, message: str, *, hint: str = ""):
        super().__init__(message, code="bad_calendar", hint=hint)
