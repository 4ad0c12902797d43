"""Tests of worker groups in jobs of their own, which start after the run, leave it and return."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.agent.keeper.decisions.test_state_machine import BAD, Driver, of
from tests.agent.keeper.keeper_cluster import replica
from torchyard_agent.keeper.decisions import state_machine
from torchyard_agent.keeper.decisions.events import (
    HostJoined,
    HostLost,
    HostSwept,
    RankFailed,
    ReplicaEnded,
    ReplicaSpawned,
    StopRequested,
    TimerFired,
)
from torchyard_agent.keeper.decisions.instructions import (
    HOST_WAIT,
    EndRanks,
    FinishRun,
    RecordRunState,
    StartGang,
    StartRanks,
)
from torchyard_agent.protocol.run_states import ReplicaState, RunState


def asynchronous(least: int = 1, *, max_restarts: int = 0) -> Driver:
    """A run of a server, the chief's group on host a, and two groups that start later: on b and c, and on d."""
    replicas: list[dict[str, Any]] = [replica("ps-0", "a", [])]
    for number, (host, group) in enumerate((("a", 0), ("b", 1), ("c", 1), ("d", 2))):
        replicas.append(replica(f"worker-{number}", host, [], gang=f"group-{group}", pool="workers"))
    driver = Driver(*replicas, hosts="abcd", max_restarts=max_restarts, min_replicas={"workers": least})
    driver.run, driver.first = state_machine.begin(
        "abcd",
        replicas,
        driver.run.policy,
        join_within_s=30,
        own_jobs="bcd",  # type: ignore[arg-type]
    )
    return driver


def join(driver: Driver, *hosts: str) -> list[Any]:
    return driver(*[HostJoined(host) for host in hosts])


def started(driver: Driver) -> Driver:
    join(driver, "a")
    driver(ReplicaSpawned("ps-0"), ReplicaSpawned("worker-0"))
    return driver


def both() -> Driver:
    driver = started(asynchronous())
    join(driver, "b", "c", "d")
    driver(*[ReplicaSpawned(f"worker-{number}") for number in (1, 2, 3)])
    return driver


def test_the_first_job_trains_alone_if_min_replicas_allow_it() -> None:
    driver = asynchronous()
    assert of(StartRanks, join(driver, "a")) == [StartRanks()]
    assert of(RecordRunState, driver(ReplicaSpawned("ps-0"), ReplicaSpawned("worker-0"))) == [
        RecordRunState(RunState.RUNNING, "")
    ]
    assert driver.states() == {
        **{"ps-0": "running", "worker-0": "running"},
        **dict.fromkeys(("worker-1", "worker-2", "worker-3"), "pending"),
    }


def test_the_run_starts_when_min_replicas_are_there() -> None:
    driver = asynchronous(least=3)
    assert of(StartRanks, join(driver, "a", "d", "b")) == [StartRanks()]
    assert of(StartGang, driver.ordered) == [StartGang("group-2", 1, ("worker-3",))]
    assert of(StartGang, join(driver, "c")) == [StartGang("group-1", 1, ("worker-1", "worker-2"))]
    assert [driver.run.replica(f"worker-{number}").restarts for number in (1, 2, 3)] == [0, 0, 0]


@pytest.mark.parametrize("has_left", [False, True])
def test_a_group_whose_job_ends_leaves_and_returns_without_a_restart_of_the_run(has_left: bool) -> None:
    driver = both()
    result = driver(HostLost("b", "gone", has_left))
    assert of(EndRanks, result) == [EndRanks("c", ("worker-2",), state_machine.KILL_AFTER_S)]
    assert of(RecordRunState, result) == []
    reason = "b has left: gone" if has_left else "b was lost: gone"
    assert driver.run.replica("worker-1").reason == reason
    driver(HostLost("c", "gone", has_left))
    assert driver.states()["worker-0"] == driver.states()["worker-3"] == "running"
    join(driver, "b")
    assert of(StartGang, join(driver, "c")) == [StartGang("group-1", 2, ("worker-1", "worker-2"))]
    assert driver.run.outcome is None


def test_a_group_does_not_return_before_its_earlier_ranks_have_ended() -> None:
    driver = both()
    driver(HostLost("b", "gone"))
    assert of(StartGang, join(driver, "b")) == []
    assert of(StartGang, driver(ReplicaEnded("worker-2", -15))) == [StartGang("group-1", 2, ("worker-1", "worker-2"))]


def test_fewer_than_min_replicas_end_the_run_after_the_wait_for_hosts() -> None:
    driver = started(asynchronous(least=2))
    join(driver, "d")
    driver.run = driver.run._replace(policy={**driver.run.policy, "host_wait_s": 60.0})
    driver(HostJoined("d"), ReplicaSpawned("worker-3"), ReplicaSpawned("ps-0"), ReplicaSpawned("worker-0"))
    driver(HostLost("d", "gone", has_left=True))
    assert driver.run.outcome is None
    driver(TimerFired(HOST_WAIT), after=61)
    assert driver.run.outcome is RunState.FAILED
    assert "the pool workers needs 2 replicas (`min_replicas`): 1 left" in driver.run.failures[0].sentence


def test_a_failing_script_of_a_group_ends_the_run_as_on_other_hosts() -> None:
    driver = both()
    driver(RankFailed("worker-3", 1, BAD))
    assert driver.run.outcome is RunState.FAILED


def test_the_run_succeeds_and_stops_without_groups_whose_jobs_never_ran() -> None:
    driver = started(asynchronous())
    driver(ReplicaEnded("worker-0", 0), ReplicaEnded("ps-0", 0))
    assert of(FinishRun, driver(HostSwept("a")))[0].state is RunState.SUCCEEDED
    stopped = started(asynchronous())
    stopped(StopRequested("enough"))
    join(stopped, "d")  # The job of a group starts meanwhile.
    stopped(ReplicaEnded("worker-0", 0), ReplicaEnded("ps-0", 0))
    assert of(FinishRun, stopped(HostSwept("a")))[0].state is RunState.STOPPED


def test_a_group_that_has_finished_may_leave() -> None:
    driver = both()
    driver(ReplicaEnded("worker-3", 0), HostLost("d", "its job ends", has_left=True))
    assert driver.states()["worker-3"] == "succeeded"
    assert of(StartGang, join(driver, "d")) == []


def settle(driver: Driver) -> None:
    """Lets all ranks that were ordered to start or end do so."""
    for _ in range(20):
        for one in driver.run.replicas:
            is_lost = driver.run.host(one.host).lost
            if one.state is ReplicaState.STARTING and not is_lost:
                driver(ReplicaSpawned(one.name))
            elif one.state is ReplicaState.STOPPING and not is_lost:
                driver(ReplicaEnded(one.name, -15))


@pytest.mark.parametrize("seed", range(30))
def test_whenever_jobs_start_and_end_all_groups_train_whose_jobs_run_and_the_run_can_be_stopped(seed: int) -> None:
    dice = random.Random(seed)
    driver = started(asynchronous())
    for _ in range(60):
        host = driver.run.host(dice.choice("bcd"))
        event = HostJoined(host.name) if host.lost else HostLost(host.name, "gone", dice.random() < 0.5)
        driver(event, after=dice.random())
        if dice.random() < 0.3:
            settle(driver)
    settle(driver)
    for number, hosts in enumerate(("a", "bc", "d")):
        there = not any(driver.run.host(host).lost for host in hosts)
        states = {one.state.value for one in driver.run.replicas if one.gang == f"group-{number}"}
        assert (states == {"running"}) == there, (hosts, driver.states())
    driver(StopRequested("enough"))
    settle(driver)
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.STOPPED, "enough")]
