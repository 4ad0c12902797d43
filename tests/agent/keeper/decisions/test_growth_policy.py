"""Tests of the decisions about replicas that are added to a run while it trains."""

from __future__ import annotations

from typing import Any

from tests.agent.keeper.decisions.test_state_machine import BAD, Driver, of
from tests.agent.keeper.keeper_cluster import replica
from torchyard_agent.keeper.decisions import growth_policy, instructions
from torchyard_agent.keeper.decisions.events import (
    BoundaryReached,
    GangCleared,
    GangTrains,
    HostJoined,
    HostLost,
    HostReturned,
    RankFailed,
    ReplicaEnded,
    ReplicaReady,
    ReplicasAdded,
    ReplicaSpawned,
    ReplicasWithdrawn,
    StopRequested,
    TimerFired,
)
from torchyard_agent.keeper.decisions.instructions import (
    ClearGang,
    DismissHost,
    EndRanks,
    FinishRun,
    RecordGangRestart,
    RecordMembership,
    SetTimer,
    StartGang,
    StartReplica,
    Sweep,
)
from torchyard_agent.protocol.run_states import RunState

NEW = "worker-1"
PAUSE = TimerFired(instructions.RETURN, "trainers", 0)
BOTH = ("chief-0", "worker-0")


def training(**policy: Any) -> Driver:
    """Returns a run that has completed a step, with chief-0 on host a and worker-0 on host b."""
    rules: dict[str, Any] = {"max_restarts": 1, "min_replicas": {"worker": 0}, "on_worker_loss": "continue", **policy}
    driver = Driver(**rules).go()
    driver(GangTrains("trainers", 0))
    return driver


def added(host: str) -> ReplicasAdded:
    plan: Any = replica(NEW, host)
    return ReplicasAdded(host, (plan,), 30.0)


def grown(host: str = "b") -> Driver:
    """Returns a run to which worker-1 has been added, and whose ranks have started."""
    driver = training()
    driver(added(host))
    if host not in ("a", "b"):
        driver(HostJoined(host))
    driver(ReplicaSpawned(NEW))
    return driver


def join(driver: Driver) -> list[Any]:
    driver(ReplicaReady(NEW, driver.run.replica(NEW).returns))
    gang = driver.run.gang("trainers")
    return of(RecordMembership, driver(BoundaryReached("trainers", gang.generation, gang.announced)))


def test_a_replica_added_on_a_host_of_the_run_starts_at_once_and_joins_at_a_step_boundary() -> None:
    driver = training()
    result = driver(added("b"))
    assert of(StartReplica, result) == [StartReplica("trainers", 0, NEW, 1)]
    assert of(RecordMembership, result) == []
    driver(ReplicaSpawned(NEW))
    joined = RecordMembership("trainers", 0, 1, (*BOTH, NEW), (), "worker-1 has joined", joined=1)
    assert join(driver) == [joined]
    assert driver.run.replica(NEW).restarts == 0
    assert driver.run.state is RunState.RUNNING


def test_a_replica_on_a_new_host_starts_when_the_host_has_joined() -> None:
    driver = training()
    result = driver(added("c"))
    assert of(StartReplica, result) == []
    assert of(SetTimer, result) == [SetTimer(instructions.JOIN_ADDED, 30.0)]
    # This timer limits how long a launch waits for its hosts. It does not apply to a host that is added later.
    assert driver(TimerFired(instructions.JOIN)) == []
    assert of(StartReplica, driver(HostJoined("c"))) == [StartReplica("trainers", 0, NEW, 1)]
    assert of(DismissHost, driver(TimerFired(instructions.JOIN_ADDED), after=30.0)) == []


def test_a_host_that_does_not_join_in_time_leaves_the_run_as_it_was() -> None:
    driver = training()
    driver(added("c"))
    result = driver(TimerFired(instructions.JOIN_ADDED), after=30.0)
    assert driver.states()[NEW] == "stopped"
    assert "c did not reach the primary a at 10.0.0.1:4000 in time" in driver.run.replica(NEW).reason
    assert [one.host for one in of(DismissHost, result)] == ["c"]
    assert of(RecordMembership, result) == of(RecordGangRestart, result) == []
    driver(RankFailed("worker-0", 1, BAD))
    [left] = of(RecordMembership, driver.ordered)
    assert (left.members, left.lost) == (("chief-0",), ("worker-0",))
    driver(ReplicaEnded("worker-0", 1), ReplicaEnded("chief-0", 0))
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.SUCCEEDED, "")]


def test_an_added_replica_that_fails_is_withdrawn_when_its_attempts_are_used_up() -> None:
    driver = grown("c")
    driver(RankFailed(NEW, 1, BAD), ReplicaEnded(NEW, 1), GangCleared("c", NEW, 0))
    assert of(StartReplica, driver(PAUSE, after=2.0)) == [StartReplica("trainers", 0, NEW, 2)]
    driver(ReplicaSpawned(NEW), RankFailed(NEW, 1, BAD))
    result = driver(ReplicaEnded(NEW, 1))
    assert of(ClearGang, result) == []
    assert [(one.host, "ValueError" in one.why) for one in of(DismissHost, result)] == [("c", True)]
    assert of(RecordMembership, driver.ordered) == of(RecordGangRestart, driver.ordered) == []


def test_a_member_that_was_added_has_all_restarts_of_a_replica() -> None:
    driver = grown()
    join(driver)
    driver(RankFailed(NEW, 1, BAD), ReplicaEnded(NEW, 1), GangCleared("b", NEW, 0))
    assert of(StartReplica, driver(PAUSE, after=2.0)) == [StartReplica("trainers", 0, NEW, 2)]
    driver(ReplicaSpawned(NEW))
    assert [one.cause for one in join(driver)] == ["worker-1 is back"]


def test_an_interrupted_addition_ends_the_replica_and_dismisses_its_host() -> None:
    driver = grown("c")
    result = driver(ReplicasWithdrawn((NEW,), "kim has interrupted it"))
    assert [one.replicas for one in of(EndRanks, result)] == [(NEW,)]
    result = driver(RankFailed(NEW, -15, BAD), ReplicaEnded(NEW, -15))
    assert of(DismissHost, result) == [DismissHost("c", "not added to the run: kim has interrupted it")]
    assert of(StartReplica, driver(GangCleared("c", NEW, 0), PAUSE)) == []
    again: Any = replica("worker-2", "c")
    assert of(StartReplica, driver(ReplicasAdded("c", (again,), 30.0))) == []
    assert of(StartReplica, driver(HostJoined("c"))) == [StartReplica("trainers", 0, "worker-2", 1)]
    assert of(DismissHost, driver(ReplicaSpawned("worker-2"))) == []


def test_an_interruption_after_it_is_a_member_has_no_effect() -> None:
    driver = grown()
    join(driver)
    assert driver(ReplicasWithdrawn((NEW,), "kim has interrupted it")) == []


def test_a_restart_begins_without_a_replica_that_is_not_a_member_which_joins_the_next_generation() -> None:
    driver = grown("c")
    driver(RankFailed("chief-0", 1, BAD))  # The chief's pool has no min_replicas, so the failure restarts all replicas.
    driver(TimerFired(instructions.GANG_GRACE, "trainers", 0), after=2.0)
    driver(ReplicaEnded("chief-0", 1), ReplicaEnded("worker-0", 0), ReplicaEnded(NEW, 0))
    result = driver(*[GangCleared(host, "trainers", 0) for host in "abc"])
    assert of(StartGang, result) == [StartGang("trainers", 1, BOTH)]
    assert driver.states()[NEW] == "pending"
    result = driver(*map(ReplicaSpawned, BOTH))
    assert driver.run.state is RunState.RUNNING
    assert of(StartReplica, result) == []
    assert of(StartReplica, driver(GangTrains("trainers", 1))) == [StartReplica("trainers", 1, NEW, 2)]
    driver(ReplicaSpawned(NEW))
    assert [one.members for one in join(driver)] == [(*BOTH, NEW)]


def test_a_restart_does_not_wait_for_a_new_host_that_has_not_joined() -> None:
    driver = training()
    driver(added("c"), RankFailed("chief-0", 1, BAD))
    driver(TimerFired(instructions.GANG_GRACE, "trainers", 0), after=2.0)
    result = driver(ReplicaEnded("chief-0", 1), ReplicaEnded("worker-0", 0))
    assert [one.host for one in of(ClearGang, result)] == ["a", "b"]
    result = driver(GangCleared("a", "trainers", 0), GangCleared("b", "trainers", 0))
    assert of(StartGang, result) == [StartGang("trainers", 1, BOTH)]
    driver(*map(ReplicaSpawned, BOTH), GangTrains("trainers", 1))
    assert of(StartReplica, driver(HostJoined("c"))) == [StartReplica("trainers", 1, NEW, 1)]


def test_the_loss_of_an_added_host_does_not_concern_the_others() -> None:
    driver = grown("c")
    result = driver(HostLost("c", "silence"))
    assert of(RecordMembership, result) == of(RecordGangRestart, result) == []
    assert of(ClearGang, driver(HostReturned("c"))) == [ClearGang("c", NEW, 0, (NEW,), 0.5)]


def test_a_member_that_was_added_takes_part_in_restarts() -> None:
    driver = grown()
    join(driver)
    driver(RankFailed("chief-0", 1, BAD))
    driver(TimerFired(instructions.GANG_GRACE, "trainers", 0), after=2.0)
    driver(ReplicaEnded("chief-0", 1), ReplicaEnded("worker-0", 0), ReplicaEnded(NEW, 0))
    result = driver(GangCleared("a", "trainers", 0), GangCleared("b", "trainers", 0))
    assert of(StartGang, result) == [StartGang("trainers", 1, (*BOTH, NEW))]


def test_a_run_ends_without_an_added_host_that_has_not_joined() -> None:
    driver = training()
    driver(added("c"), StopRequested("enough"))
    driver(ReplicaEnded("chief-0", 0), ReplicaEnded("worker-0", 0))
    assert [one.host for one in of(Sweep, driver.ordered)] == ["a", "b"]
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.STOPPED, "enough")]


def test_runs_that_cannot_grow_are_refused_with_the_reason() -> None:
    def why(driver: Driver, host: str = "b") -> str:
        return growth_policy.refusal(driver.run, host)

    assert why(training()) == ""
    assert why(training(), "c") == ""
    assert why(Driver(on_worker_loss="continue").go()).startswith("its workers have not completed a step together yet")
    assert "on_worker_loss: continue" in why(Driver().go())
    assert why(Driver(on_worker_loss="continue")) == "it is starting"
    lost = training()
    lost(HostLost("b", "silence"))
    assert why(lost) == "b is lost"
    ending = training()
    ending(ReplicaEnded("chief-0", 0))
    assert why(ending) == "it is at its end: a worker has ended"
    stopped = training()
    stopped(StopRequested("enough"))
    assert why(stopped) == "it is stopping"
    assert [*stopped(added("b"))] == []
