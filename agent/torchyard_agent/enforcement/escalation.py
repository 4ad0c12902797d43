"""What is done about the processes that were found, and when. Pure: findings in, acts out.

observe: every new finding is noted. warn: the user is warned, once. stop: use of another person's booking is ended once
the grace is over: SIGTERM, and SIGKILL 10 s later (of a run: 2 min, its keeper sees to it).

Grace and delay are counted for each user, GPU and booking, from the first process on: one that is started anew
every few seconds gets no time of its own.

Unbooked use is never ended: a launch on one host needs no booking. Neither is a process of root's or of a login that
the calendar does not know: it is reported to admins. No process is warned or ended that this agent has no right over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Optional

from torchyard_agent.enforcement.classification import OTHERS, OWN, ROOT, UNBOOKED, UNKNOWN, VIOLATIONS, Finding
from torchyard_agent.protocol.calendar import OBSERVE, OFF, STOP, Enforcement

KILL_AFTER_S = 10.0
RUN_KILL_AFTER_S = 120.0
"""Of a run: its keeper asks it to save, and has a grace of its own."""
FORGET_AFTER_S = 3600.0
"""A user of a GPU that is not booked is forgotten after so long without use; one on a booking at its end."""
QUIET_S = 600.0
"""After so long without use SIGTERM comes first again: several persons may share the login."""
MOST_NOTED = 10
"""Processes of a user on a GPU under one booking that are noted and warned. Those that are ended are all noted."""
MOST_NOTICES = 2000
_ORDER = (OTHERS, ROOT, UNKNOWN, UNBOOKED, OWN)
"""A process on several GPUs is what it is at worst."""

Key = tuple[int, int]
"""PID and start time."""
Ground = tuple[Optional[int], str, str]
"""UID, GPU and booking's ID."""

NOTE, REPORT, TELL, TERMINATE, KILL = "observed", "reported", "warned", "terminated", "killed"


class Case(NamedTuple):
    """One process that does not use what is its own."""

    finding: Finding
    gpus: tuple[str, ...]
    since: float
    warned: bool = False
    stop_at: float | None = None
    """When it will be ended, as the warning said."""
    terminated: bool = False
    killed: bool = False


class Notice(NamedTuple):
    """What a user has been told about a GPU under one booking, whatever their processes are."""

    until: float
    """End of the booking."""
    seen: float
    processes: int = 0
    stop_at: float | None = None
    terminated_at: float | None = None
    """When the first process was asked to end."""


class Act(NamedTuple):
    """One thing to do now, and to note in the audit."""

    what: str
    case: Case
    stop_at: float | None = None
    """In a warning: when the process will be ended."""


class State(NamedTuple):
    """What is remembered from look to look."""

    cases: Mapping[Key, Case]
    notices: Mapping[Ground, Notice]


EMPTY = State({}, {})


def proceed(
    state: State,
    findings: Iterable[Finding],
    told: Enforcement,
    reach: int | None,
    now: float,
    *,
    is_fresh: bool = True,
) -> tuple[State, list[Act]]:
    """The state after a look, and what follows. `reach`: the UID whose processes this agent may act on; None: all.

    A process that has gone has no case any more; one whose verdict or booking has changed begins anew. By a calendar
    that is not fresh, findings are noted and no more; what users were told before stays told.
    """
    acts: list[Act] = []
    if told.level == OFF:
        return EMPTY, acts
    cases: dict[Key, Case] = {}
    notices = {ground: notice for ground, notice in state.notices.items() if not _is_over(notice, now)}
    if told.level != STOP:  # what was announced is taken back
        notices = {ground: notice._replace(stop_at=None, terminated_at=None) for ground, notice in notices.items()}
    for key, (finding, gpus) in _by_process(findings).items():
        if finding.verdict == OWN:
            continue
        grounds = [_ground(finding, gpu) for gpu in gpus]
        for ground in grounds:
            notices[ground] = _seen(notices.get(ground), finding, now)
        case = state.cases.get(key)
        if case is None or _matter(case.finding) != _matter(finding):
            case = Case(finding, gpus, now)
            for ground in grounds:
                notices[ground] = notices[ground]._replace(processes=notices[ground].processes + 1)
            if _is_few(grounds, notices):
                acts.append(Act(REPORT if finding.verdict in VIOLATIONS else NOTE, case))
        else:
            case = case._replace(finding=finding, gpus=gpus)
        if is_fresh and told.level != OBSERVE and _may_act_on(finding, reach):
            case = _press(case, grounds, notices, told, now, acts)
        cases[key] = case
    oldest = sorted(notices, key=lambda ground: notices[ground].seen)[: max(0, len(notices) - MOST_NOTICES)]
    return State(cases, {ground: notice for ground, notice in notices.items() if ground not in oldest}), acts


def _press(
    case: Case, grounds: list[Ground], notices: dict[Ground, Notice], told: Enforcement, now: float, acts: list[Act]
) -> Case:
    """Warns, ends or waits, and writes down in the notices what the user has been told."""
    stop_at = None
    is_first = False
    if told.level == STOP and case.finding.verdict == OTHERS and not case.finding.use.display_server:
        known = [at for at in (notices[ground].stop_at for ground in grounds) if at is not None]
        is_first = not known
        stop_at = min(known, default=now + told.grace_s)
        for ground in grounds:
            if notices[ground].stop_at is None:
                notices[ground] = notices[ground]._replace(stop_at=now + told.grace_s)
    if stop_at is None or is_first or now < stop_at:
        is_news = not case.warned or (stop_at is not None and stop_at != case.stop_at)
        if is_news and _is_few(grounds, notices):
            acts.append(Act(TELL, case, stop_at))
        return case._replace(warned=True, stop_at=stop_at, terminated=False, killed=False)
    asked = [at for at in (notices[ground].terminated_at for ground in grounds) if at is not None]
    is_late = bool(asked) and now >= min(asked) + _delay(case)
    if not case.terminated and not is_late:
        for ground in grounds:
            if notices[ground].terminated_at is None:
                notices[ground] = notices[ground]._replace(terminated_at=now)
        acts.append(Act(TERMINATE, case))
        return case._replace(terminated=True)
    if is_late and not case.killed:
        acts.append(Act(KILL, case))
        return case._replace(killed=True)
    return case


def _seen(notice: Notice | None, finding: Finding, now: float) -> Notice:
    until = finding.booking.end if finding.booking is not None else math.inf
    if notice is None:
        return Notice(until, now)
    asked = None if now - notice.seen >= QUIET_S else notice.terminated_at
    return notice._replace(until=until, seen=now, terminated_at=asked)


def _is_over(notice: Notice, now: float) -> bool:
    return now >= notice.until or (notice.until == math.inf and now - notice.seen >= FORGET_AFTER_S)


def _is_few(grounds: list[Ground], notices: Mapping[Ground, Notice]) -> bool:
    return any(notices[ground].processes <= MOST_NOTED for ground in grounds)


def _delay(case: Case) -> float:
    """From SIGTERM to SIGKILL."""
    use = case.finding.use
    return RUN_KILL_AFTER_S if use.run_id or use.keeper else KILL_AFTER_S


def _may_act_on(finding: Finding, reach: int | None) -> bool:
    """Whether the user is known and within reach. A login without persons on a GPU that is not booked is only noted."""
    use = finding.use
    known = use.by is not None and (bool(finding.persons) or finding.verdict in VIOLATIONS)
    return known and (reach is None or use.by == reach)


def _ground(finding: Finding, gpu: str) -> Ground:
    return finding.use.by, gpu, finding.booking.id if finding.booking is not None else ""


def _matter(finding: Finding) -> tuple[str, str]:
    return finding.verdict, finding.booking.id if finding.booking is not None else ""


def _by_process(findings: Iterable[Finding]) -> dict[Key, tuple[Finding, tuple[str, ...]]]:
    """Each process once, by its worst finding, with the GPUs of that verdict."""
    found: dict[Key, list[Finding]] = {}
    for finding in findings:
        found.setdefault((finding.use.pid, finding.use.started), []).append(finding)
    worst: dict[Key, tuple[Finding, tuple[str, ...]]] = {}
    for key, several in found.items():
        first = min(several, key=lambda one: _ORDER.index(one.verdict))
        worst[key] = first, tuple(one.use.gpu for one in several if one.verdict == first.verdict)
    return worst
