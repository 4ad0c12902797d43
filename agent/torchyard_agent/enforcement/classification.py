"""What is to be thought of a process on a GPU. Pure.

| verdict | when |
|---|---|
| `own` | the GPU is booked by a person who may be the owner of the process |
| `unbooked` | the GPU is not booked |
| `others` | it is booked by a person who cannot be the owner |
| `root` | it is booked, and root runs the process (sudo, a container's daemon) for a session that is not the booker's |
| `unknown` | it is booked, and the process is hidden, or of a login that no table names |
"""

from __future__ import annotations

from typing import NamedTuple

from torchyard_agent.protocol.calendar import Booked, Calendar

OWN, UNBOOKED, OTHERS, ROOT, UNKNOWN = "own", "unbooked", "others", "root", "unknown"
VIOLATIONS = (ROOT, UNKNOWN)
"""Reported to admins; ending them is left to admins."""
PROCESS, NAMESPACE, LOGIN, CGROUP, PARENT, CLAIM = "process", "namespace", "loginuid", "cgroup", "parent", "claim"


class Origin(NamedTuple):
    """The user that a process comes from."""

    uid: int | None
    """None where that is not known."""
    known_by: str
    """PROCESS (its own UID), NAMESPACE, LOGIN, CGROUP, PARENT or CLAIM; empty where it is not known."""
    as_root: bool = False
    """It runs as root, or in what root made: a container, a user namespace."""
    container: str = ""
    """ID or name."""
    session: str = ""
    """Of the login."""


class Use(NamedTuple):
    """A process on a GPU."""

    gpu: str
    pid: int
    started: int
    """The kernel's start time, in ticks since the boot: with the PID it names one process for good."""
    uid: int | None
    """Of the process. None where it cannot be seen."""
    user: str
    """The login that the process comes from."""
    program: str = ""
    run_id: str = ""
    """Of the run of this agent's user that it belongs to."""
    keeper: int = 0
    """PID of the keeper of another user's run that it belongs to."""
    claimed: str = ""
    """The person that the run's own record names."""
    origin: Origin | None = None
    """None: its own UID."""
    display_server: bool = False
    """Its executable is a display server's, and yet it computes: something was loaded into it."""

    @property
    def by(self) -> int | None:
        """UID of the user whose use this is; root's where root's daemon was asked by an unknown session."""
        if self.origin is None or self.uid is None:
            return self.uid
        return 0 if self.origin.as_root and self.origin.uid is None else self.origin.uid

    @property
    def as_root(self) -> bool:
        return self.origin is not None and self.origin.as_root


class Finding(NamedTuple):
    """What one process does on one GPU, by the calendar."""

    use: Use
    verdict: str
    persons: tuple[str, ...]
    """Who its owner may be: several share a login."""
    booking: Booked | None

    @property
    def who(self) -> str:
        """ "kim", "one of kim, lee", or the login that the calendar does not know."""
        if not self.persons:
            return self.use.user
        return self.persons[0] if len(self.persons) == 1 else f"one of {', '.join(self.persons)}"


def judge(use: Use, calendar: Calendar, host: str, now: float) -> Finding:
    """`host`: as the fleet calls this one. A shared login is given the benefit of the doubt."""
    booking = calendar.on(use.gpu, now)
    persons: tuple[str, ...] = ()
    is_roots = use.as_root
    if use.by is not None:
        persons = calendar.persons_of(host, use.user)
        if use.uid == 0 and use.origin is not None and not use.origin.container:
            # Where the table says who logs in as root, the session can only tell which of them it is.
            of_root = calendar.persons_of(host, "root")
            is_roots = is_roots and not of_root
            persons = tuple(one for one in persons if one in of_root) or of_root or persons
        # A record is the user's own word: it can tell who of those that share a login it is, and nothing else.
        if use.claimed and (use.claimed in persons or (not persons and calendar.knows(use.claimed))):
            persons = (use.claimed,)
            is_roots = False
    return Finding(use, _verdict(use, is_roots, persons, booking), persons, booking)


def _verdict(use: Use, is_roots: bool, persons: tuple[str, ...], booking: Booked | None) -> str:
    if use.by is None:
        return UNKNOWN
    if booking is None:
        return UNBOOKED
    if booking.owner in persons and not (is_roots and use.origin is not None and use.origin.known_by == CLAIM):
        return OWN
    if is_roots:
        return ROOT
    return OTHERS if persons else UNKNOWN
