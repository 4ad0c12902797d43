"""Tests of gangs with servers and reducers: which replicas restart together, and which cause is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agent.keeper.decisions.test_state_machine import PEER, Driver, of
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


def served(**changes: Any) -> Driver:
    """Returns a run with a chief on host a, a worker on host b, and one parameter server on each of the two hosts."""
    shares = [replica(name, host) for name, host in (("chief-0", "a"), ("worker-0", "b"), ("ps-0", "b"), ("ps-1", "a"))]
    return Driver(*shares, **{"max_restarts": 1, **changes}).go()


def trainers_fail(driver: Driver, cause: Cause = LOST_A_SERVER, after: float = 0.0) -> list[Any]:
    result = []
    for name in ("chief-0", "worker-0"):
        result += driver(RankFailed(name, 1, cause), ReplicaEnded(name, 1), after=after)
    return result


def trainers_clear(driver: Driver, generation: int = 0) -> list[Any]:
    return driver(GangCleared("a", "trainers", generation), GangCleared("b", "trainers", generation))


def generations(driver: Driver) -> dict[str, int]:
    return {gang.name: gang.generation for gang in driver.run.gangs}


def test_a_servers_failure_is_the_cause_of_its_and_the_trainers_restart() -> None:
    driver = served()
    result = driver(RankFailed("ps-0", -9, KILLED), ReplicaEnded("ps-0", -9))
    sentence = f"ps-0 on b: {KILLED.text}"
    assert of(RecordGangRestart, result) == [RecordGangRestart("ps-0", 1, sentence)]
    assert driver.run.state is RunState.RUNNING
    driver(GangCleared("b", "ps-0", 0), ReplicaSpawned("ps-0"), after=0.5)

    result = trainers_fail(driver, after=4.0)
    assert of(RecordGangRestart, result) == [RecordGangRestart("trainers", 1, sentence)]
    assert of(StartGang, trainers_clear(driver)) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]
    driver(ReplicaSpawned("chief-0"), ReplicaSpawned("worker-0"))
    assert driver.run.state is RunState.RUNNING
    assert generations(driver) == {"trainers": 1, "ps-0": 1, "ps-1": 0}


def test_trainers_that_fail_first_wait_for_the_failure_of_their_server() -> None:
    driver = served()
    assert of(RecordGangRestart, trainers_fail(driver)) == []
    result = driver(RankFailed("ps-0", -9, KILLED), ReplicaEnded("ps-0", -9), after=0.2)
    assert {one.cause for one in of(RecordGangRestart, result)} == {f"ps-0 on b: {KILLED.text}"}
    assert of(StartGang, trainers_clear(driver)) == []
    result = driver(GangCleared("b", "ps-0", 0))
    assert [started.gang for started in of(StartGang, result)] == ["ps-0", "trainers"]


def test_trainers_whose_server_has_not_failed_restart_after_the_wait() -> None:
    driver = served()
    trainers_fail(driver)
    result = driver(TimerFired(EXPLAIN, "trainers", 0), after=11.0)
    assert of(RecordGangRestart, result) == [RecordGangRestart("trainers", 1, f"chief-0 on a: {LOST_A_SERVER.text}")]
    assert of(StartGang, trainers_clear(driver)) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]


def test_trainers_do_not_spend_their_restarts_on_a_server_whose_host_is_lost() -> None:
    shares = [replica(name, host) for name, host in (("chief-0", "a"), ("worker-0", "b"), ("ps-0", "c"))]
    driver = Driver(*shares, hosts=("a", "b", "c"), max_restarts=1).go()
    trainers_fail(driver)
    why = "its keeper was not heard for 10 s"
    driver(HostLost("c", why), after=10.0)
    assert of(StartGang, trainers_clear(driver)) == []
    assert driver.run.reason == f"c was lost: {why}; waiting up to 600 s for c to come back"
    assert len(of(NotifyUser, driver.ordered)) == 1
    result = driver(HostReturned("c"), after=100.0)
    assert [started.gang for started in of(StartGang, result)] == ["ps-0", "trainers"]
    driver(*[ReplicaSpawned(one.name) for one in driver.run.replicas])
    assert driver.run.state is RunState.RUNNING
    assert generations(driver) == {"trainers": 1, "ps-0": 1}


def test_a_worker_s_own_failure_leaves_the_servers_alone() -> None:
    driver = served()
    result = trainers_fail(driver, Cause("exited with 1: ValueError: bad"))
    assert [one.gang for one in of(RecordGangRestart, result)] == ["trainers"]
    assert of(StartGang, trainers_clear(driver)) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]
    assert driver.states()["ps-0"] == driver.states()["ps-1"] == "running"


def test_the_last_failure_of_a_run_names_the_server() -> None:
    driver = served(max_restarts=1)
    driver(
        RankFailed("ps-0", -9, KILLED), ReplicaEnded("ps-0", -9), GangCleared("b", "ps-0", 0), ReplicaSpawned("ps-0")
    )
    trainers_fail(driver)
    trainers_clear(driver)
    driver(ReplicaSpawned("chief-0"), ReplicaSpawned("worker-0"))
    again = Cause("exited with 1: MemoryError")
    driver(RankFailed("ps-0", 1, again), ReplicaEnded("ps-0", 1), after=60.0)
    trainers_fail(driver, after=0.2)
    driver(TimerFired("choose"), after=1.0)
    assert driver.run.reason == f"ps-0 on b: {again.text}"
    driver(ReplicaEnded("ps-1", 0))
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.FAILED, driver.run.reason)]


def test_an_old_failure_of_a_server_explains_nothing() -> None:
    driver = served(max_restarts=2)
    driver(
        RankFailed("ps-0", -9, KILLED), ReplicaEnded("ps-0", -9), GangCleared("b", "ps-0", 0), ReplicaSpawned("ps-0")
    )
    driver(after=60.0)
    trainers_fail(driver)
    result = driver(TimerFired(EXPLAIN, "trainers", 0), after=11.0)
    assert [one.cause for one in of(RecordGangRestart, result)] == [f"chief-0 on a: {LOST_A_SERVER.text}"]


def test_servers_that_still_run_when_the_trainers_are_done_are_stopped_and_the_run_succeeds() -> None:
    driver = served()
    driver(ReplicaEnded("chief-0", 0))
    result = driver(ReplicaEnded("worker-0", 0))
    assert of(EndRanks, result) == [
        EndRanks("b", ("ps-0",), 30.0, is_stop=True),
        EndRanks("a", ("ps-1",), 30.0, is_stop=True),
    ]
    driver(ReplicaEnded("ps-0", -15), ReplicaEnded("ps-1", 0))
    assert driver.states() == {"chief-0": "succeeded", "worker-0": "succeeded", "ps-0": "stopped", "ps-1": "stopped"}
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.SUCCEEDED, "")]


@pytest.mark.parametrize("ends_with", ["trainers", "chief", "all"])
def test_servers_that_exit_after_the_trainers_have_succeeded(ends_with: str) -> None:
    driver = served(ends_with=ends_with)
    driver(ReplicaEnded("ps-0", 0), ReplicaEnded("ps-1", 0), ReplicaEnded("worker-0", 0), ReplicaEnded("chief-0", 0))
    assert set(driver.states().values()) == {"succeeded"}
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.SUCCEEDED, "")]


def test_ended_servers_restart_for_restarted_trainers() -> None:
    driver = served()
    driver(ReplicaEnded("ps-0", 0), ReplicaEnded("ps-1", 0))
    trainers_fail(driver, Cause("exited with 1: OSError: no space for the last plot"))
    assert of(StartGang, trainers_clear(driver)) == []
    result = driver(GangCleared("b", "ps-0", 0), GangCleared("a", "ps-1", 0))
    assert sorted(started.gang for started in of(StartGang, result)) == ["ps-0", "ps-1", "trainers"]
    assert set(driver.states().values()) == {"starting"}


@pytest.mark.parametrize("role", ["ps", "reducer"])
def test_each_server_and_reducer_is_restarted_alone(role: str) -> None:
    driver = Driver(replica("worker-0", "a"), replica(f"{role}-0", "a"), replica(f"{role}-1", "b"), max_restarts=1).go()
    driver(RankFailed(f"{role}-1", 1, KILLED), ReplicaEnded(f"{role}-1", 1))
    assert of(StartGang, driver(GangCleared("b", f"{role}-1", 0))) == [StartGang(f"{role}-1", 1, (f"{role}-1",))]
    assert of(RecordRunState, driver.ordered)[-1].state is RunState.RUNNING
    assert driver.states() == {"worker-0": "running", f"{role}-0": "running", f"{role}-1": "starting"}


def test_a_group_of_an_asynchronous_strategy_restarts_alone_beside_its_server() -> None:
    groups = [replica(f"worker-{number}", "a", gang=f"group-{number}") for number in range(2)]
    driver = Driver(*groups, replica("ps-0", "b"), max_restarts=1).go()
    driver(RankFailed("worker-1", 1, KILLED), ReplicaEnded("worker-1", 1))
    assert of(StartGang, driver(GangCleared("a", "group-1", 0))) == [StartGang("group-1", 1, ("worker-1",))]
    assert driver.states() == {"worker-0": "running", "worker-1": "starting", "ps-0": "running"}
    assert driver.run.state is RunState.RUNNING


def test_without_servers_a_connection_error_restarts_at_once() -> None:
    driver = Driver(max_restarts=1).go()
    driver(RankFailed("worker-0", 1, PEER), ReplicaEnded("worker-0", 1))
    result = driver(RankFailed("chief-0", 1, PEER), ReplicaEnded("chief-0", 1))
    assert [one.gang for one in of(RecordGangRestart, result)] == ["trainers"]
