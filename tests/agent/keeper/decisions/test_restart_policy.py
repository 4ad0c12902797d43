"""Tests of gang restarts: first of the policy alone, then with real keepers and processes."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import pytest

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.decisions.test_state_machine import BAD, PEER, Driver, of
from tests.agent.keeper.keeper_cluster import KeeperCluster, replica, shell
from tests.waiting import eventually
from torchyard_agent.keeper.decisions import instructions, state_machine
from torchyard_agent.keeper.decisions.events import (
    Cause,
    Event,
    GangCleared,
    GangTrains,
    HostJoined,
    HostLost,
    HostReturned,
    HostSwept,
    LinkBroken,
    LinkRestored,
    RankFailed,
    ReplicaEnded,
    ReplicaSpawned,
    StopRequested,
    TimerFired,
)
from torchyard_agent.keeper.decisions.instructions import (
    ClearGang,
    EndRanks,
    FinishRun,
    RecordGangRestart,
    RecordMembership,
    RecordRunState,
    SetTimer,
    StartGang,
)
from torchyard_agent.protocol.run_states import ReplicaState, RunState

FOREVER = shell("exec sleep 1000")
SENTENCE = "worker-0 on b: exited with 1: ValueError: bad"


def fails(driver: Driver) -> list[Any]:
    """Processes the events of a failure of worker-0, which causes chief-0 to fail, too."""
    driver(RankFailed("worker-0", 1, BAD), ReplicaEnded("worker-0", 1))
    return driver(RankFailed("chief-0", 1, PEER), ReplicaEnded("chief-0", 1), after=0.1)


def up_again(driver: Driver, *names: str) -> None:
    driver(*[ReplicaSpawned(name) for name in names or ("chief-0", "worker-0")])


def test_a_failed_gang_restarts_once_no_process_is_left() -> None:
    driver = Driver(max_restarts=2).go()
    result = fails(driver)
    assert of(RecordGangRestart, result) == [RecordGangRestart("trainers", 1, SENTENCE)]
    assert of(RecordRunState, result) == [RecordRunState(RunState.RESTARTING, SENTENCE)]
    assert of(ClearGang, result) == [
        ClearGang("a", "trainers", 0, ("chief-0",), 0.5),
        ClearGang("b", "trainers", 0, ("worker-0",), 0.5),
    ]
    assert of(StartGang, driver(GangCleared("a", "trainers", 0))) == []
    result = driver(GangCleared("b", "trainers", 0))
    assert of(StartGang, result) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]
    assert driver.states() == {"chief-0": "starting", "worker-0": "starting"}
    up_again(driver)
    assert driver.run.state is RunState.RUNNING
    assert [one.restarts for one in driver.run.replicas] == [1, 1]
    driver(ReplicaEnded("chief-0", 0), ReplicaEnded("worker-0", 0))
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.SUCCEEDED, "")]


def test_the_other_replicas_are_ended_after_their_grace() -> None:
    driver = Driver(max_restarts=1).go()
    result = driver(RankFailed("worker-0", 1, BAD), ReplicaEnded("worker-0", 1))
    assert of(SetTimer, result) == [SetTimer(instructions.GANG_GRACE, 2.0, "trainers", 0)]
    result = driver(TimerFired(instructions.GANG_GRACE, "trainers", 0), after=2)
    assert of(EndRanks, result) == [EndRanks("a", ("chief-0",), state_machine.KILL_AFTER_S)]
    assert of(RecordGangRestart, driver(ReplicaEnded("chief-0", -9))) == [RecordGangRestart("trainers", 1, SENTENCE)]


def test_the_grace_of_an_earlier_generation_has_no_effect() -> None:
    driver = Driver(max_restarts=2).go()
    fails(driver)
    driver(GangCleared("a", "trainers", 0), GangCleared("b", "trainers", 0))
    up_again(driver)
    assert driver(TimerFired(instructions.GANG_GRACE, "trainers", 0)) == []


def test_after_the_last_restart_the_run_fails_with_the_last_cause() -> None:
    driver = Driver(max_restarts=1).go()
    fails(driver)
    driver(GangCleared("a", "trainers", 0), GangCleared("b", "trainers", 0))
    up_again(driver)
    fails(driver)
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.FAILED, SENTENCE)]


def test_a_missing_program_is_not_restarted() -> None:
    driver = Driver(max_restarts=2).go()
    driver(
        RankFailed("worker-0", 127, Cause("python: /x is not there on b", curable=False)), ReplicaEnded("worker-0", 127)
    )
    assert driver.run.outcome is RunState.FAILED


def test_a_trainer_that_succeeded_restarts_with_its_gang() -> None:
    driver = Driver(max_restarts=1).go()
    driver(ReplicaEnded("chief-0", 0), RankFailed("worker-0", 1, BAD), ReplicaEnded("worker-0", 1))
    result = driver(GangCleared("a", "trainers", 0), GangCleared("b", "trainers", 0))
    assert of(StartGang, result) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]


def test_a_server_restarts_alone() -> None:
    driver = Driver(replica("worker-0", "a"), replica("ps-0", "b"), max_restarts=1).go()
    result = driver(RankFailed("ps-0", 1, BAD), ReplicaEnded("ps-0", 1))
    assert of(RecordRunState, result) == []
    assert of(StartGang, driver(GangCleared("b", "ps-0", 0))) == [StartGang("ps-0", 1, ("ps-0",))]
    assert driver.states() == {"worker-0": "running", "ps-0": "starting"}


def test_an_evaluator_that_keeps_failing_is_left_alone_in_the_end() -> None:
    driver = Driver(replica("worker-0", "a"), replica("evaluator-0", "b"), max_restarts=1).go()
    driver(RankFailed("evaluator-0", 1, BAD), ReplicaEnded("evaluator-0", 1))
    driver(GangCleared("b", "evaluator-0", 0), ReplicaSpawned("evaluator-0"))
    driver(RankFailed("evaluator-0", 1, BAD), ReplicaEnded("evaluator-0", 1))
    assert driver.run.outcome is None
    assert driver.states() == {"worker-0": "running", "evaluator-0": "failed"}


def test_groups_of_an_asynchronous_strategy_restart_separately() -> None:
    shares = [replica(f"worker-{number}", "ab"[number], gang=f"group-{number}") for number in range(2)]
    driver = Driver(*shares, max_restarts=1).go()
    result = driver(RankFailed("worker-1", 1, BAD), ReplicaEnded("worker-1", 1))
    assert of(RecordRunState, result) == []
    assert of(StartGang, driver(GangCleared("b", "group-1", 0))) == [StartGang("group-1", 1, ("worker-1",))]
    assert driver.states()["worker-0"] == "running"


def lose_b(driver: Driver) -> list[Any]:
    result = driver(HostLost("b", "its keeper was not heard for 10 s"))
    result += driver(RankFailed("chief-0", 1, PEER), ReplicaEnded("chief-0", 1))
    return result + driver(GangCleared("a", "trainers", 0))


def test_a_lost_host_is_waited_for_and_used_again() -> None:
    driver = Driver(max_restarts=1).go()
    result = lose_b(driver)
    assert SetTimer(instructions.HOST_WAIT, 600.0) in result
    assert of(StartGang, result) == []
    assert driver.run.reason == (
        "b was lost: its keeper was not heard for 10 s; waiting up to 600 s for b to come back"
    )
    result = driver(HostReturned("b"), after=100)
    assert of(StartGang, result) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]


def test_a_lost_host_with_needed_replicas_ends_the_run() -> None:
    driver = Driver(max_restarts=1).go()
    lose_b(driver)
    driver(TimerFired(instructions.HOST_WAIT), after=600)
    reason = of(FinishRun, driver(HostSwept("a")))[0].reason
    assert reason.startswith("b was lost: its keeper was not heard for 10 s; b did not come back")
    assert "min_replicas" in reason


def three_workers(**changes: Any) -> Driver:
    shares = [replica("chief-0", "a"), replica("worker-0", "b"), replica("worker-1", "c")]
    return Driver(*shares, hosts="abc", max_restarts=2, **changes).go()


def lose_c(driver: Driver) -> list[Any]:
    driver(HostLost("c", "silence"))
    for name in ("chief-0", "worker-0"):
        driver(RankFailed(name, 1, PEER), ReplicaEnded(name, 1))
    driver(GangCleared("a", "trainers", 0), GangCleared("b", "trainers", 0))
    return driver(TimerFired(instructions.HOST_WAIT), after=600)


def test_the_gang_continues_with_min_replicas() -> None:
    driver = three_workers(min_replicas={"worker": 1})
    assert of(StartGang, lose_c(driver)) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]
    up_again(driver)
    assert driver.run.state is RunState.RUNNING
    assert driver.states()["worker-1"] == "lost"
    driver(ReplicaEnded("chief-0", 0), ReplicaEnded("worker-0", 0), HostSwept("a"))
    assert of(FinishRun, driver(HostSwept("b"))) == [FinishRun(RunState.SUCCEEDED, "")]


def test_a_host_that_comes_back_late_is_used_at_the_next_restart() -> None:
    driver = three_workers(min_replicas={"worker": 1})
    lose_c(driver)
    up_again(driver)
    assert driver(HostReturned("c")) == []
    fails(driver)
    result = driver(GangCleared("a", "trainers", 1), GangCleared("b", "trainers", 1))
    assert of(StartGang, result) == [StartGang("trainers", 2, ("chief-0", "worker-0", "worker-1"))]


def test_too_few_replicas_end_the_run_with_the_number() -> None:
    driver = three_workers(min_replicas={"worker": 2})
    lose_c(driver)
    assert driver.run.outcome is RunState.FAILED
    assert "the pool worker needs 2 replicas (`min_replicas`): 1 left" in driver.run.failures[0].sentence


def three_groups(**changes: Any) -> Driver:
    shares = [replica(f"worker-{number}", "abc"[number], gang=f"group-{number}") for number in range(3)]
    return Driver(*shares, hosts="abc", max_restarts=1, **changes).go()


def test_other_worker_groups_continue_without_a_lost_one() -> None:
    driver = three_groups(min_replicas={"worker": 2})
    driver(HostLost("c", "silence"))
    assert of(StartGang, driver(TimerFired(instructions.HOST_WAIT), after=600)) == []
    assert driver.run.state is RunState.RUNNING
    assert driver.states() == {"worker-0": "running", "worker-1": "running", "worker-2": "lost"}
    driver(ReplicaEnded("worker-0", 0), ReplicaEnded("worker-1", 0), HostSwept("a"))
    assert of(FinishRun, driver(HostSwept("b"))) == [FinishRun(RunState.SUCCEEDED, "")]


def test_a_dropped_group_restarts_when_its_host_returns() -> None:
    driver = three_groups(min_replicas={"worker": 2})
    driver(HostLost("c", "silence"))
    driver(TimerFired(instructions.HOST_WAIT), after=600)
    result = driver(HostReturned("c"))
    assert of(RecordGangRestart, result) == [RecordGangRestart("group-2", 1, "c came back")]
    assert of(StartGang, result) == [StartGang("group-2", 1, ("worker-2",))]
    up_again(driver, "worker-2")
    assert driver.states()["worker-2"] == "running"


@pytest.mark.parametrize(("host", "enough"), [("c", 3), ("a", 2)], ids=["a pool has too few", "it is the chief's"])
def test_a_lost_host_of_a_needed_group_ends_the_run(host: str, enough: int) -> None:
    driver = three_groups(min_replicas={"worker": enough})
    driver(HostLost(host, "silence"))
    driver(TimerFired(instructions.HOST_WAIT), after=600)
    assert driver.run.outcome is RunState.FAILED
    assert f"{host} did not come back" in driver.run.failures[0].sentence


def test_of_a_group_of_several_the_whole_pool_is_counted() -> None:
    groups = {"worker-0": "a", "worker-1": "b", "worker-2": "c", "worker-3": "a"}
    shares = [replica(name, host, gang=f"group-{at // 2}") for at, (name, host) in enumerate(groups.items())]
    driver = Driver(*shares, hosts="abc", max_restarts=1, min_replicas={"worker": 3}).go()
    driver(HostLost("c", "silence"), RankFailed("worker-3", 1, PEER), ReplicaEnded("worker-3", 1))
    driver(GangCleared("a", "group-1", 0))
    result = driver(TimerFired(instructions.HOST_WAIT), after=600)
    assert of(StartGang, result) == [StartGang("group-1", 1, ("worker-3",))]


def test_no_host_is_dropped_before_its_lease_has_ended_its_ranks() -> None:
    driver = three_workers(min_replicas={"worker": 1}, host_wait_s=0.0)
    driver(HostLost("c", "silence"))
    for name in ("chief-0", "worker-0"):
        driver(RankFailed(name, 1, PEER), ReplicaEnded(name, 1))
    assert of(StartGang, driver(GangCleared("a", "trainers", 0), GangCleared("b", "trainers", 0))) == []
    assert of(StartGang, driver(TimerFired(instructions.HOST_WAIT), after=12.4)) == []
    assert of(StartGang, driver(TimerFired(instructions.HOST_WAIT), after=0.2)) != []


def test_stop_ends_a_run_that_waits_for_a_host() -> None:
    driver = Driver(max_restarts=1).go()
    lose_b(driver)
    driver(StopRequested("enough"))
    assert of(FinishRun, driver(HostSwept("a"))) == [FinishRun(RunState.STOPPED, "enough")]


def _next_event(driver: Driver, dice: random.Random) -> Event:
    """Returns a random event that is possible in the current state; stop requests are rare."""
    run = driver.run
    possible: list[Event] = [LinkBroken("b"), LinkRestored("b")]
    if dice.random() < 0.05:
        possible.append(StopRequested("enough", dice.random() < 0.5))
    if run.started and dice.random() < 0.2 and not run.host("b").lost:
        possible.append(HostLost("b", "silence"))
    if run.host("b").lost:
        possible.append(HostReturned("b"))
    possible += [HostJoined(host.name) for host in run.hosts if not host.joined] * 5
    waits = of(SetTimer, driver.ordered) + of(SetTimer, driver.first)
    possible += [TimerFired(one.timer, one.gang, one.generation) for one in waits if one.timer != instructions.JOIN][
        -4:
    ]
    for gang in run.gangs:
        possible += [GangCleared(host, gang.name, gang.generation) for host in gang.clearing] * 3
    for one in run.replicas:
        if run.host(one.host).lost or not run.started or one.state.is_terminal:
            continue
        if one.state is ReplicaState.STARTING:
            possible += [ReplicaSpawned(one.name)] * 3
        possible.append(ReplicaEnded(one.name, 0) if one.failure is None else ReplicaEnded(one.name, 1))
        if one.state in (ReplicaState.STARTING, ReplicaState.RUNNING) and one.failure is None:
            possible.append(RankFailed(one.name, 1, dice.choice((BAD, PEER))))
    if run.sweeping:
        possible += [HostSwept(host.name) for host in run.hosts if not host.lost and not host.swept]
    return dice.choice(possible)


@pytest.mark.parametrize("seed", range(300))
def test_random_events_never_start_two_generations_and_the_run_ends(seed: int) -> None:
    dice = random.Random(seed)
    names = ("chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0")
    shares = [replica(name, "a" if name == "chief-0" else dice.choice("ab")) for name in names]
    rules = {"min_replicas": {"worker": 0} if dice.random() < 0.5 else {}, "max_restarts": dice.choice((0, 1, 3))}
    driver = Driver(*shares, **rules)
    started = {gang.name: 0 for gang in driver.run.gangs}
    for _ in range(5000):
        if driver.run.state.is_terminal:
            break
        before = driver.run
        result = driver(_next_event(driver, dice), after=dice.choice((0.01, 1.0, 300.0)))
        for start in of(StartGang, result):
            started[start.gang] += 1
            alive = [one.name for one in before.replicas if one.gang == start.gang and not one.state.is_terminal]
            # At most one replica may still be recorded as alive: the replica whose end caused this restart.
            assert len(alive) <= 1
            assert not [one for one in start.replicas if driver.run.host(driver.run.replica(one).host).lost]
    assert driver.run.state.is_terminal
    # A server that has ended is restarted when its trainers are. This does not count towards its own restart limit.
    most = {name: rules["max_restarts"] * (2 if name == "ps-0" else 1) for name in started}
    assert all(count <= most[name] for name, count in started.items())
    assert all(one.state.is_terminal for one in driver.run.replicas)
    assert len(of(FinishRun, driver.ordered)) == 1


# Tests with keepers


LOSING = {"heartbeat_s": 0.4, "lease_s": 2.0}
"""Short timeouts, which are nevertheless long enough for a busy machine."""


def counted(then: str) -> list[str]:
    """Returns a shell command in which `$n` is the number of starts of its gang so far."""
    return shell(f'n=$((TORCHYARD_GENERATION + 1)); echo "start $n"; {then}')


def test_a_failed_gang_restarts_on_all_hosts(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b")
        await cluster.begin(
            replica("chief-0", "gpu-a", counted("test $n = 3 || sleep 1000")),
            replica("worker-0", "gpu-b", counted("test $n = 3 || { sleep 0.2; echo no luck; exit 3; }")),
            max_restarts=2,
            failure_grace_s=0.2,
        )
        ended = await cluster.end()
        assert (ended["state"], [one["restarts"] for one in ended["replicas"]]) == ("succeeded", [2, 2])
        assert b.output("worker-0") == "start 1\nno luck\nstart 2\nno luck\nstart 3\n"
        restarts = [event for event in b.journal() if event["event"] == "gang_restart"]
        assert [event["generation"] for event in restarts] == [1, 2]
        assert restarts[0]["cause"] == "worker-0 on gpu-b: exited with 3; its last line was: no luck"
        assert [state for state in a.states() if state == "restarting"] == ["restarting"] * 2

    run_scenario(scenario)


def test_orphans_of_a_failed_generation_end_before_the_next(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        orphan = "(trap '' TERM; exec setsid sh -c 'echo $$ >orphan; exec sleep 1000') & "
        wait_for_it = "while ! test -s orphan; do sleep 0.05; done; exit 1; "
        again = "kill -0 $(cat orphan) 2>/dev/null && echo alive; echo looked; exec sleep 1000"
        first = f"if test $n = 1; then {orphan} {wait_for_it} fi; {again}"
        await cluster.begin(
            replica("worker-0", "gpu-a", counted(first)),
            replica("evaluator-0", "gpu-a", shell("(exec sleep 1000) & echo $! >helper; wait")),
            max_restarts=1,
        )
        helper = a.run_dir / "work" / "helper"
        await eventually(lambda: "looked" in a.output("worker-0") and helper.exists() and helper.read_text())
        assert "alive" not in a.output("worker-0")
        os.kill(int(helper.read_text()), 0)  # Raises an error if the evaluator's child has exited.
        await eventually(lambda: a.states()[-1] == "running")
        await a.call("stop", reason="enough")
        assert (await cluster.end())["state"] == "stopped"

    run_scenario(scenario)


def test_a_member_that_was_cut_off_ends_its_ranks_and_rejoins(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b", timeouts=LOSING)
        await cluster.begin(
            replica("chief-0", "gpu-a", counted("exec sleep 1000")),
            replica("worker-0", "gpu-b", counted("exec sleep 1000")),
            max_restarts=1,
            failure_grace_s=0.2,
        )
        await eventually(lambda: "start 1" in b.output("worker-0"))
        b.process.send_signal(signal.SIGSTOP)
        await eventually(lambda: "waiting up to 600 s for gpu-b" in a.reason())
        assert "restarting" in a.states()
        b.process.send_signal(signal.SIGCONT)
        await eventually(lambda: a.states()[-1] == "running" and "start 2" in b.output("worker-0"))
        await eventually(lambda: len(cluster.left()) == 2)
        await b.call("stop", reason="enough")
        assert (await cluster.end())["state"] == "stopped"

    run_scenario(scenario)


def test_a_gang_continues_without_a_host_that_is_not_needed(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b", timeouts=LOSING)
        argv = shell("echo {rank} of {world_size}; test {world_size} = 1 || exec sleep 1000")
        await cluster.begin(
            replica("worker-0", "gpu-a", argv),
            replica("worker-1", "gpu-b", argv),
            max_restarts=1,
            failure_grace_s=0.2,
            host_wait_s=0.0,
            min_replicas={"worker": 1},
        )
        await eventually(lambda: (a.output("worker-0"), b.output("worker-1")) == ("0 of 2\n", "1 of 2\n"))
        b.process.kill()
        assert await a.exit_code() == 0
        assert a.ended()["state"] == "succeeded", a.ended()
        assert a.output("worker-0") == "0 of 2\n0 of 1\n"
        assert [one["state"] for one in a.ended()["replicas"]] == ["succeeded", "lost"]

    run_scenario(scenario)


def test_the_notification_command_gets_the_state_of_the_run(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b", timeouts=LOSING)
        await cluster.begin(
            replica("chief-0", "gpu-a", FOREVER),
            replica("worker-0", "gpu-b", FOREVER),
            notify='echo "$TORCHYARD_STATE: $TORCHYARD_CAUSE" >>notified',
            max_restarts=1,
            failure_grace_s=0.2,
        )
        notified = a.run_dir / "work" / "notified"
        await eventually(lambda: "running" in a.states())
        b.process.kill()
        await eventually(notified.exists)
        await eventually(lambda: "waiting up to 600 s for gpu-b to come back" in notified.read_text())
        await a.call("stop", reason="enough")
        assert await a.exit_code() == 0
        assert [line.partition(":")[0] for line in notified.read_text().splitlines()] == ["restarting", "stopped"]

    run_scenario(scenario)


def test_a_notification_that_fails_or_hangs_delays_nothing(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await cluster.begin(replica("worker-0", "gpu-a", shell("true")), notify="echo no mail here; exit 3")
        assert (await cluster.end())["state"] == "succeeded"
        assert (a.run_dir / "notify.log").read_text() == "no mail here\n"

    run_scenario(scenario)


def trains(**policy: Any) -> Driver:
    """Returns a run with `on_worker_loss: continue`, whose chief and worker are running."""
    return Driver(on_worker_loss="continue", **policy).go()


def test_a_gang_that_trains_continues_without_a_lost_worker() -> None:
    driver = trains(min_replicas={"worker": 0}, max_restarts=1)
    driver(GangTrains("trainers", 0))
    result = driver(RankFailed("worker-0", 1, BAD))
    assert of(RecordMembership, result) == [
        RecordMembership("trainers", 0, 1, ("chief-0",), ("worker-0",), SENTENCE),
    ]
    assert of(EndRanks, result) == [EndRanks("b", ("worker-0",), 0.0)]
    driver(ReplicaEnded("worker-0", 1))
    assert driver.run.state is RunState.RUNNING
    assert of(RecordGangRestart, driver(RankFailed("chief-0", 1, BAD), ReplicaEnded("chief-0", 1))) != []
    driver(GangCleared("a", "trainers", 0), GangCleared("b", "trainers", 0))
    assert driver.states() == {"chief-0": "starting", "worker-0": "starting"}
    assert not driver.run.gang("trainers").trains


def test_a_gang_restarts_before_its_first_step_and_below_min_replicas() -> None:
    before = trains(min_replicas={"worker": 0}, max_restarts=1)
    assert of(RecordMembership, before(RankFailed("worker-0", 1, BAD))) == []
    below = trains(min_replicas={"worker": 1}, max_restarts=1)
    below(GangTrains("trainers", 0))
    assert of(RecordMembership, below(RankFailed("worker-0", 1, BAD))) == []


def test_the_end_of_the_remaining_worker_ends_the_run_as_succeeded() -> None:
    driver = trains(min_replicas={"worker": 0})
    driver(GangTrains("trainers", 0), RankFailed("worker-0", 1, BAD), ReplicaEnded("worker-0", 1))
    driver(ReplicaEnded("chief-0", 0))
    assert of(FinishRun, driver.swept()) == [FinishRun(RunState.SUCCEEDED, "")]
