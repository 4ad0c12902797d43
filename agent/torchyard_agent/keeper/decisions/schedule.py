"""The schedule of a run: its start time and the end of its booking.

This module does no I/O and reads no clock. Callers pass the time.
"""

from __future__ import annotations

from collections.abc import Collection

from torchyard_agent.keeper.decisions import booking_policy
from torchyard_agent.keeper.decisions.booking_policy import Deadline, OwnBooking, StartVerdict, Warned
from torchyard_agent.protocol.calendar import Calendar


class Schedule:
    """The schedule of one run. Times are seconds since 1970.

    Args:
        own: The booking for which the run was launched, or None.
        start_at: The planned start, or None if the run starts immediately.
        submitted: The time at which the keepers received the run.
        warn_s, notice_s, grace_s: As in `booking_policy.next_step`.
    """

    def __init__(
        self,
        own: OwnBooking | None,
        start_at: float | None,
        gpus: Collection[str],
        *,
        submitted: float,
        warn_s: float,
        notice_s: float,
        grace_s: float,
    ):
        self.own = own
        self.start_at = start_at
        """The planned start, or None for a run that starts immediately."""
        self._gpus = frozenset(gpus)
        self._submitted = submitted
        self._warn_s = warn_s
        self._notice_s = notice_s
        self._grace_s = grace_s
        self._calendar: Calendar | None = None
        self._warned: Warned | None = None

    def update(self, calendar: Calendar) -> bool:
        """Stores a calendar, unless a newer one is stored. Returns whether it was stored."""
        if self._calendar is not None and calendar.taken < self._calendar.taken:
            return False
        self._calendar = calendar
        return True

    def next_start(self, now: float) -> tuple[float, StartVerdict | None]:
        """Returns the start time, and whether the run may start at `now`.

        Before the start time, the second value is None unless the booking no longer exists.
        """
        assert self.start_at is not None
        at = booking_policy.start_of(self.own, self.start_at, self._calendar, now)
        verdict = booking_policy.may_begin(self.own, self._gpus, self._calendar, self._submitted, now)
        return at, verdict if at <= now or verdict.booking_gone else None

    def next_end(self, now: float) -> tuple[str, Deadline | None, float | None]:
        """Returns the action to take (`warn`, `stop` or ""), the deadline, and the time of the next call.

        The deadline and the time of the next call are None if the run has no deadline.
        """
        if self.own is None:
            return "", None, None
        deadline = booking_policy.deadline(self.own, self._gpus, self._calendar, now)
        self._warned, action, again_at = booking_policy.next_step(
            self._warned, deadline, now, warn_s=self._warn_s, notice_s=self._notice_s, grace_s=self._grace_s
        )
        return action, deadline, again_at
