"""Classifies the processes that use GPUs according to the calendar. Does no I/O.

A process is hidden if its owner cannot be determined.

| class | condition |
|---|---|
| `own` | the GPU is booked by a person who may be the owner of the process |
| `unbooked` | the GPU is not booked, and the process is not hidden |
| `others` | the GPU is booked by a person who cannot be the owner |
| `root` | the GPU is booked, and root runs the process (sudo, a container's daemon) for a session that is not verified
as the booker's, on a host for which the calendar names no users who log in as root |
| `unknown` | the process is hidden; or the GPU is booked, and no known person has the process's login |
"""

from __future__ import annotations

from typing import NamedTuple

from torchyard_agent.protocol.calendar import Calendar, CalendarBooking

OWN, UNBOOKED, OTHERS, ROOT, UNKNOWN = "own", "unbooked", "others", "root", "unknown"
VIOLATIONS = (ROOT, UNKNOWN)
"""Classes of processes that the agent reports to administrators but never ends itself."""
PROCESS, NAMESPACE, LOGIN, CGROUP, PARENT, CLAIM = "process", "namespace", "loginuid", "cgroup", "parent", "claim"


class Origin(NamedTuple):
    """The user who started a process, directly or through root."""

    uid: int | None
    """The UID, or None if it is unknown."""
    known_by: str
    """How the UID was found: PROCESS, NAMESPACE, LOGIN, CGROUP, PARENT or CLAIM, or "" if it is unknown."""
    as_root: bool = False
    """Whether the process runs as root, or in a container or user namespace that root created."""
    container: str = ""
    """The ID or name of the container, or "" if there is none."""
    session: str = ""
    """The ID of the login session, or "" if it is unknown."""


class Use(NamedTuple):
    """The use of a GPU by a process."""

    gpu: str
    pid: int
    started: int
    """The start time in ticks since boot. Together with the PID it identifies a process."""
    uid: int | None
    """The UID of the process, or None if it is hidden from this user."""
    user: str
    """The login name that belongs to `by`, the UID on whose behalf the process runs."""
    program: str = ""
    run_id: str = ""
    """The ID of the run of this agent's user to which the process belongs, or "" if there is none."""
    keeper: int = 0
    """The PID of the run's keeper if the process belongs to a run of another agent, otherwise 0."""
    claimed: str = ""
    """The person named in the record of the run, or "" if there is none."""
    origin: Origin | None = None
    """The origin of the process, or None if it is unknown. In that case, `uid` is used."""
    display_server: bool = False
    """Whether the process is a display server that also computes on the GPU.

    A display server that only draws does not count as use of a GPU.
    """

    @property
    def by(self) -> int | None:
        """The UID of the user on whose behalf the process uses the GPU, or None if it is unknown.

        It is 0 if root started the process for an unknown session.
        """
        if self.origin is None or self.uid is None:
            return self.uid
        return 0 if self.origin.as_root and self.origin.uid is None else self.origin.uid

    @property
    def as_root(self) -> bool:
        return self.origin is not None and self.origin.as_root


class Finding(NamedTuple):
    """The classified use of one GPU by one process."""

    use: Use
    verdict: str
    persons: tuple[str, ...]
    """The possible owners of the process. There may be several, because people may share a login."""
    booking: CalendarBooking | None

    @property
    def persons_text(self) -> str:
        """The possible owners in words, such as "kim" or "one of kim, lee", or the login if no owner is known."""
        if not self.persons:
            return self.use.user
        return self.persons[0] if len(self.persons) == 1 else f"one of {', '.join(self.persons)}"


def classify(use: Use, calendar: Calendar, host: str, now: float) -> Finding:
    """Classifies the use of a GPU.

    If one of the people who share a login has booked the GPU, the process counts as a process of this person.

    Args:
        host: This host's name in the fleet.
    """
    booking = calendar.on(use.gpu, now)
    persons: tuple[str, ...] = ()
    is_roots = use.as_root
    if use.by is not None:
        persons = calendar.persons_of(host, use.user)
        if use.uid == 0 and use.origin is not None and not use.origin.container:
            # If the calendar names the people who log in as root, the session can only select one of them.
            of_root = calendar.persons_of(host, "root")
            is_roots = is_roots and not of_root
            persons = tuple(one for one in persons if one in of_root) or of_root or persons
        # Users can write their run's record. The record may therefore only select one of the people who share a login
        # or, if no known person has this login, a person in the calendar.
        if use.claimed and (use.claimed in persons or (not persons and calendar.knows(use.claimed))):
            persons = (use.claimed,)
            is_roots = False
    return Finding(use, _verdict(use, is_roots, persons, booking), persons, booking)


def _verdict(use: Use, is_roots: bool, persons: tuple[str, ...], booking: CalendarBooking | None) -> str:
    if use.by is None:
        return UNKNOWN
    if booking is None:
        return UNBOOKED
    if booking.owner in persons and not (is_roots and use.origin is not None and use.origin.known_by == CLAIM):
        return OWN
    if is_roots:
        return ROOT
    return OTHERS if persons else UNKNOWN
