"""Decides which actions follow from the classified uses of GPUs: records, warnings and signals. No I/O.

At the level observe, a new use of a GPU that the user has not booked is recorded. At the level warn, the user is also
warned once. At the level stop, a process that uses a GPU booked by another person is ended after the grace period, by
SIGTERM and 10 s later by SIGKILL (2 min later for a run, which is ended through its keeper). The user of a display
server is only warned. The grace period and the delay before SIGKILL are measured for each user, GPU and booking,
beginning with the first process. A process that is restarted every few seconds therefore gets no additional time.

Processes on a GPU that is not booked are never ended, because a launch on one host needs no booking. Processes of root
and of unknown logins are reported to administrators. Their users are warned, but the processes are never ended. Only
users whose processes the agent may signal are warned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Optional

from torchyard_agent.enforcement.classification import OTHERS, OWN, ROOT, UNBOOKED, UNKNOWN, VIOLATIONS, Finding
from torchyard_agent.protocol.calendar import OBSERVE, OFF, STOP, Enforcement

KILL_AFTER_S = 10.0
RUN_KILL_AFTER_S = 120.0
"""Time in seconds from SIGTERM to SIGKILL for a run. The run needs this time to save its state."""
FORGET_AFTER_S = 3600.0
"""The record of a user of an unbooked GPU is discarded after this many seconds without use.

For a booked GPU, the record is discarded when the booking ends.
"""
QUIET_S = 600.0
"""If a user did not use the GPU for this many seconds, the user's next process is again sent SIGTERM before SIGKILL.

The next process may belong to another person who shares the login.
"""
MAX_NOTED = 10
"""Maximum number of a user's processes on one GPU that are recorded during one booking.

The user is warned only about the recorded processes. The termination of a process is always recorded.
"""
MAX_NOTICES = 2000
_ORDER = (OTHERS, ROOT, UNKNOWN, UNBOOKED, OWN)
"""The classes of use, worst first. If a process uses several GPUs, its worst class is used."""

Key = tuple[int, int]
"""The PID and start time that identify a process."""
NoticeKey = tuple[Optional[int], str, str]
"""The UID of a user (None if unknown), a GPU, and the ID of a booking ("" if the GPU is not booked)."""

NOTE, REPORT, WARN, TERMINATE, KILL = "observed", "reported", "warned", "terminated", "killed"


class Case(NamedTuple):
    """A process that uses a GPU for which its owner has no booking."""

    finding: Finding
    gpus: tuple[str, ...]
    since: float
    warned: bool = False
    stop_at: float | None = None
    """The time, announced in the warning, at which the process will be ended, or None if it will not be ended."""
    terminated: bool = False
    killed: bool = False


class Notice(NamedTuple):
    """The warnings to one user about the use of one GPU during one booking. They apply to all processes of the user."""

    until: float
    """The end of the booking, or infinity if the GPU is not booked."""
    seen: float
    processes: int = 0
    stop_at: float | None = None
    terminated_at: float | None = None
    """The time at which the first process was sent SIGTERM."""


class Act(NamedTuple):
    """An action to carry out now and to record in the audit log."""

    what: str
    case: Case
    stop_at: float | None = None
    """For a warning, the time at which the process will be ended. None if it will not be ended."""


class State(NamedTuple):
    """The state of enforcement between two samples: its cases and notices."""

    cases: Mapping[Key, Case]
    notices: Mapping[NoticeKey, Notice]


EMPTY = State({}, {})


def proceed(
    state: State,
    findings: Iterable[Finding],
    policy: Enforcement,
    reach: int | None,
    now: float,
    *,
    is_fresh: bool = True,
) -> tuple[State, list[Act]]:
    """Returns the new state and the actions after a sample.

    The case of a process that has ended is dropped. A case whose class or booking has changed starts again. If the
    calendar is stale, uses are only recorded, and earlier warnings remain valid.

    Args:
        reach: The UID whose processes the agent may signal, or None if it may signal those of all users.
    """
    acts: list[Act] = []
    if policy.level == OFF:
        return EMPTY, acts
    cases: dict[Key, Case] = {}
    notices = {notice_key: notice for notice_key, notice in state.notices.items() if not _is_over(notice, now)}
    if policy.level != STOP:  # If the level was lowered below stop, no process is ended, even if its end was announced.
        notices = {key: notice._replace(stop_at=None, terminated_at=None) for key, notice in notices.items()}
    for key, (finding, gpus) in _by_process(findings).items():
        if finding.verdict == OWN:
            continue
        notice_keys = [_notice_key(finding, gpu) for gpu in gpus]
        for notice_key in notice_keys:
            notices[notice_key] = _renewed(notices.get(notice_key), finding, now)
        case = state.cases.get(key)
        if case is None or _matter(case.finding) != _matter(finding):
            case = Case(finding, gpus, now)
            for notice_key in notice_keys:
                notices[notice_key] = notices[notice_key]._replace(processes=notices[notice_key].processes + 1)
            if _is_few(notice_keys, notices):
                acts.append(Act(REPORT if finding.verdict in VIOLATIONS else NOTE, case))
        else:
            case = case._replace(finding=finding, gpus=gpus)
        if is_fresh and policy.level != OBSERVE and _may_act_on(finding, reach):
            case = _escalate(case, notice_keys, notices, policy, now, acts)
        cases[key] = case
    oldest = sorted(notices, key=lambda key: notices[key].seen)[: max(0, len(notices) - MAX_NOTICES)]
    return State(cases, {key: notice for key, notice in notices.items() if key not in oldest}), acts


def _escalate(
    case: Case,
    notice_keys: list[NoticeKey],
    notices: dict[NoticeKey, Notice],
    policy: Enforcement,
    now: float,
    acts: list[Act],
) -> Case:
    """Adds the action that is due for a case, if any, to `acts`, and updates `notices`. Returns the updated case."""
    stop_at = None
    is_first = False
    if policy.level == STOP and case.finding.verdict == OTHERS and not case.finding.use.display_server:
        known = [at for at in (notices[notice_key].stop_at for notice_key in notice_keys) if at is not None]
        is_first = not known
        stop_at = min(known, default=now + policy.grace_s)
        for notice_key in notice_keys:
            if notices[notice_key].stop_at is None:
                notices[notice_key] = notices[notice_key]._replace(stop_at=now + policy.grace_s)
    if stop_at is None or is_first or now < stop_at:
        is_news = not case.warned or (stop_at is not None and stop_at != case.stop_at)
        if is_news and _is_few(notice_keys, notices):
            acts.append(Act(WARN, case, stop_at))
        return case._replace(warned=True, stop_at=stop_at, terminated=False, killed=False)
    asked = [at for at in (notices[notice_key].terminated_at for notice_key in notice_keys) if at is not None]
    use = case.finding.use
    kill_after_s = RUN_KILL_AFTER_S if use.run_id or use.keeper else KILL_AFTER_S
    is_late = bool(asked) and now >= min(asked) + kill_after_s
    if not case.terminated and not is_late:
        for notice_key in notice_keys:
            if notices[notice_key].terminated_at is None:
                notices[notice_key] = notices[notice_key]._replace(terminated_at=now)
        acts.append(Act(TERMINATE, case))
        return case._replace(terminated=True)
    if is_late and not case.killed:
        acts.append(Act(KILL, case))
        return case._replace(killed=True)
    return case


def _renewed(notice: Notice | None, finding: Finding, now: float) -> Notice:
    until = finding.booking.end if finding.booking is not None else math.inf
    if notice is None:
        return Notice(until, now)
    asked = None if now - notice.seen >= QUIET_S else notice.terminated_at
    return notice._replace(until=until, seen=now, terminated_at=asked)


def _is_over(notice: Notice, now: float) -> bool:
    return now >= notice.until or (notice.until == math.inf and now - notice.seen >= FORGET_AFTER_S)


def _is_few(notice_keys: list[NoticeKey], notices: Mapping[NoticeKey, Notice]) -> bool:
    return any(notices[notice_key].processes <= MAX_NOTED for notice_key in notice_keys)


def _may_act_on(finding: Finding, reach: int | None) -> bool:
    """Returns whether the user is known and the agent may signal the user's processes.

    Returns False if the login belongs to no known person and the GPU is not booked. Such a use is only recorded.
    """
    use = finding.use
    known = use.by is not None and (bool(finding.persons) or finding.verdict in VIOLATIONS)
    return known and (reach is None or use.by == reach)


def _notice_key(finding: Finding, gpu: str) -> NoticeKey:
    return finding.use.by, gpu, finding.booking.id if finding.booking is not None else ""


def _matter(finding: Finding) -> tuple[str, str]:
    return finding.verdict, finding.booking.id if finding.booking is not None else ""


def _by_process(findings: Iterable[Finding]) -> dict[Key, tuple[Finding, tuple[str, ...]]]:
    """Returns, for each process, its worst classified use and the GPUs that have this class."""
    found: dict[Key, list[Finding]] = {}
    for finding in findings:
        found.setdefault((finding.use.pid, finding.use.started), []).append(finding)
    worst: dict[Key, tuple[Finding, tuple[str, ...]]] = {}
    for key, several in found.items():
        first = min(several, key=lambda one: _ORDER.index(one.verdict))
        worst[key] = first, tuple(one.use.gpu for one in several if one.verdict == first.verdict)
    return worst
