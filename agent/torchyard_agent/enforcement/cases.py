"""What is done about the processes that were found, and when. Pure: findings in, acts out.

observe: every new finding is noted. warn: the owner is told, once. stop: use of somebody else's booking is warned
about, and ended once the grace is over: SIGTERM, and SIGKILL 10 s later (of a run: 2 min, its keeper sees to it).

Unbooked use is never ended: a launch on one host needs no booking. An owner whom nobody knows is neither warned nor
ended, and nobody is whom this agent has no right over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torchyard_agent.enforcement.verdicts import OTHERS, OWN, UNBOOKED, UNKNOWN, Finding
from torchyard_agent.protocol.calendar import OBSERVE, OFF, STOP, Enforcement

KILL_AFTER_S = 10.0
RUN_KILL_AFTER_S = 120.0
"""Of a run: its keeper asks it to save, and has a grace of its own."""
_ORDER = (OTHERS, UNBOOKED, UNKNOWN, OWN)
"""A process on several GPUs is what it is at worst."""

Key = tuple[int, int]
"""PID and start time."""

NOTE, TELL, TERMINATE, KILL = "observed", "warned", "terminated", "killed"


class Case(NamedTuple):
    """One process that does not use what is its own."""

    finding: Finding
    gpus: tuple[str, ...]
    since: float
    warned_at: float | None = None
    terminated_at: float | None = None
    killed: bool = False


class Act(NamedTuple):
    """One thing to do now, and to note in the audit."""

    what: str
    case: Case
    stop_at: float | None = None
    """In a warning: when the process will be ended."""


Cases = Mapping[Key, Case]


def proceed(
    cases: Cases, findings: Iterable[Finding], told: Enforcement, reach: int | None, now: float
) -> tuple[dict[Key, Case], list[Act]]:
    """The cases after a look, and what follows. `reach`: the UID whose processes this agent may act on; None: all.

    A process that has gone has no case any more; one whose verdict or booking has changed begins anew.
    """
    after: dict[Key, Case] = {}
    acts: list[Act] = []
    if told.level == OFF:
        return after, acts
    for key, (finding, gpus) in _by_process(findings).items():
        if finding.verdict == OWN:
            continue
        case = cases.get(key)
        if case is None or _matter(case.finding) != _matter(finding):
            case = Case(finding, gpus, now)
            acts.append(Act(NOTE, case))
        else:
            case = case._replace(finding=finding, gpus=gpus)
        if told.level != OBSERVE and _may_act_on(finding, reach):
            case = _press(case, told, now, acts)
        after[key] = case
    return after, acts


def _press(case: Case, told: Enforcement, now: float, acts: list[Act]) -> Case:
    ends = told.level == STOP and case.finding.verdict == OTHERS
    if case.warned_at is None:
        acts.append(Act(TELL, case, now + told.grace_s if ends else None))
        return case._replace(warned_at=now)
    if not ends:
        return case
    if case.terminated_at is None:
        if now >= case.warned_at + told.grace_s:
            acts.append(Act(TERMINATE, case))
            return case._replace(terminated_at=now)
    elif not case.killed and now >= case.terminated_at + _patience(case):
        acts.append(Act(KILL, case))
        return case._replace(killed=True)
    return case


def _patience(case: Case) -> float:
    use = case.finding.use
    return RUN_KILL_AFTER_S if use.run_id or use.keeper else KILL_AFTER_S


def _may_act_on(finding: Finding, reach: int | None) -> bool:
    """Only on who is known to the calendar: a display server on a GPU is nobody's use of it."""
    known = bool(finding.persons) and finding.verdict in (OTHERS, UNBOOKED)
    return known and (reach is None or finding.use.uid == reach)


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
