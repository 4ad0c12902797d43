"""Servers and reducers among gangs: who restarts with whom, and whose cause is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agent.keeper.decisions.test_state_machine import PEER, Play, of
from tests.agent.keeper.keeper_cluster import replica
from torchyard_agent.keeper.decisions.events import (
    Cause,
    GangCleared,
    HostLost,
    HostReturned,
    RankFailed,
    ReplicaEnded,
    ReplicaSpawned,
    TimerFired,
)
from torchyard_agent.keeper.decisions.instructions import (
    EXPLAIN,
    EndRanks,
    FinishRun,
    NotifyUser,
    RecordGangRestart,
    RecordRunState,
    StartGang,
)
from torchyard_agent.protocol.run_states import RunState

KILLED = Cause("was killed by SIGKILL (out of memory, or killed by a user?)")
LOST_A_SERVER = Cause("exited with 1: torchyard_roles.errors.PeerLost: ps-0 on 10.0.0.2 is gone: closed.", True)


def served(**changes: Any) -> Play:
    """A chief and a worker on a and b, a server on each."""
    shares = [replica(name, host) for name, host in (("chief-0", "a"), ("worker-0", "b"), ("ps-0", "b"), ("ps-1", "a"))]
    return Play(*shares, **{"max_restarts": 1, **changes}).go()


def trainers_fail(play: Play, cause: Cause = LOST_A_SERVER, after: float = 0.0) -> list[Any]:
    said = []
    for name in ("chief-0", "worker-0"):
        said += play(RankFailed(name, 1, cause), ReplicaEnded(name, 1), after=after)
    return said


def trainers_clear(play: Play, generation: int = 0) -> list[Any]:
    return play(GangCleared("a", "trainers", generation), GangCleared("b", "trainers", generation))


def generations(play: Play) -> dict[str, int]:
    return {gang.name: gang.generation for gang in play.run.gangs}


def test_a_server_s_death_costs_it_and_the_trainers_one_restart_each_and_is_the_cause_of_both() -> None:
    play = served()
    said = play(RankFailed("ps-0", -9, KILLED), ReplicaEnded("ps-0", -9))
    sentence = f"ps-0 on b: {KILLED.text}"
    assert of(RecordGangRestart, said) == [RecordGangRestart("ps-0", 1, sentence)]
    assert play.run.state is RunState.RUNNING
    play(GangCleared("b", "ps-0", 0), ReplicaSpawned("ps-0"), after=0.5)

    said = trainers_fail(play, after=4.0)
    assert of(RecordGangRestart, said) == [RecordGangRestart("trainers", 1, sentence)]
    assert of(StartGang, trainers_clear(play)) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]
    play(ReplicaSpawned("chief-0"), ReplicaSpawned("worker-0"))
    assert play.run.state is RunState.RUNNING
    assert generations(play) == {"trainers": 1, "ps-0": 1, "ps-1": 0}


def test_trainers_that_notice_first_wait_for_the_word_on_their_server() -> None:
    play = served()
    assert of(RecordGangRestart, trainers_fail(play)) == []
    said = play(RankFailed("ps-0", -9, KILLED), ReplicaEnded("ps-0", -9), after=0.2)
    assert {told.cause for told in of(RecordGangRestart, said)} == {f"ps-0 on b: {KILLED.text}"}
    assert of(StartGang, trainers_clear(play)) == []
    said = play(GangCleared("b", "ps-0", 0))
    assert [started.gang for started in of(StartGang, said)] == ["ps-0", "trainers"]


def test_trainers_whose_server_is_well_start_again_all_the_same_after_a_while() -> None:
    play = served()
    trainers_fail(play)
    said = play(TimerFired(EXPLAIN, "trainers", 0), after=11.0)
    assert of(RecordGangRestart, said) == [RecordGangRestart("trainers", 1, f"chief-0 on a: {LOST_A_SERVER.text}")]
    assert of(StartGang, trainers_clear(play)) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]


def test_trainers_do_not_spend_their_restarts_on_a_server_whose_host_is_lost() -> None:
    shares = [replica(name, host) for name, host in (("chief-0", "a"), ("worker-0", "b"), ("ps-0", "c"))]
    play = Play(*shares, hosts=("a", "b", "c"), max_restarts=1).go()
    trainers_fail(play)
    why = "its keeper was not heard for 10 s"
    play(HostLost("c", why), after=10.0)
    assert of(StartGang, trainers_clear(play)) == []
    assert play.run.reason == f"c was lost: {why}; waiting up to 600 s for c to come back"
    assert len(of(NotifyUser, play.told)) == 1
    said = play(HostReturned("c"), after=100.0)
    assert [started.gang for started in of(StartGang, said)] == ["ps-0", "trainers"]
    play(*[ReplicaSpawned(one.name) for one in play.run.replicas])
    assert play.run.state is RunState.RUNNING
    assert generations(play) == {"trainers": 1, "ps-0": 1}


def test_a_worker_s_own_failure_leaves_the_servers_alone() -> None:
    play = served()
    said = trainers_fail(play, Cause("exited with 1: ValueError: bad"))
    assert [told.gang for told in of(RecordGangRestart, said)] == ["trainers"]
    assert of(StartGang, trainers_clear(play)) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]
    assert play.states()["ps-0"] == play.states()["ps-1"] == "running"


def test_the_last_failure_of_a_run_names_the_server_and_not_who_lost_it() -> None:
    play = served(max_restarts=1)
    play(RankFailed("ps-0", -9, KILLED), ReplicaEnded("ps-0", -9), GangCleared("b", "ps-0", 0), ReplicaSpawned("ps-0"))
    trainers_fail(play)
    trainers_clear(play)
    play(ReplicaSpawned("chief-0"), ReplicaSpawned("worker-0"))
    again = Cause("exited with 1: MemoryError")
    play(RankFailed("ps-0", 1, again), ReplicaEnded("ps-0", 1), after=60.0)
    trainers_fail(play, after=0.2)
    play(TimerFired("choose"), after=1.0)
    assert play.run.reason == f"ps-0 on b: {again.text}"
    play(ReplicaEnded("ps-1", 0))
    assert of(FinishRun, play.swept()) == [FinishRun(RunState.FAILED, play.run.reason)]


def test_an_old_failure_of_a_server_explains_nothing() -> None:
    play = served(max_restarts=2)
    play(RankFailed("ps-0", -9, KILLED), ReplicaEnded("ps-0", -9), GangCleared("b", "ps-0", 0), ReplicaSpawned("ps-0"))
    play(after=60.0)
    trainers_fail(play)
    said = play(TimerFired(EXPLAIN, "trainers", 0), after=11.0)
    assert [told.cause for told in of(RecordGangRestart, said)] == [f"chief-0 on a: {LOST_A_SERVER.text}"]


def test_servers_that_still_run_when_the_trainers_are_done_are_stopped_and_the_run_succeeds() -> None:
    play = served()
    play(ReplicaEnded("chief-0", 0))
    said = play(ReplicaEnded("worker-0", 0))
    assert of(EndRanks, said) == [EndRanks("b", ("ps-0",), 30.0), EndRanks("a", ("ps-1",), 30.0)]
    play(ReplicaEnded("ps-0", -15), ReplicaEnded("ps-1", 0))
    assert play.states() == {"chief-0": "succeeded", "worker-0": "succeeded", "ps-0": "stopped", "ps-1": "stopped"}
    assert of(FinishRun, play.swept()) == [FinishRun(RunState.SUCCEEDED, "")]


@pytest.mark.parametrize("ends_with", ["trainers", "chief", "all"])
def test_servers_that_leave_by_themselves_after_the_trainers_parted_have_succeeded(ends_with: str) -> None:
    play = served(ends_with=ends_with)
    play(ReplicaEnded("ps-0", 0), ReplicaEnded("ps-1", 0), ReplicaEnded("worker-0", 0), ReplicaEnded("chief-0", 0))
    assert set(play.states().values()) == {"succeeded"}
    assert of(FinishRun, play.swept()) == [FinishRun(RunState.SUCCEEDED, "")]


def test_servers_that_had_left_come_back_for_trainers_that_start_again() -> None:
    play = served()
    play(ReplicaEnded("ps-0", 0), ReplicaEnded("ps-1", 0))
    trainers_fail(play, Cause("exited with 1: OSError: no space for the last plot"))
    assert of(StartGang, trainers_clear(play)) == []
    said = play(GangCleared("b", "ps-0", 0), GangCleared("a", "ps-1", 0))
    assert sorted(started.gang for started in of(StartGang, said)) == ["ps-0", "ps-1", "trainers"]
    assert set(play.states().values()) == {"starting"}


@pytest.mark.parametrize("role", ["ps", "reducer"])
def test_each_server_and_reducer_is_restarted_alone(role: str) -> None:
    play = Play(replica("worker-0", "a"), replica(f"{role}-0", "a"), replica(f"{role}-1", "b"), max_restarts=1).go()
    play(RankFailed(f"{role}-1", 1, KILLED), ReplicaEnded(f"{role}-1", 1))
    assert of(StartGang, play(GangCleared("b", f"{role}-1", 0))) == [StartGang(f"{role}-1", 1, (f"{role}-1",))]
    assert of(RecordRunState, play.told)[-1].state is RunState.RUNNING
    assert play.states() == {"worker-0": "running", f"{role}-0": "running", f"{role}-1": "starting"}


def test_a_group_of_an_asynchronous_strategy_restarts_alone_beside_its_server() -> None:
    groups = [replica(f"worker-{number}", "a", gang=f"group-{number}") for number in range(2)]
    play = Play(*groups, replica("ps-0", "b"), max_restarts=1).go()
    play(RankFailed("worker-1", 1, KILLED), ReplicaEnded("worker-1", 1))
    assert of(StartGang, play(GangCleared("a", "group-1", 0))) == [StartGang("group-1", 1, ("worker-1",))]
    assert play.states() == {"worker-0": "running", "worker-1": "starting", "ps-0": "running"}
    assert play.run.state is RunState.RUNNING


def test_without_servers_a_lost_connection_is_not_waited_over() -> None:
    play = Play(max_restarts=1).go()
    play(RankFailed("worker-0", 1, PEER), ReplicaEnded("worker-0", 1))
    said = play(RankFailed("chief-0", 1, PEER), ReplicaEnded("chief-0", 1))
    assert [told.gang for told in of(RecordGangRestart, said)] == ["trainers"]
