"""What is done about the processes that were found: every level, in time."""

from __future__ import annotations

import pytest

from tests.agent.enforcement.calendars import HOUR, T0, A, B, booking, login, snapshot
from torchyard_agent.enforcement.cases import KILL_AFTER_S, Act, Case, Key, proceed
from torchyard_agent.enforcement.verdicts import Finding, Use, judge
from torchyard_agent.protocol.calendar import Enforcement, parse

KNOWN = parse(snapshot(booking("lee", T0, T0 + HOUR), logins=[login("ann", "kim"), login("bob", "lee")]))
STOP = Enforcement("stop", 60.0, dry_run=False)
ANN, BOB = Use(A, 10, 1, 1001, "ann"), Use(A, 11, 1, 1002, "bob")


class Story:
    """Looks one after the other, and what followed from each."""

    def __init__(self, told: Enforcement, reach: int | None = None):
        self.told = told
        self.reach = reach
        self.cases: dict[Key, Case] = {}

    def look(self, after_s: float, *uses: Use) -> list[Act]:
        findings = [judge(use, KNOWN, "gpu-a", T0 + after_s) for use in uses]
        self.cases, acts = proceed(self.cases, findings, self.told, self.reach, T0 + after_s)
        return acts

    def whats(self, after_s: float, *uses: Use) -> list[str]:
        return [act.what for act in self.look(after_s, *uses)]


def test_stop_warns_waits_for_the_grace_terminates_and_then_kills() -> None:
    story = Story(STOP)
    observed, warned = story.look(0, ANN, BOB)
    assert (observed.what, warned.what, warned.stop_at) == ("observed", "warned", T0 + 60)
    assert warned.case.finding.use == ANN
    assert story.whats(59, ANN, BOB) == []
    assert story.whats(60, ANN, BOB) == ["terminated"]
    assert story.whats(60 + KILL_AFTER_S - 1, ANN, BOB) == []
    assert story.whats(60 + KILL_AFTER_S, ANN, BOB) == ["killed"]
    assert story.whats(100, ANN, BOB) == []
    assert story.whats(110, BOB) == []
    assert story.cases == {}


@pytest.mark.parametrize(("level", "acts"), [("off", []), ("observe", ["observed"]), ("warn", ["observed", "warned"])])
def test_lower_levels_never_end_anything(level: str, acts: list[str]) -> None:
    story = Story(Enforcement(level, 0.0, dry_run=False))
    assert story.whats(0, ANN) == acts
    assert story.whats(1000, ANN) == []


def test_unbooked_use_is_told_once_and_never_ended() -> None:
    story = Story(STOP)
    (_, warned) = story.look(HOUR + 1, ANN)
    assert (warned.what, warned.stop_at) == ("warned", None)
    assert story.whats(HOUR + 1000, ANN) == []


def test_nobody_is_touched_whom_no_table_names() -> None:
    story = Story(STOP)
    assert story.whats(0, ANN._replace(user="gdm"), BOB._replace(uid=None)) == ["observed", "observed"]
    assert story.whats(1000, ANN._replace(user="gdm"), BOB._replace(uid=None)) == []


def test_a_members_agent_acts_on_that_members_processes_only() -> None:
    assert Story(STOP, reach=1001).whats(0, ANN) == ["observed", "warned"]
    story = Story(STOP, reach=1002)
    assert story.whats(0, ANN) == ["observed"]
    assert story.whats(1000, ANN) == []


def test_a_pid_that_was_given_to_another_process_begins_anew() -> None:
    story = Story(STOP)
    story.look(0, ANN)
    assert story.whats(60, ANN._replace(started=2)) == ["observed", "warned"]


def test_a_lower_level_takes_back_what_was_not_done_yet() -> None:
    story = Story(STOP)
    story.look(0, ANN)
    story.told = Enforcement("warn", 60.0, dry_run=False)
    assert story.whats(61, ANN) == []


def test_a_process_on_two_gpus_is_one_case_and_what_it_is_at_worst() -> None:
    story = Story(STOP)
    (_, warned) = story.look(0, ANN._replace(gpu=B), ANN)
    assert warned.case.finding.verdict == "others"
    assert warned.case.gpus == (A,)


def test_what_becomes_somebody_elses_is_warned_about_anew() -> None:
    story = Story(STOP)
    assert story.whats(-10, ANN) == ["observed", "warned"]
    assert story.whats(0, ANN) == ["observed", "warned"]
    assert story.whats(30, ANN) == []
    assert story.whats(60, ANN) == ["terminated"]


def test_a_finding_is_a_value() -> None:
    assert judge(ANN, KNOWN, "gpu-a", T0) == Finding(ANN, "others", ("kim",), KNOWN.bookings[0])
