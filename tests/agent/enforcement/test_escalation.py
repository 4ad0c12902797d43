"""What is done about the processes that were found: every level, in time."""

from __future__ import annotations

import pytest

from tests.agent.enforcement.calendars import HOUR, T0, A, B, booking, login, snapshot
from torchyard_agent.enforcement.classification import LOGIN, Finding, Origin, Use, classify
from torchyard_agent.enforcement.escalation import (
    EMPTY,
    FORGET_AFTER_S,
    KILL_AFTER_S,
    MOST_NOTED,
    QUIET_S,
    RUN_KILL_AFTER_S,
    Act,
    proceed,
)
from torchyard_agent.protocol.calendar import Enforcement, parse

KNOWN = parse(snapshot(booking("lee", T0, T0 + HOUR), logins=[login("ann", "kim"), login("bob", "lee")]))
STOP = Enforcement("stop", 60.0, dry_run=False)
ANN, BOB = Use(A, 10, 1, 1001, "ann"), Use(A, 11, 1, 1002, "bob")


class Story:
    """Looks one after the other, and what followed from each."""

    def __init__(self, told: Enforcement, reach: int | None = None):
        self.told = told
        self.reach = reach
        self.state = EMPTY

    def look(self, after_s: float, *uses: Use, is_fresh: bool = True) -> list[Act]:
        now = T0 + after_s
        findings = [classify(use, KNOWN, "gpu-a", now) for use in uses]
        self.state, acts = proceed(self.state, findings, self.told, self.reach, now, is_fresh=is_fresh)
        return acts

    def whats(self, after_s: float, *uses: Use, is_fresh: bool = True) -> list[str]:
        return [act.what for act in self.look(after_s, *uses, is_fresh=is_fresh)]


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
    assert story.state.cases == {}


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


def test_a_login_that_no_table_names_is_reported_and_warned_and_never_ended() -> None:
    story = Story(STOP)
    hidden = BOB._replace(uid=None)
    first = story.look(0, ANN._replace(user="carl"), hidden)
    assert [(act.what, act.stop_at) for act in first] == [("reported", None), ("warned", None), ("reported", None)]
    assert story.whats(1000, ANN._replace(user="carl"), hidden) == []


def test_root_is_reported_with_the_session_and_never_ended() -> None:
    story = Story(STOP)
    sudo = ANN._replace(uid=0, origin=Origin(1001, LOGIN, as_root=True))
    daemons = Use(A, 12, 1, 1002, "root", origin=Origin(None, "", as_root=True, container="4d1f"))
    assert [classify(use, KNOWN, "gpu-a", T0).verdict for use in (sudo, daemons)] == ["root", "root"]
    assert story.whats(0, sudo, daemons) == ["reported", "warned", "reported", "warned"]
    assert story.whats(1000, sudo, daemons) == []


def test_a_members_agent_acts_on_that_members_processes_only() -> None:
    assert Story(STOP, reach=1001).whats(0, ANN) == ["observed", "warned"]
    story = Story(STOP, reach=1002)
    assert story.whats(0, ANN) == ["observed"]
    assert story.whats(1000, ANN) == []


def test_a_job_that_is_started_anew_all_the_time_gets_one_grace() -> None:
    story = Story(STOP)
    jobs = [ANN._replace(pid=100 + number) for number in range(30)]
    (_, warned) = story.look(0, jobs[0])
    acts = [story.look(3.0 * number, jobs[number]) for number in range(1, 20)]
    assert {act.stop_at for look in acts for act in look if act.what == "warned"} == {warned.stop_at} == {T0 + 60}
    assert sum(map(len, acts)) == 2 * (MOST_NOTED - 1)
    assert story.whats(60, jobs[20]) == ["terminated"]
    assert story.whats(63, jobs[21]) == ["terminated"]
    assert story.whats(60 + KILL_AFTER_S, jobs[22]) == ["killed"]
    assert story.whats(60 + KILL_AFTER_S + QUIET_S - 1, jobs[23]) == ["killed"]
    late = 60 + KILL_AFTER_S + 2 * QUIET_S
    assert story.whats(late, jobs[24]) == ["terminated"]
    assert story.whats(late + KILL_AFTER_S, jobs[24]) == ["killed"]


def test_each_gpu_user_and_booking_has_a_grace_of_its_own() -> None:
    known = parse(
        snapshot(
            booking("lee", T0, T0 + 100, A),
            booking("lee", T0 + 100, T0 + HOUR, A, id="the next"),
            booking("lee", T0, T0 + HOUR, B, id="another"),
            logins=[login("ann", "kim"), login("eve", "max"), login("bob", "lee")],
        )
    )
    state = EMPTY

    def stops(after_s: float, *uses: Use) -> list[float | None]:
        nonlocal state
        findings = [classify(use, known, "gpu-a", T0 + after_s) for use in uses]
        state, acts = proceed(state, findings, STOP, None, T0 + after_s)
        return [act.stop_at and act.stop_at - T0 for act in acts if act.what == "warned"]

    assert stops(0, ANN) == [60]
    assert stops(10, ANN._replace(gpu=B, pid=20)) == [70]
    assert stops(20, Use(A, 30, 1, 1003, "eve")) == [80]
    assert stops(110, ANN._replace(pid=40)) == [170]


def test_a_run_has_two_minutes_to_save() -> None:
    story = Story(Enforcement("stop", 0.0, dry_run=False))
    run = ANN._replace(run_id="r1")
    assert story.whats(0, run) == ["observed", "warned"]
    assert story.whats(1, run) == ["terminated"]
    assert story.whats(RUN_KILL_AFTER_S, run) == []
    assert story.whats(1 + RUN_KILL_AFTER_S, run) == ["killed"]


def test_an_old_calendar_ends_nothing_and_takes_no_warning_back() -> None:
    story = Story(STOP)
    assert story.whats(0, BOB._replace(user="ann"), is_fresh=False) == ["observed"]
    story.look(10, ANN)
    assert story.whats(70, ANN, is_fresh=False) == []
    assert story.whats(80, ANN) == ["terminated"]


def test_a_level_that_is_raised_again_warns_again() -> None:
    story = Story(STOP)
    story.look(0, ANN)
    assert story.whats(60, ANN) == ["terminated"]
    story.told = Enforcement("warn", 60.0, dry_run=False)
    assert story.whats(65, ANN) == []
    story.told = STOP
    (warned,) = story.look(100, ANN)
    assert (warned.what, warned.stop_at) == ("warned", T0 + 160)
    assert story.whats(160, ANN) == ["terminated"]


def test_use_without_a_booking_is_forgotten_after_an_hour_without_it() -> None:
    story = Story(STOP)
    free = HOUR + 1
    assert story.whats(free, ANN) == ["observed", "warned"]
    story.whats(free + FORGET_AFTER_S - 1)
    assert len(story.state.notices) == 1
    story.whats(free + FORGET_AFTER_S)
    assert story.state.notices == {}


def test_what_was_loaded_into_a_display_server_is_warned_about_and_never_ended() -> None:
    story = Story(Enforcement("stop", 0.0, dry_run=False))
    desktop = ANN._replace(display_server=True)
    assert story.whats(0, desktop) == ["observed", "warned"]
    assert story.whats(1000, desktop) == []


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
    assert classify(ANN, KNOWN, "gpu-a", T0) == Finding(ANN, "others", ("kim",), KNOWN.bookings[0])
