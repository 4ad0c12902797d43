"""Attributes the use of GPUs to team members. Hosts report the use by UNIX user name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torchyard_core.booking.model import Login, Use, from_rfc3339

HostReports = Mapping[str, Mapping[str, Any]]
"""Responses to `bookings.evidence`, by host."""


def reported_uses(reports: HostReports, logins: Sequence[Login]) -> tuple[Use, ...]:
    """Converts the hosts' reports to uses of GPUs by team members.

    A use is attributed to the person in the report. If the report contains no person, or `logins` assigns the user name
    on that host to other team members, the use is attributed to the assigned member. Several assigned members are
    joined as "one of: kim, lee". If no entry of `logins` contains the user name, the user name itself is the person. If
    the user name occurs only in entries for other hosts, or as a person, the host is added: "kim on gpu-a". Invalid
    reports are ignored.
    """
    uses = []
    for host, answer in reports.items():
        for one in answer.get("uses", ()):
            try:
                start, end = from_rfc3339(str(one["start"])), from_rfc3339(str(one["end"]))
                gpu, user, run_id = str(one["gpu"]), str(one["user"]), str(one["run_id"]) or None
                persons = persons_of(logins, host, user) or ((f"{user} on {host}",) if user else ())
                person = str(one["person"])
            except (ValueError, KeyError, TypeError):
                continue
            is_named = persons not in ((), (user,), (f"{user} on {host}",))
            if not person or (is_named and person not in persons):
                person = persons[0] if len(persons) == 1 else f"one of: {', '.join(persons)}" if persons else ""
            if end > start and gpu:
                uses.append(Use(gpu, host, person, start, end, run_id))
    return tuple(uses)


def persons_of(logins: Iterable[Login], host: str, user: str) -> tuple[str, ...]:
    """Returns the sorted names of the team members to whom a user name on a host belongs.

    If no entry for any host contains the name, either as the user or as the person, the name itself is returned.
    """
    entries = tuple(logins)
    found = {entry.person for entry in entries if entry.user == user and fnmatchcase(host, entry.host_pattern)}
    if not found and user and not any(user in (entry.user, entry.person) for entry in entries):
        return (user,)
    return tuple(sorted(found))
