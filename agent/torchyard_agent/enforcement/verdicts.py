"""What is to be thought of a process on a GPU. Pure.

| verdict | when |
|---|---|
| `own` | the GPU is booked by who may be the owner of the process |
| `unbooked` | nobody has booked it |
| `others` | it is booked by somebody who cannot be the owner |
| `unknown` | it is booked, and nobody knows whose the process is: a container's, or a login that no table names |
"""

from __future__ import annotations

from typing import NamedTuple

from torchyard_agent.protocol.calendar import Booked, Calendar

OWN, UNBOOKED, OTHERS, UNKNOWN = "own", "unbooked", "others", "unknown"


class Use(NamedTuple):
    """A process on a GPU."""

    gpu: str
    pid: int
    started: int
    """The kernel's start time, in ticks since the boot: with the PID it names one process for good."""
    uid: int | None
    """None where the process cannot be seen."""
    user: str
    program: str = ""
    run_id: str = ""
    """Of the run of this agent's user that it belongs to."""
    keeper: int = 0
    """PID of the keeper of another user's run that it belongs to."""
    claimed: str = ""
    """The person that the run's own record names."""


class Finding(NamedTuple):
    """What one process does on one GPU, by the calendar."""

    use: Use
    verdict: str
    persons: tuple[str, ...]
    """Who its owner may be: several share a login."""
    booking: Booked | None

    @property
    def who(self) -> str:
        """ "kim", "one of kim, lee", or the login that nobody knows."""
        if not self.persons:
            return self.use.user
        return self.persons[0] if len(self.persons) == 1 else f"one of {', '.join(self.persons)}"


def judge(use: Use, calendar: Calendar, host: str, now: float) -> Finding:
    """`host`: as the fleet calls this one. A shared login is given the benefit of the doubt."""
    booking = calendar.on(use.gpu, now)
    persons: tuple[str, ...] = ()
    if use.uid is not None:
        persons = calendar.persons_of(host, use.user)
        # A record is the user's own word: it can tell who of those that share a login it is, and nothing else.
        if use.claimed and (use.claimed in persons or (not persons and calendar.knows(use.claimed))):
            persons = (use.claimed,)
    if use.uid is None:
        verdict = UNKNOWN
    elif booking is None:
        verdict = UNBOOKED
    elif not persons:
        verdict = UNKNOWN
    else:
        verdict = OWN if booking.owner in persons else OTHERS
    return Finding(use, verdict, persons, booking)
