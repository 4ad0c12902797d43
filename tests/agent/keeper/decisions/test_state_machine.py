"""The policy alone: events in, states and instructions out, without a process or a socket."""

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


class Play:
    """A run and all that it was told to do."""

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
        self.told: list[Instruction] = []
        self.run, first = state_machine.begin(
            hosts, replicas, rules, join_within_s=30, meeting_point="10.0.0.1:4000", scheduled=scheduled
        )
        self.first = first

    def __call__(self, *events: Event, after: float = 0.0) -> list[Instruction]:
        """The instructions that follow from these events together."""
        self.now += after
        said: list[Instruction] = []
        for event in events:
            self.run, out = state_machine.transition(self.run, event, self.now)
            said += out
        self.told += said
        return said

    def go(self) -> Play:
        """All hosts are there and all replicas run."""
        self(*[HostJoined(host.name) for host in self.run.hosts])
        self(*[ReplicaSpawned(one.name) for one in self.run.replicas])
        return self

    def swept(self) -> list[Instruction]:
        return self(*[HostSwept(host.name) for host in self.run.hosts if not host.lost])

    def states(self) -> dict[str, str]:
        return {one.name: one.state.value for one in self.run.replicas}


def of(kind: type, instructions: list[Instruction]) -> list[Any]:
    return [instruction for instruction in instructions if isinstance(instruction, kind)]


def test_nothing_starts_before_every_host_is_there() -> None:
    play = Play()
    assert of(SetTimer, play.first) == [SetTimer(instructions.JOIN, 30)]
    assert [told.state for told in of(RecordReplicaState, play.first)] == [ReplicaState.PENDING] * 2
    assert play(HostJoined("a")) == []
    assert StartRanks() in play(HostJoined("b"))
    assert set(play.states().values()) == {"starting"}
    assert of(RecordRunState, play(ReplicaSpawned("chief-0"))) == []
    assert of(RecordRunState, play(ReplicaSpawned("worker-0"))) == [RecordRunState(RunState.RUNNING, "")]


def test_a_host_that_joins_after_a_scheduled_runs_time_takes_its_gpus_then() -> None:
    play = Play(scheduled="starts at noon")
    assert of(AcquireGpus, play(HostJoined("a"))) == []
    assert of(AcquireGpus, play(StartDue(only_if_idle=True))) == [AcquireGpus("a", True)]
    assert of(AcquireGpus, play(HostJoined("b"))) == [AcquireGpus("b", True)]
    assert of(StartRanks, play(GpusAcquired("a"))) == []
    assert of(StartRanks, play(GpusAcquired("b"))) == [StartRanks()]


def test_hosts_that_do_not_come_are_named_and_what_is_there_is_released() -> None:
    play = Play()
    play(HostJoined("a"))
    said = play(TimerFired(instructions.JOIN), after=30)
    assert "b did not reach the primary a at 10.0.0.1:4000" in of(RecordRunState, said)[0].reason
    assert of(Sweep, said) == [Sweep("a", state_machine.KILL_AFTER_S)]
    assert play.states() == {"chief-0": "stopped", "worker-0": "stopped"}
    assert of(FinishRun, play(HostSwept("a")))[0].state is RunState.FAILED


def test_the_join_timer_means_nothing_once_all_are_there() -> None:
    play = Play().go()
    assert play(TimerFired(instructions.JOIN)) == []


def test_a_run_succeeds_when_its_trainers_have() -> None:
    play = Play().go()
    assert of(Sweep, play(ReplicaEnded("chief-0", 0))) == []
    assert len(of(Sweep, play(ReplicaEnded("worker-0", 0)))) == 2
    assert of(FinishRun, play(HostSwept("a"))) == []
    assert of(FinishRun, play(HostSwept("b"))) == [FinishRun(RunState.SUCCEEDED, "")]


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
def test_ends_with_says_whose_end_counts(ends_with: str, ended: list[str], over: bool) -> None:
    names = ("chief-0", "worker-0", "ps-0", "evaluator-0")
    play = Play(*[replica(name, "a", []) for name in names], hosts=["a"], ends_with=ends_with).go()
    said = play(*[ReplicaEnded(name, 0) for name in ended])
    rest = tuple(name for name in names if name not in ended)
    assert bool(play.run.outcome) is over
    if over and rest:
        assert of(EndRanks, said) == [EndRanks("a", rest, 30.0)]
        assert of(RecordRunState, said) == [RecordRunState(RunState.STOPPING, "")]
        play(*[ReplicaEnded(name, -15) for name in rest])
        assert {play.states()[name] for name in rest} == {"stopped"}
    if over:
        assert of(FinishRun, play.swept())[0].state is RunState.SUCCEEDED


def test_without_a_chief_the_first_worker_is_it() -> None:
    play = Play(replica("worker-0", "a", []), replica("worker-1", "b", []), ends_with="chief").go()
    play(ReplicaEnded("worker-1", 0))
    assert play.run.outcome is None
    play(ReplicaEnded("worker-0", 0))
    assert play.run.outcome is RunState.SUCCEEDED


def test_a_failure_ends_the_run_with_its_cause_after_the_grace() -> None:
    play = Play().go()
    said = play(RankFailed("worker-0", 1, BAD), ReplicaEnded("worker-0", 1))
    assert of(SetTimer, said) == [SetTimer(instructions.CHOOSE, 1.0), SetTimer(instructions.GRACE, 2.0)]
    assert of(EndRanks, said) == []
    said = play(TimerFired(instructions.CHOOSE), after=1)
    assert of(RecordRunState, said) == [
        RecordRunState(RunState.STOPPING, "worker-0 on b: exited with 1: ValueError: bad")
    ]
    said = play(TimerFired(instructions.GRACE), after=1)
    assert of(EndRanks, said) == [EndRanks("a", ("chief-0",), state_machine.KILL_AFTER_S)]
    play(ReplicaEnded("chief-0", -9), after=1.5)
    assert play.states() == {"chief-0": "stopped", "worker-0": "failed"}
    assert of(FinishRun, play.swept()) == [FinishRun(RunState.FAILED, "worker-0 on b: exited with 1: ValueError: bad")]


@pytest.mark.parametrize("first", [PEER, BAD])
def test_of_two_failures_the_one_that_is_nobodys_consequence_is_the_cause(first: Cause) -> None:
    second = BAD if first is PEER else PEER
    play = Play().go()
    play(RankFailed("chief-0", 1, first), ReplicaEnded("chief-0", 1), RankFailed("worker-0", 1, second))
    play(ReplicaEnded("worker-0", 1))
    culprit = "chief-0 on a" if first is BAD else "worker-0 on b"
    assert of(FinishRun, play.swept())[0].reason == f"{culprit}: exited with 1: ValueError: bad"


def test_of_two_equal_failures_the_first_to_arrive_is_the_cause() -> None:
    play = Play().go()
    play(
        RankFailed("worker-0", 1, PEER),
        RankFailed("chief-0", 1, PEER),
        ReplicaEnded("chief-0", 1),
        ReplicaEnded("worker-0", 1),
    )
    assert play.run.reason.startswith("worker-0 on b")


def test_failures_after_the_choice_do_not_change_the_cause() -> None:
    play = Play().go()
    play(RankFailed("worker-0", 1, PEER), TimerFired(instructions.CHOOSE), RankFailed("chief-0", 1, BAD))
    assert play.run.reason.startswith("worker-0 on b: exited with 1: Connection closed")


def test_connection_errors_alone_point_to_the_host_that_fell_silent() -> None:
    play = Play().go()
    play(LinkBroken("b"), RankFailed("chief-0", 1, PEER), ReplicaEnded("chief-0", 1), TimerFired(instructions.CHOOSE))
    assert play.run.reason == "b was lost: the connection to its keeper broke"
    play(TimerFired(instructions.GRACE), HostLost("b", "not heard for 10 s"))
    assert play.states() == {"chief-0": "failed", "worker-0": "lost"}
    assert of(FinishRun, play(HostSwept("a")))[0].state is RunState.FAILED


def test_a_link_that_comes_back_changes_nothing() -> None:
    play = Play().go()
    assert play(LinkBroken("b"), LinkRestored("b")) == []
    play(RankFailed("chief-0", 1, PEER), TimerFired(instructions.CHOOSE))
    assert play.run.reason.startswith("chief-0 on a")


def test_a_server_that_fails_as_the_trainers_finish_does_not_undo_their_success() -> None:
    play = Play(replica("worker-0", "a", []), replica("ps-0", "b", [])).go()
    play(RankFailed("ps-0", 1, PEER), ReplicaEnded("ps-0", 1), ReplicaEnded("worker-0", 0))
    assert of(FinishRun, play.swept())[0].state is RunState.SUCCEEDED
    assert play.states()["ps-0"] == "failed"


@pytest.mark.parametrize("role", ["ps", "reducer", "worker", "chief"])
def test_who_else_than_an_evaluator_fails_ends_the_run(role: str) -> None:
    play = Play(replica(f"{role}-0", "a", []), replica("worker-1", "b", [])).go()
    play(RankFailed(f"{role}-0", 1, BAD))
    assert play.run.outcome is RunState.FAILED


def test_an_evaluator_ends_no_run_by_failing_or_by_being_lost() -> None:
    play = Play(replica("worker-0", "a", []), replica("evaluator-0", "b", [])).go()
    said = play(RankFailed("evaluator-0", 1, BAD))
    assert of(EndRanks, said) == [EndRanks("b", ("evaluator-0",), 2.0)]
    play(ReplicaEnded("evaluator-0", 1))
    assert play.run.outcome is None
    assert play.states()["evaluator-0"] == "failed"
    play = Play(replica("worker-0", "a", []), replica("evaluator-0", "b", [])).go()
    play(HostLost("b", "silence"))
    assert play.run.outcome is None
    play(ReplicaEnded("worker-0", 0))
    assert of(FinishRun, play(HostSwept("a")))[0].state is RunState.SUCCEEDED


def test_a_run_of_evaluators_alone_fails_when_all_of_them_do() -> None:
    play = Play(replica("evaluator-0", "a", []), hosts=["a"], ends_with="all").go()
    play(RankFailed("evaluator-0", 1, BAD), ReplicaEnded("evaluator-0", 1))
    assert of(FinishRun, play.swept())[0] == FinishRun(
        RunState.FAILED, "evaluator-0 on a: exited with 1: ValueError: bad"
    )


def test_a_lost_host_ends_the_run_and_is_waited_for_no_longer() -> None:
    play = Play().go()
    play(
        HostLost("b", "its keeper was not heard for 10 s"),
        TimerFired(instructions.CHOOSE),
        TimerFired(instructions.GRACE),
    )
    play(ReplicaEnded("chief-0", -15))
    assert play.states() == {"chief-0": "stopped", "worker-0": "lost"}
    finish = of(FinishRun, play(HostSwept("a")))[0]
    assert finish == FinishRun(RunState.FAILED, "b was lost: its keeper was not heard for 10 s")


def test_a_host_that_is_lost_before_all_are_there_ends_the_run_whatever_may_be_restarted() -> None:
    shares = [replica("worker-0", "a"), replica("evaluator-0", "b"), replica("worker-1", "c")]
    play = Play(*shares, hosts="abc", max_restarts=3)
    play(HostJoined("a"), HostJoined("b"), HostLost("b", "silence"), HostReturned("b"))
    assert of(StartRanks, play(HostJoined("c"))) == []
    play(TimerFired(instructions.CHOOSE), TimerFired(instructions.GRACE))
    assert of(FinishRun, play.swept()) == [FinishRun(RunState.FAILED, "b was lost: silence")]


def test_a_host_whose_replicas_had_ended_may_be_lost() -> None:
    play = Play().go()
    play(ReplicaEnded("worker-0", 0), HostLost("b", "silence"))
    assert play.run.outcome is None
    play(ReplicaEnded("chief-0", 0))
    assert of(FinishRun, play(HostSwept("a")))[0].state is RunState.SUCCEEDED


def test_stop_gives_the_grace_and_keeps_what_is_left_of_it_for_the_sweep() -> None:
    play = Play().go()
    said = play(StopRequested("enough"))
    assert of(EndRanks, said) == [EndRanks("a", ("chief-0",), 30.0), EndRanks("b", ("worker-0",), 30.0)]
    assert of(RecordRunState, said) == [RecordRunState(RunState.STOPPING, "enough")]
    said = play(ReplicaEnded("chief-0", 0), ReplicaEnded("worker-0", -15), after=12)
    assert of(Sweep, said) == [Sweep("a", 18.0), Sweep("b", 18.0)]
    assert of(FinishRun, play.swept()) == [FinishRun(RunState.STOPPED, "enough")]
    assert play.states() == {"chief-0": "stopped", "worker-0": "stopped"}


def test_a_failure_during_a_stop_is_part_of_the_stop() -> None:
    play = Play().go()
    play(
        StopRequested("enough"), RankFailed("worker-0", 1, BAD), ReplicaEnded("worker-0", 1), ReplicaEnded("chief-0", 0)
    )
    assert of(FinishRun, play.swept()) == [FinishRun(RunState.STOPPED, "enough")]


def test_stop_before_the_members_are_there_waits_for_none_of_them() -> None:
    play = Play()
    play(HostJoined("a"))
    said = play(StopRequested("enough"))
    assert of(Sweep, said) == [Sweep("a", 30.0)]
    assert of(FinishRun, play(HostSwept("a"))) == [FinishRun(RunState.STOPPED, "enough")]


def test_a_member_that_comes_after_the_stop_starts_nothing() -> None:
    play = Play()
    play(HostJoined("a"), StopRequested("enough"))
    assert of(StartRanks, play(HostJoined("b"))) == []


def test_force_ends_the_patience_of_a_stop_and_of_its_sweep() -> None:
    play = Play().go()
    play(StopRequested("enough"))
    assert of(EndRanks, play(StopRequested("now", force=True))) == [
        EndRanks("a", ("chief-0",), 0.0),
        EndRanks("b", ("worker-0",), 0.0),
    ]
    play(ReplicaEnded("chief-0", -9), ReplicaEnded("worker-0", -9), HostSwept("a"))
    assert of(Sweep, play(StopRequested("now", force=True))) == [Sweep("b", 0.0)]
    assert of(FinishRun, play(HostSwept("b"))) == [FinishRun(RunState.STOPPED, "enough")]


def test_nothing_follows_the_end() -> None:
    play = Play().go()
    play(ReplicaEnded("chief-0", 0), ReplicaEnded("worker-0", 0))
    play.swept()
    assert play(StopRequested("late"), HostLost("b", "x"), TimerFired(instructions.GRACE), HostJoined("a")) == []


def _next_event(play: Play, dice: random.Random) -> Event:
    """Any event that may happen now."""
    run = play.run
    possible: list[Event] = [LinkBroken("b"), LinkRestored("b"), StopRequested("enough", dice.random() < 0.5)]
    if dice.random() < 0.1:
        possible.append(HostLost("b", "silence"))
    possible += [HostJoined(host.name) for host in run.hosts if not host.joined and not host.lost] * 5
    possible += [TimerFired(told.timer) for told in of(SetTimer, play.told) + of(SetTimer, play.first)]
    for one in run.replicas:
        if run.host(one.host).lost or not run.started or one.state.is_terminal:
            continue
        possible += [ReplicaSpawned(one.name)] * 3 + [ReplicaEnded(one.name, dice.choice((0, 0, 1)))]
        possible.append(RankFailed(one.name, 1, dice.choice((BAD, PEER))))
    asked = {told.host for told in of(Sweep, play.told)}
    possible += [HostSwept(host.name) for host in run.hosts if host.name in asked and not host.lost]
    return dice.choice(possible)


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_the_run_ends_once_and_only_when_nothing_is_left(seed: int) -> None:
    dice = random.Random(seed)
    names = ("chief-0", "worker-0", "ps-0", "evaluator-0")
    play = Play(
        *[replica(name, dice.choice("ab"), []) for name in names], ends_with=dice.choice(("trainers", "chief", "all"))
    )
    for _ in range(2000):
        if play.run.state.is_terminal:
            break
        play(_next_event(play, dice), after=dice.random())
    assert play.run.state.is_terminal
    assert len(of(FinishRun, play.told)) == 1
    assert isinstance(play.told[-1], FinishRun)
    assert all(one.state.is_terminal for one in play.run.replicas)
    assert all(host.swept or host.lost for host in play.run.hosts)
    assert all(told.state.is_terminal is False for told in of(RecordRunState, play.told))
    for name in names:  # a terminal state is told once, and last
        told = [one.state.is_terminal for one in of(RecordReplicaState, play.told) if one.replica == name]
        assert told.count(True) == 1
        assert told[-1]
    if play.run.outcome is RunState.FAILED:
        assert play.run.reason
