"""Tests of the decisions about lost replicas that return to a gang that continued without them."""

from __future__ import annotations

from typing import Any

from tests.agent.keeper.decisions.test_state_machine import BAD, Driver, of
from tests.agent.keeper.keeper_cluster import replica
from torchyard_agent.keeper.decisions import instructions
from torchyard_agent.keeper.decisions.events import (
    BoundaryReached,
    GangCleared,
    GangTrains,
    HostLost,
    HostReturned,
    RankFailed,
    ReplicaEnded,
    ReplicaReady,
    ReplicaSpawned,
    TimerFired,
)
from torchyard_agent.keeper.decisions.instructions import (
    AnnounceReturn,
    ClearGang,
    FinishRun,
    RecordGangRestart,
    RecordMembership,
    SetTimer,
    StartReplica,
)
from torchyard_agent.protocol.run_states import RunState

THREE = (replica("chief-0", "a"), replica("worker-0", "b"), replica("worker-1", "b"))
PAUSE = TimerFired(instructions.RETURN, "trainers", 0)


def lost(**policy: Any) -> Driver:
    """Returns a run that has lost worker-0. chief-0 is on host a, and worker-0 was on host b."""
    rules = {"max_restarts": 2, "failure_grace_s": 2.0, "min_replicas": {"worker": 0}, **policy}
    driver = Driver(on_worker_loss="continue", **rules).go()
    driver(GangTrains("trainers", 0), RankFailed("worker-0", 1, BAD))
    return driver


def started(driver: Driver) -> list[Any]:
    """Processes all events until worker-0 has started."""
    driver(ReplicaEnded("worker-0", 1), GangCleared("b", "worker-0", 0))
    result = driver(PAUSE, after=2.0)
    driver(ReplicaSpawned("worker-0"))
    return result


def test_a_lost_replica_is_started_after_its_host_is_cleared_and_a_pause() -> None:
    driver = lost()
    cleared = ClearGang("b", "worker-0", 0, ("worker-0",), 0.5)
    assert of(ClearGang, driver(ReplicaEnded("worker-0", 1))) == [cleared]
    assert of(SetTimer, driver(GangCleared("b", "worker-0", 0))) == [SetTimer("return", 2.0, "trainers", 0)]
    assert of(StartReplica, driver(PAUSE, after=1.0)) == []
    assert of(StartReplica, driver(PAUSE, after=1.0)) == [StartReplica("trainers", 0, "worker-0", 1)]
    assert driver.states()["worker-0"] == "starting"
    assert driver.run.replica("worker-0").restarts == 1
    assert driver.run.state is RunState.RUNNING


def test_it_is_a_member_again_at_a_step_boundary_of_the_others() -> None:
    driver = lost()
    started(driver)
    assert of(AnnounceReturn, driver(ReplicaReady("worker-0", 1))) == [AnnounceReturn("trainers", 0, 1)]
    both = ("chief-0", "worker-0")
    assert of(RecordMembership, driver(BoundaryReached("trainers", 0, 1))) == [
        RecordMembership("trainers", 0, 2, both, (), "worker-0 is back", joined=1)
    ]
    assert of(RecordMembership, driver(BoundaryReached("trainers", 0, 1))) == []
    # The chief's pool has no min_replicas, so losing the chief ends the run.
    again = driver(RankFailed("chief-0", 1, BAD))
    assert of(RecordMembership, again) == []


def test_a_failure_before_it_is_a_member_does_not_concern_the_others_and_attempts_are_bounded() -> None:
    driver = lost()
    assert of(StartReplica, started(driver)) == [StartReplica("trainers", 0, "worker-0", 1)]
    result = driver(RankFailed("worker-0", 1, BAD))
    assert of(RecordMembership, result) == of(RecordGangRestart, result) == []
    assert of(StartReplica, started(driver)) == [StartReplica("trainers", 0, "worker-0", 2)]
    driver(RankFailed("worker-0", 1, BAD))
    assert of(ClearGang, driver(ReplicaEnded("worker-0", 1))) == []
    assert driver.run.state is RunState.RUNNING
    assert "ValueError" in driver.run.replica("worker-0").reason


def test_replicas_that_are_ready_together_join_together() -> None:
    driver = Driver(*THREE, on_worker_loss="continue", max_restarts=2, min_replicas={"worker": 0}).go()
    driver(GangTrains("trainers", 0))
    for name, host in (("worker-0", "b"), ("worker-1", "b")):
        driver(RankFailed(name, 1, BAD), ReplicaEnded(name, 1), GangCleared(host, name, 0))
    driver(PAUSE, ReplicaSpawned("worker-0"), ReplicaSpawned("worker-1"), after=2.0)
    driver(ReplicaReady("worker-0", 1), ReplicaReady("worker-1", 1))
    [answer] = of(RecordMembership, driver(BoundaryReached("trainers", 0, 1)))
    assert (answer.cause, answer.lost, answer.joined) == ("worker-0 and worker-1 are back", (), 2)
    assert of(RecordMembership, driver(BoundaryReached("trainers", 0, 2))) == []


def test_members_that_wait_get_an_answer_if_the_replica_was_lost_again() -> None:
    driver = lost()
    started(driver)
    driver(ReplicaReady("worker-0", 1), RankFailed("worker-0", 1, BAD))
    [answer] = of(RecordMembership, driver(BoundaryReached("trainers", 0, 1)))
    assert (answer.members, answer.lost, answer.joined) == (("chief-0",), ("worker-0",), 1)


def test_a_replica_that_is_lost_after_its_return_is_started_once_more() -> None:
    driver = lost()
    started(driver)
    driver(ReplicaReady("worker-0", 1), BoundaryReached("trainers", 0, 1))
    [left] = of(RecordMembership, driver(RankFailed("worker-0", 1, BAD)))
    assert (left.number, left.lost) == (3, ("worker-0",))
    assert of(StartReplica, started(driver)) == [StartReplica("trainers", 0, "worker-0", 2)]


def test_the_replicas_of_a_lost_host_are_started_when_it_is_back() -> None:
    driver = Driver(on_worker_loss="continue", max_restarts=1, min_replicas={"worker": 0}).go()
    driver(GangTrains("trainers", 0))
    result = driver(HostLost("b", "silence"))
    assert len(of(RecordMembership, result)) == 1
    assert of(ClearGang, result) == []
    assert of(ClearGang, driver(HostReturned("b"))) == [ClearGang("b", "worker-0", 0, ("worker-0",), 0.5)]


def test_the_failure_of_a_returned_replica_after_the_end_of_the_chief_does_not_restart_the_gang() -> None:
    driver = lost()
    started(driver)
    driver(ReplicaReady("worker-0", 1), BoundaryReached("trainers", 0, 1), ReplicaEnded("chief-0", 0))
    result = driver(RankFailed("worker-0", 1, BAD))
    assert of(RecordGangRestart, result) == []
    driver(ReplicaEnded("worker-0", 1))
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.SUCCEEDED, "")]


def test_a_host_that_is_lost_while_it_ends_leftover_processes_is_asked_again() -> None:
    driver = lost()
    assert of(ClearGang, driver(ReplicaEnded("worker-0", 1)))
    driver(HostLost("b", "silence"))
    assert of(ClearGang, driver(HostReturned("b"))) == [ClearGang("b", "worker-0", 0, ("worker-0",), 0.5)]


def test_a_host_that_is_lost_in_the_pause_delays_the_start() -> None:
    driver = lost()
    driver(ReplicaEnded("worker-0", 1), GangCleared("b", "worker-0", 0), HostLost("b", "silence"))
    assert of(StartReplica, driver(PAUSE, after=2.0)) == []
    assert of(ClearGang, driver(HostReturned("b"))) == [ClearGang("b", "worker-0", 0, ("worker-0",), 0.5)]


def test_without_restarts_none_is_started() -> None:
    driver = lost(max_restarts=0)
    assert of(ClearGang, driver(ReplicaEnded("worker-0", 1))) == []
