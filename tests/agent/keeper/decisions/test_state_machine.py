"""Tests of the state machine without processes and sockets: events lead to the expected states and instructions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.agent.keeper.keeper_cluster import replica
from torchyard_agent.keeper.decisions import instructions, state_machine
from torchyard_agent.keeper.decisions.events import (
    Cause,
    Event,
    GpusAcquired,
    HostJoined,
    HostLost,
    HostReturned,
    HostSwept,
    LinkBroken,
    LinkRestored,
    RankFailed,
    ReplicaEnded,
    ReplicaSpawned,
    StartDue,
    StopRequested,
    TimerFired,
)
from torchyard_agent.keeper.decisions.instructions import (
    AcquireGpus,
    EndRanks,
    FinishRun,
    Instruction,
    RecordReplicaState,
    RecordRunState,
    SetTimer,
    StartRanks,
    Sweep,
)
from torchyard_agent.protocol.run_states import ReplicaState, RunState

BAD = Cause("exited with 1: ValueError: bad")
PEER = Cause("exited with 1: Connection closed by peer", consequence=True)


class Driver:
    """A run and all instructions that its decisions have produced."""

    def __init__(self, *shares: dict[str, Any], hosts: Sequence[str] = ("a", "b"), scheduled: str = "", **changes: Any):
        rules: Any = {
            "ends_with": "trainers",
            "stop_grace_s": 30.0,
            "failure_grace_s": 2.0,
            "host_wait_s": 600.0,
            "max_restarts": 0,
            "min_replicas": {},
            **changes,
        }
        replicas: Any = shares or (replica("chief-0", "a", []), replica("worker-0", "b", []))
        self.now = 100.0
        self.ordered: list[Instruction] = []
        self.run, first = state_machine.begin(
            hosts, replicas, rules, join_within_s=30, meeting_point="10.0.0.1:4000", scheduled=scheduled
        )
        self.first = first

    def __call__(self, *events: Event, after: float = 0.0) -> list[Instruction]:
        """Processes events that occur together, `after` seconds after the previous ones; returns the instructions."""
        self.now += after
        result: list[Instruction] = []
        for event in events:
            self.run, out = state_machine.transition(self.run, event, self.now)
            result += out
        self.ordered += result
        return result

    def go(self) -> Driver:
        """Makes all hosts join and all replicas start."""
        self(*[HostJoined(host.name) for host in self.run.hosts])
        self(*[ReplicaSpawned(one.name) for one in self.run.replicas])
        return self

    def swept(self) -> list[Instruction]:
        return self(*[HostSwept(host.name) for host in self.run.hosts if not host.lost])

    def states(self) -> dict[str, str]:
        return {one.name: one.state.value for one in self.run.replicas}


def of(kind: type, instructions: list[Instruction]) -> list[Any]:
    return [instruction for instruction in instructions if isinstance(instruction, kind)]


def test_nothing_starts_before_every_host_has_joined() -> None:
    driver = Driver()
    assert of(SetTimer, driver.first) == [SetTimer(instructions.JOIN, 30)]
    assert [one.state for one in of(RecordReplicaState, driver.first)] == [ReplicaState.PENDING] * 2
    assert driver(HostJoined("a")) == []
    assert StartRanks() in driver(HostJoined("b"))
    assert set(driver.states().values()) == {"starting"}
    assert of(RecordRunState, driver(ReplicaSpawned("chief-0"))) == []
    assert of(RecordRunState, driver(ReplicaSpawned("worker-0"))) == [RecordRunState(RunState.RUNNING, "")]


def test_a_host_that_joins_after_a_scheduled_runs_time_takes_its_gpus_then() -> None:
    driver = Driver(scheduled="starts at noon")
    assert of(AcquireGpus, driver(HostJoined("a"))) == []
    assert of(AcquireGpus, driver(StartDue(only_if_idle=True))) == [AcquireGpus("a", True)]
    assert of(AcquireGpus, driver(HostJoined("b"))) == [AcquireGpus("b", True)]
    assert of(StartRanks, driver(GpusAcquired("a"))) == []
    assert of(StartRanks, driver(GpusAcquired("b"))) == [StartRanks()]


def test_hosts_that_do_not_join_are_named_and_the_others_released() -> None:
    driver = Driver()
    driver(HostJoined("a"))
    result = driver(TimerFired(instructions.JOIN), after=30)
    assert "b did not reach the primary a at 10.0.0.1:4000" in of(RecordRunState, result)[0].reason
    assert of(Sweep, result) == [Sweep("a", state_machine.KILL_AFTER_S)]
    assert driver.states() == {"chief-0": "stopped", "worker-0": "stopped"}
    assert of(FinishRun, driver(HostSwept("a")))[0].state is RunState.FAILED


def test_the_join_timer_has_no_effect_once_all_hosts_have_joined() -> None:
    driver = Driver().go()
    assert driver(TimerFired(instructions.JOIN)) == []


def test_a_run_succeeds_when_its_trainers_have() -> None:
    driver = Driver().go()
    assert of(Sweep, driver(ReplicaEnded("chief-0", 0))) == []
    assert len(of(Sweep, driver(ReplicaEnded("worker-0", 0)))) == 2
    assert of(FinishRun, driver(HostSwept("a"))) == []
    assert of(FinishRun, driver(HostSwept("b"))) == [FinishRun(RunState.SUCCEEDED, "")]


@pytest.mark.parametrize(
    ("ends_with", "ended", "over"),
    [
        ("trainers", ["chief-0"], False),
        ("trainers", ["chief-0", "worker-0"], True),
        ("chief", ["worker-0", "ps-0"], False),
        ("chief", ["chief-0"], True),
        ("all", ["chief-0", "worker-0", "ps-0"], False),
        ("all", ["chief-0", "worker-0", "ps-0", "evaluator-0"], True),
    ],
)
def test_ends_with_selects_the_replicas_that_count(ends_with: str, ended: list[str], over: bool) -> None:
    names = ("chief-0", "worker-0", "ps-0", "evaluator-0")
    driver = Driver(*[replica(name, "a", []) for name in names], hosts=["a"], ends_with=ends_with).go()
    result = driver(*[ReplicaEnded(name, 0) for name in ended])
    rest = tuple(name for name in names if name not in ended)
    assert bool(driver.run.outcome) is over
    if over and rest:
        assert of(EndRanks, result) == [EndRanks("a", rest, 30.0, is_stop=True)]
        assert of(RecordRunState, result) == [RecordRunState(RunState.STOPPING, "")]
        driver(*[ReplicaEnded(name, -15) for name in rest])
        assert {driver.states()[name] for name in rest} == {"stopped"}
    if over:
        assert of(FinishRun, driver.swept())[0].state is RunState.SUCCEEDED


def test_without_a_chief_the_first_worker_counts() -> None:
    driver = Driver(replica("worker-0", "a", []), replica("worker-1", "b", []), ends_with="chief").go()
    driver(ReplicaEnded("worker-1", 0))
    assert driver.run.outcome is None
    driver(ReplicaEnded("worker-0", 0))
    assert driver.run.outcome is RunState.SUCCEEDED


def test_a_failure_ends_the_run_with_its_cause_after_the_grace() -> None:
    driver = Driver().go()
    result = driver(RankFailed("worker-0", 1, BAD), ReplicaEnded("worker-0", 1))
    assert of(SetTimer, result) == [SetTimer(instructions.CHOOSE, 1.0), SetTimer(instructions.GRACE, 2.0)]
    assert of(EndRanks, result) == []
    result = driver(TimerFired(instructions.CHOOSE), after=1)
    assert of(RecordRunState, result) == [
        RecordRunState(RunState.STOPPING, "worker-0 on b: exited with 1: ValueError: bad")
    ]
    result = driver(TimerFired(instructions.GRACE), after=1)
    assert of(EndRanks, result) == [EndRanks("a", ("chief-0",), state_machine.KILL_AFTER_S)]
    driver(ReplicaEnded("chief-0", -9), after=1.5)
    assert driver.states() == {"chief-0": "stopped", "worker-0": "failed"}
    assert of(FinishRun, driver.swept()) == [
        FinishRun(RunState.FAILED, "worker-0 on b: exited with 1: ValueError: bad")
    ]


@pytest.mark.parametrize("first", [PEER, BAD])
def test_a_failure_that_is_no_consequence_is_the_cause(first: Cause) -> None:
    second = BAD if first is PEER else PEER
    driver = Driver().go()
    driver(RankFailed("chief-0", 1, first), ReplicaEnded("chief-0", 1), RankFailed("worker-0", 1, second))
    driver(ReplicaEnded("worker-0", 1))
    culprit = "chief-0 on a" if first is BAD else "worker-0 on b"
    assert of(FinishRun, driver.swept())[0].reason == f"{culprit}: exited with 1: ValueError: bad"


def test_the_first_of_two_equal_failures_is_the_cause() -> None:
    driver = Driver().go()
    driver(
        RankFailed("worker-0", 1, PEER),
        RankFailed("chief-0", 1, PEER),
        ReplicaEnded("chief-0", 1),
        ReplicaEnded("worker-0", 1),
    )
    assert driver.run.reason.startswith("worker-0 on b")


def test_failures_after_the_choice_do_not_change_the_cause() -> None:
    driver = Driver().go()
    driver(RankFailed("worker-0", 1, PEER), TimerFired(instructions.CHOOSE), RankFailed("chief-0", 1, BAD))
    assert driver.run.reason.startswith("worker-0 on b: exited with 1: Connection closed")


def test_connection_errors_alone_name_the_silent_host() -> None:
    driver = Driver().go()
    driver(LinkBroken("b"), RankFailed("chief-0", 1, PEER), ReplicaEnded("chief-0", 1), TimerFired(instructions.CHOOSE))
    assert driver.run.reason == "b was lost: the connection to its keeper broke"
    driver(TimerFired(instructions.GRACE), HostLost("b", "not heard for 10 s"))
    assert driver.states() == {"chief-0": "failed", "worker-0": "lost"}
    assert of(FinishRun, driver(HostSwept("a")))[0].state is RunState.FAILED


def test_a_link_that_comes_back_changes_nothing() -> None:
    driver = Driver().go()
    assert driver(LinkBroken("b"), LinkRestored("b")) == []
    driver(RankFailed("chief-0", 1, PEER), TimerFired(instructions.CHOOSE))
    assert driver.run.reason.startswith("chief-0 on a")


def test_a_server_that_fails_as_the_trainers_finish_does_not_undo_their_success() -> None:
    driver = Driver(replica("worker-0", "a", []), replica("ps-0", "b", [])).go()
    driver(RankFailed("ps-0", 1, PEER), ReplicaEnded("ps-0", 1), ReplicaEnded("worker-0", 0))
    assert of(FinishRun, driver.swept())[0].state is RunState.SUCCEEDED
    assert driver.states()["ps-0"] == "failed"


@pytest.mark.parametrize("role", ["ps", "reducer", "worker", "chief"])
def test_a_failure_of_any_replica_but_an_evaluator_ends_the_run(role: str) -> None:
    driver = Driver(replica(f"{role}-0", "a", []), replica("worker-1", "b", [])).go()
    driver(RankFailed(f"{role}-0", 1, BAD))
    assert driver.run.outcome is RunState.FAILED


def test_an_evaluator_ends_no_run_by_failing_or_by_being_lost() -> None:
    driver = Driver(replica("worker-0", "a", []), replica("evaluator-0", "b", [])).go()
    result = driver(RankFailed("evaluator-0", 1, BAD))
    assert of(EndRanks, result) == [EndRanks("b", ("evaluator-0",), 2.0)]
    driver(ReplicaEnded("evaluator-0", 1))
    assert driver.run.outcome is None
    assert driver.states()["evaluator-0"] == "failed"
    driver = Driver(replica("worker-0", "a", []), replica("evaluator-0", "b", [])).go()
    driver(HostLost("b", "silence"))
    assert driver.run.outcome is None
    driver(ReplicaEnded("worker-0", 0))
    assert of(FinishRun, driver(HostSwept("a")))[0].state is RunState.SUCCEEDED


def test_a_run_of_evaluators_alone_fails_when_all_of_them_do() -> None:
    driver = Driver(replica("evaluator-0", "a", []), hosts=["a"], ends_with="all").go()
    driver(RankFailed("evaluator-0", 1, BAD), ReplicaEnded("evaluator-0", 1))
    assert of(FinishRun, driver.swept())[0] == FinishRun(
        RunState.FAILED, "evaluator-0 on a: exited with 1: ValueError: bad"
    )


def test_a_lost_host_ends_the_run_without_being_waited_for() -> None:
    driver = Driver().go()
    driver(
        HostLost("b", "its keeper was not heard for 10 s"),
        TimerFired(instructions.CHOOSE),
        TimerFired(instructions.GRACE),
    )
    driver(ReplicaEnded("chief-0", -15))
    assert driver.states() == {"chief-0": "stopped", "worker-0": "lost"}
    finish = of(FinishRun, driver(HostSwept("a")))[0]
    assert finish == FinishRun(RunState.FAILED, "b was lost: its keeper was not heard for 10 s")


def test_a_host_lost_before_all_have_joined_ends_the_run() -> None:
    shares = [replica("worker-0", "a"), replica("evaluator-0", "b"), replica("worker-1", "c")]
    driver = Driver(*shares, hosts="abc", max_restarts=3)
    driver(HostJoined("a"), HostJoined("b"), HostLost("b", "silence"), HostReturned("b"))
    assert of(StartRanks, driver(HostJoined("c"))) == []
    driver(TimerFired(instructions.CHOOSE), TimerFired(instructions.GRACE))
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.FAILED, "b was lost: silence")]


def test_a_host_whose_replicas_had_ended_may_be_lost() -> None:
    driver = Driver().go()
    driver(ReplicaEnded("worker-0", 0), HostLost("b", "silence"))
    assert driver.run.outcome is None
    driver(ReplicaEnded("chief-0", 0))
    assert of(FinishRun, driver(HostSwept("a")))[0].state is RunState.SUCCEEDED


def test_the_sweep_of_a_stop_has_the_rest_of_the_grace() -> None:
    driver = Driver().go()
    result = driver(StopRequested("enough"))
    assert of(EndRanks, result) == [
        EndRanks("a", ("chief-0",), 30.0, is_stop=True),
        EndRanks("b", ("worker-0",), 30.0, is_stop=True),
    ]
    assert of(RecordRunState, result) == [RecordRunState(RunState.STOPPING, "enough")]
    result = driver(ReplicaEnded("chief-0", 0), ReplicaEnded("worker-0", -15), after=12)
    assert of(Sweep, result) == [Sweep("a", 18.0), Sweep("b", 18.0)]
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.STOPPED, "enough")]
    assert driver.states() == {"chief-0": "stopped", "worker-0": "stopped"}


def test_a_coordinator_lets_its_run_fail_with_a_reason_and_without_a_restart() -> None:
    driver = Driver(max_restarts=5).go()
    assert of(RecordRunState, driver(StopRequested("no trial is complete", is_failure=True))) == [
        RecordRunState(RunState.STOPPING, "no trial is complete")
    ]
    driver(ReplicaEnded("chief-0", 0), ReplicaEnded("worker-0", 0))
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.FAILED, "no trial is complete")]


def test_a_failure_during_a_stop_is_part_of_the_stop() -> None:
    driver = Driver().go()
    driver(
        StopRequested("enough"), RankFailed("worker-0", 1, BAD), ReplicaEnded("worker-0", 1), ReplicaEnded("chief-0", 0)
    )
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.STOPPED, "enough")]


def test_stop_before_the_members_have_joined_waits_for_none() -> None:
    driver = Driver()
    driver(HostJoined("a"))
    result = driver(StopRequested("enough"))
    assert of(Sweep, result) == [Sweep("a", 30.0)]
    assert of(FinishRun, driver(HostSwept("a"))) == [FinishRun(RunState.STOPPED, "enough")]


def test_a_member_that_joins_after_the_stop_starts_nothing() -> None:
    driver = Driver()
    driver(HostJoined("a"), StopRequested("enough"))
    assert of(StartRanks, driver(HostJoined("b"))) == []


def test_force_ends_the_grace_of_a_stop_and_its_sweep() -> None:
    driver = Driver().go()
    driver(StopRequested("enough"))
    assert of(EndRanks, driver(StopRequested("now", force=True))) == [
        EndRanks("a", ("chief-0",), 0.0, is_stop=True),
        EndRanks("b", ("worker-0",), 0.0, is_stop=True),
    ]
    driver(ReplicaEnded("chief-0", -9), ReplicaEnded("worker-0", -9), HostSwept("a"))
    assert of(Sweep, driver(StopRequested("now", force=True))) == [Sweep("b", 0.0)]
    assert of(FinishRun, driver(HostSwept("b"))) == [FinishRun(RunState.STOPPED, "enough")]


def test_a_scheduler_that_leaves_less_time_shortens_the_grace_and_never_extends_it() -> None:
    ends = [("a", ("chief-0",)), ("b", ("worker-0",))]
    driver = Driver().go()
    assert of(EndRanks, driver(StopRequested("taken"))) == [EndRanks(*one, 30.0, is_stop=True) for one in ends]
    assert driver(StopRequested("taken", within_s=29.5), after=1) == []
    shortened = [EndRanks(*one, 4.0, is_stop=True) for one in ends]
    assert of(EndRanks, driver(StopRequested("taken", within_s=4.0))) == shortened
    driver(ReplicaEnded("chief-0", 0), ReplicaEnded("worker-0", 0), HostSwept("a"))
    assert of(Sweep, driver(StopRequested("taken", within_s=1.0))) == [Sweep("b", 1.0)]
    at_once = Driver().go()(StopRequested("taken", within_s=4.0))
    assert of(EndRanks, at_once) == shortened


def test_events_after_the_end_have_no_effect() -> None:
    driver = Driver().go()
    driver(ReplicaEnded("chief-0", 0), ReplicaEnded("worker-0", 0))
    driver.swept()
    assert driver(StopRequested("late"), HostLost("b", "x"), TimerFired(instructions.GRACE), HostJoined("a")) == []


def _next_event(driver: Driver, dice: random.Random) -> Event:
    """Returns a random event that is possible in the current state."""
    run = driver.run
    possible: list[Event] = [LinkBroken("b"), LinkRestored("b"), StopRequested("enough", dice.random() < 0.5)]
    if dice.random() < 0.1:
        possible.append(HostLost("b", "silence"))
    possible += [HostJoined(host.name) for host in run.hosts if not host.joined and not host.lost] * 5
    possible += [TimerFired(one.timer) for one in of(SetTimer, driver.ordered) + of(SetTimer, driver.first)]
    for one in run.replicas:
        if run.host(one.host).lost or not run.started or one.state.is_terminal:
            continue
        possible += [ReplicaSpawned(one.name)] * 3 + [ReplicaEnded(one.name, dice.choice((0, 0, 1)))]
        possible.append(RankFailed(one.name, 1, dice.choice((BAD, PEER))))
    asked = {one.host for one in of(Sweep, driver.ordered)}
    possible += [HostSwept(host.name) for host in run.hosts if host.name in asked and not host.lost]
    return dice.choice(possible)


@pytest.mark.parametrize("seed", range(300))
def test_random_events_end_the_run_once_and_only_when_nothing_is_left(seed: int) -> None:
    dice = random.Random(seed)
    names = ("chief-0", "worker-0", "ps-0", "evaluator-0")
    driver = Driver(
        *[replica(name, dice.choice("ab"), []) for name in names], ends_with=dice.choice(("trainers", "chief", "all"))
    )
    for _ in range(2000):
        if driver.run.state.is_terminal:
            break
        driver(_next_event(driver, dice), after=dice.random())
    assert driver.run.state.is_terminal
    assert len(of(FinishRun, driver.ordered)) == 1
    assert isinstance(driver.ordered[-1], FinishRun)
    assert all(one.state.is_terminal for one in driver.run.replicas)
    assert all(host.swept or host.lost for host in driver.run.hosts)
    assert all(one.state.is_terminal is False for one in of(RecordRunState, driver.ordered))
    for name in names:  # A terminal state is recorded exactly once, as the last state.
        terminal = [one.state.is_terminal for one in of(RecordReplicaState, driver.ordered) if one.replica == name]
        assert terminal.count(True) == 1
        assert terminal[-1]
    if driver.run.outcome is RunState.FAILED:
        assert driver.run.reason
