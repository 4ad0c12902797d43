"""Tests of the actions against processes that use GPUs without a booking, by enforcement level and time."""

from __future__ import annotations

import pytest

from tests.agent.enforcement.calendars import HOUR, T0, A, B, booking, login, snapshot
from torchyard_agent.enforcement.classification import LOGIN, Finding, Origin, Use, classify
from torchyard_agent.enforcement.escalation import (
    EMPTY,
    FORGET_AFTER_S,
    KILL_AFTER_S,
    MAX_NOTED,
    QUIET_S,
    RUN_KILL_AFTER_S,
    Act,
    proceed,
)
from torchyard_agent.protocol.calendar import Enforcement, parse

KNOWN = parse(snapshot(booking("lee", T0, T0 + HOUR), logins=[login("ann", "kim"), login("bob", "lee")]))
STOP = Enforcement("stop", 60.0, dry_run=False)
ANN, BOB = Use(A, 10, 1, 1001, "ann"), Use(A, 11, 1, 1002, "bob")


class Enforced:
    """Enforcement on one host. A test passes GPU samples to it, and gets the actions that follow from each sample."""

    def __init__(self, policy: Enforcement, reach: int | None = None):
        self.policy = policy
        self.reach = reach
        self.state = EMPTY

    def sample(self, after_s: float, *uses: Use, is_fresh: bool = True) -> list[Act]:
        now = T0 + after_s
        findings = [classify(use, KNOWN, "gpu-a", now) for use in uses]
        self.state, acts = proceed(self.state, findings, self.policy, self.reach, now, is_fresh=is_fresh)
        return acts

    def acts(self, after_s: float, *uses: Use, is_fresh: bool = True) -> list[str]:
        return [act.what for act in self.sample(after_s, *uses, is_fresh=is_fresh)]


def test_stop_warns_waits_for_the_grace_terminates_and_then_kills() -> None:
    enforced = Enforced(STOP)
    observed, warned = enforced.sample(0, ANN, BOB)
    assert (observed.what, warned.what, warned.stop_at) == ("observed", "warned", T0 + 60)
    assert warned.case.finding.use == ANN
    assert enforced.acts(59, ANN, BOB) == []
    assert enforced.acts(60, ANN, BOB) == ["terminated"]
    assert enforced.acts(60 + KILL_AFTER_S - 1, ANN, BOB) == []
    assert enforced.acts(60 + KILL_AFTER_S, ANN, BOB) == ["killed"]
    assert enforced.acts(100, ANN, BOB) == []
    assert enforced.acts(110, BOB) == []
    assert enforced.state.cases == {}


@pytest.mark.parametrize(("level", "acts"), [("off", []), ("observe", ["observed"]), ("warn", ["observed", "warned"])])
def test_lower_levels_never_end_anything(level: str, acts: list[str]) -> None:
    enforced = Enforced(Enforcement(level, 0.0, dry_run=False))
    assert enforced.acts(0, ANN) == acts
    assert enforced.acts(1000, ANN) == []


def test_unbooked_use_is_warned_about_once_and_never_ended() -> None:
    enforced = Enforced(STOP)
    (_, warned) = enforced.sample(HOUR + 1, ANN)
    assert (warned.what, warned.stop_at) == ("warned", None)
    assert enforced.acts(HOUR + 1000, ANN) == []


def test_an_unknown_login_is_reported_and_warned_and_never_ended() -> None:
    enforced = Enforced(STOP)
    hidden = BOB._replace(uid=None)
    first = enforced.sample(0, ANN._replace(user="carl"), hidden)
    assert [(act.what, act.stop_at) for act in first] == [("reported", None), ("warned", None), ("reported", None)]
    assert enforced.acts(1000, ANN._replace(user="carl"), hidden) == []


def test_root_is_reported_with_the_session_and_never_ended() -> None:
    enforced = Enforced(STOP)
    sudo = ANN._replace(uid=0, origin=Origin(1001, LOGIN, as_root=True))
    daemons = Use(A, 12, 1, 1002, "root", origin=Origin(None, "", as_root=True, container="4d1f"))
    assert [classify(use, KNOWN, "gpu-a", T0).verdict for use in (sudo, daemons)] == ["root", "root"]
    assert enforced.acts(0, sudo, daemons) == ["reported", "warned", "reported", "warned"]
    assert enforced.acts(1000, sudo, daemons) == []


def test_a_members_agent_acts_on_that_members_processes_only() -> None:
    assert Enforced(STOP, reach=1001).acts(0, ANN) == ["observed", "warned"]
    enforced = Enforced(STOP, reach=1002)
    assert enforced.acts(0, ANN) == ["observed"]
    assert enforced.acts(1000, ANN) == []


def test_a_job_that_is_restarted_repeatedly_gets_one_grace() -> None:
    enforced = Enforced(STOP)
    jobs = [ANN._replace(pid=100 + number) for number in range(30)]
    (_, warned) = enforced.sample(0, jobs[0])
    acts = [enforced.sample(3.0 * number, jobs[number]) for number in range(1, 20)]
    assert {act.stop_at for look in acts for act in look if act.what == "warned"} == {warned.stop_at} == {T0 + 60}
    assert sum(map(len, acts)) == 2 * (MAX_NOTED - 1)
    assert enforced.acts(60, jobs[20]) == ["terminated"]
    assert enforced.acts(63, jobs[21]) == ["terminated"]
    assert enforced.acts(60 + KILL_AFTER_S, jobs[22]) == ["killed"]
    assert enforced.acts(60 + KILL_AFTER_S + QUIET_S - 1, jobs[23]) == ["killed"]
    late = 60 + KILL_AFTER_S + 2 * QUIET_S
    assert enforced.acts(late, jobs[24]) == ["terminated"]
    assert enforced.acts(late + KILL_AFTER_S, jobs[24]) == ["killed"]


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
    enforced = Enforced(Enforcement("stop", 0.0, dry_run=False))
    run = ANN._replace(run_id="r1")
    assert enforced.acts(0, run) == ["observed", "warned"]
    assert enforced.acts(1, run) == ["terminated"]
    assert enforced.acts(RUN_KILL_AFTER_S, run) == []
    assert enforced.acts(1 + RUN_KILL_AFTER_S, run) == ["killed"]


def test_a_stale_calendar_ends_nothing_and_keeps_warnings() -> None:
    enforced = Enforced(STOP)
    assert enforced.acts(0, BOB._replace(user="ann"), is_fresh=False) == ["observed"]
    enforced.sample(10, ANN)
    assert enforced.acts(70, ANN, is_fresh=False) == []
    assert enforced.acts(80, ANN) == ["terminated"]


def test_a_level_that_is_raised_again_warns_again() -> None:
    enforced = Enforced(STOP)
    enforced.sample(0, ANN)
    assert enforced.acts(60, ANN) == ["terminated"]
    enforced.policy = Enforcement("warn", 60.0, dry_run=False)
    assert enforced.acts(65, ANN) == []
    enforced.policy = STOP
    (warned,) = enforced.sample(100, ANN)
    assert (warned.what, warned.stop_at) == ("warned", T0 + 160)
    assert enforced.acts(160, ANN) == ["terminated"]


def test_use_without_a_booking_is_forgotten_after_an_hour_without_it() -> None:
    enforced = Enforced(STOP)
    free = HOUR + 1
    assert enforced.acts(free, ANN) == ["observed", "warned"]
    enforced.acts(free + FORGET_AFTER_S - 1)
    assert len(enforced.state.notices) == 1
    enforced.acts(free + FORGET_AFTER_S)
    assert enforced.state.notices == {}


def test_a_computing_display_server_is_warned_about_and_never_ended() -> None:
    enforced = Enforced(Enforcement("stop", 0.0, dry_run=False))
    desktop = ANN._replace(display_server=True)
    assert enforced.acts(0, desktop) == ["observed", "warned"]
    assert enforced.acts(1000, desktop) == []


def test_a_lower_level_cancels_announced_ends() -> None:
    enforced = Enforced(STOP)
    enforced.sample(0, ANN)
    enforced.policy = Enforcement("warn", 60.0, dry_run=False)
    assert enforced.acts(61, ANN) == []


def test_a_process_on_two_gpus_is_one_case_with_the_worst_verdict() -> None:
    enforced = Enforced(STOP)
    (_, warned) = enforced.sample(0, ANN._replace(gpu=B), ANN)
    assert warned.case.finding.verdict == "others"
    assert warned.case.gpus == (A,)


def test_a_process_whose_booking_changes_is_warned_again() -> None:
    enforced = Enforced(STOP)
    assert enforced.acts(-10, ANN) == ["observed", "warned"]
    assert enforced.acts(0, ANN) == ["observed", "warned"]
    assert enforced.acts(30, ANN) == []
    assert enforced.acts(60, ANN) == ["terminated"]


def test_a_finding_is_a_value() -> None:
    assert classify(ANN, KNOWN, "gpu-a", T0) == Finding(ANN, "others", ("kim",), KNOWN.bookings[0])
