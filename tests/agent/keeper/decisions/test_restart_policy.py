"""How a gang starts again: decided by the policy, and done by keepers with real processes."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import pytest

from tests.agent.keeper.conftest import Play as PlayKeepers
from tests.agent.keeper.decisions.test_state_machine import BAD, PEER, Play, of
from tests.agent.keeper.keeper_cluster import KeeperCluster, replica, shell
from tests.waiting import eventually
from torchyard_agent.keeper.decisions import instructions, state_machine
from torchyard_agent.keeper.decisions.events import (
    Cause,
    Event,
    GangCleared,
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
    RecordRunState,
    SetTimer,
    StartGang,
)
from torchyard_agent.protocol.run_states import ReplicaState, RunState

FOREVER = shell("exec sleep 1000")
SENTENCE = "worker-0 on b: exited with 1: ValueError: bad"


def fails(play: Play) -> list[Any]:
    """worker-0 fails, and chief-0 with it."""
    play(RankFailed("worker-0", 1, BAD), ReplicaEnded("worker-0", 1))
    return play(RankFailed("chief-0", 1, PEER), ReplicaEnded("chief-0", 1), after=0.1)


def up_again(play: Play, *names: str) -> None:
    play(*[ReplicaSpawned(name) for name in names or ("chief-0", "worker-0")])


def test_a_failed_gang_starts_again_once_nothing_of_it_is_left() -> None:
    play = Play(max_restarts=2).go()
    said = fails(play)
    assert of(RecordGangRestart, said) == [RecordGangRestart("trainers", 1, SENTENCE)]
    assert of(RecordRunState, said) == [RecordRunState(RunState.RESTARTING, SENTENCE)]
    assert of(ClearGang, said) == [
        ClearGang("a", "trainers", 0, ("chief-0",), 0.5),
        ClearGang("b", "trainers", 0, ("worker-0",), 0.5),
    ]
    assert of(StartGang, play(GangCleared("a", "trainers", 0))) == []
    said = play(GangCleared("b", "trainers", 0))
    assert of(StartGang, said) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]
    assert play.states() == {"chief-0": "starting", "worker-0": "starting"}
    up_again(play)
    assert play.run.state is RunState.RUNNING
    assert [one.restarts for one in play.run.replicas] == [1, 1]
    play(ReplicaEnded("chief-0", 0), ReplicaEnded("worker-0", 0))
    assert of(FinishRun, play.swept()) == [FinishRun(RunState.SUCCEEDED, "")]


def test_the_others_have_their_grace_and_are_then_ended() -> None:
    play = Play(max_restarts=1).go()
    said = play(RankFailed("worker-0", 1, BAD), ReplicaEnded("worker-0", 1))
    assert of(SetTimer, said) == [SetTimer(instructions.GANG_GRACE, 2.0, "trainers", 0)]
    said = play(TimerFired(instructions.GANG_GRACE, "trainers", 0), after=2)
    assert of(EndRanks, said) == [EndRanks("a", ("chief-0",), state_machine.KILL_AFTER_S)]
    assert of(RecordGangRestart, play(ReplicaEnded("chief-0", -9))) == [RecordGangRestart("trainers", 1, SENTENCE)]


def test_the_grace_of_an_earlier_generation_ends_nobody() -> None:
    play = Play(max_restarts=2).go()
    fails(play)
    play(GangCleared("a", "trainers", 0), GangCleared("b", "trainers", 0))
    up_again(play)
    assert play(TimerFired(instructions.GANG_GRACE, "trainers", 0)) == []


def test_after_the_last_restart_the_run_fails_with_the_last_cause() -> None:
    play = Play(max_restarts=1).go()
    fails(play)
    play(GangCleared("a", "trainers", 0), GangCleared("b", "trainers", 0))
    up_again(play)
    fails(play)
    assert of(FinishRun, play.swept()) == [FinishRun(RunState.FAILED, SENTENCE)]


def test_a_program_that_is_not_there_is_not_started_again() -> None:
    play = Play(max_restarts=2).go()
    play(
        RankFailed("worker-0", 127, Cause("python: /x is not there on b", curable=False)), ReplicaEnded("worker-0", 127)
    )
    assert play.run.outcome is RunState.FAILED


def test_a_trainer_that_had_ended_well_starts_again_with_its_gang() -> None:
    play = Play(max_restarts=1).go()
    play(ReplicaEnded("chief-0", 0), RankFailed("worker-0", 1, BAD), ReplicaEnded("worker-0", 1))
    said = play(GangCleared("a", "trainers", 0), GangCleared("b", "trainers", 0))
    assert of(StartGang, said) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]


def test_a_server_starts_again_alone() -> None:
    play = Play(replica("worker-0", "a"), replica("ps-0", "b"), max_restarts=1).go()
    said = play(RankFailed("ps-0", 1, BAD), ReplicaEnded("ps-0", 1))
    assert of(RecordRunState, said) == []
    assert of(StartGang, play(GangCleared("b", "ps-0", 0))) == [StartGang("ps-0", 1, ("ps-0",))]
    assert play.states() == {"worker-0": "running", "ps-0": "starting"}


def test_an_evaluator_that_keeps_failing_is_left_alone_in_the_end() -> None:
    play = Play(replica("worker-0", "a"), replica("evaluator-0", "b"), max_restarts=1).go()
    play(RankFailed("evaluator-0", 1, BAD), ReplicaEnded("evaluator-0", 1))
    play(GangCleared("b", "evaluator-0", 0), ReplicaSpawned("evaluator-0"))
    play(RankFailed("evaluator-0", 1, BAD), ReplicaEnded("evaluator-0", 1))
    assert play.run.outcome is None
    assert play.states() == {"worker-0": "running", "evaluator-0": "failed"}


def test_the_groups_of_an_asynchronous_strategy_start_again_apart() -> None:
    shares = [replica(f"worker-{number}", "ab"[number], gang=f"group-{number}") for number in range(2)]
    play = Play(*shares, max_restarts=1).go()
    said = play(RankFailed("worker-1", 1, BAD), ReplicaEnded("worker-1", 1))
    assert of(RecordRunState, said) == []
    assert of(StartGang, play(GangCleared("b", "group-1", 0))) == [StartGang("group-1", 1, ("worker-1",))]
    assert play.states()["worker-0"] == "running"


def lose_b(play: Play) -> list[Any]:
    said = play(HostLost("b", "its keeper was not heard for 10 s"))
    said += play(RankFailed("chief-0", 1, PEER), ReplicaEnded("chief-0", 1))
    return said + play(GangCleared("a", "trainers", 0))


def test_a_lost_host_is_waited_for_and_used_again() -> None:
    play = Play(max_restarts=1).go()
    said = lose_b(play)
    assert SetTimer(instructions.HOST_WAIT, 600.0) in said
    assert of(StartGang, said) == []
    assert play.run.reason == ("b was lost: its keeper was not heard for 10 s; waiting up to 600 s for b to come back")
    said = play(HostReturned("b"), after=100)
    assert of(StartGang, said) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]


def test_a_lost_host_that_stays_away_ends_the_run_where_its_replicas_are_needed() -> None:
    play = Play(max_restarts=1).go()
    lose_b(play)
    play(TimerFired(instructions.HOST_WAIT), after=600)
    reason = of(FinishRun, play(HostSwept("a")))[0].reason
    assert reason.startswith("b was lost: its keeper was not heard for 10 s; b did not come back")
    assert "min_replicas" in reason


def three_workers(**changes: Any) -> Play:
    shares = [replica("chief-0", "a"), replica("worker-0", "b"), replica("worker-1", "c")]
    return Play(*shares, hosts="abc", max_restarts=2, **changes).go()


def lose_c(play: Play) -> list[Any]:
    play(HostLost("c", "silence"))
    for name in ("chief-0", "worker-0"):
        play(RankFailed(name, 1, PEER), ReplicaEnded(name, 1))
    play(GangCleared("a", "trainers", 0), GangCleared("b", "trainers", 0))
    return play(TimerFired(instructions.HOST_WAIT), after=600)


def test_the_gang_goes_on_with_what_is_left_where_min_replicas_allows() -> None:
    play = three_workers(min_replicas={"worker": 1})
    assert of(StartGang, lose_c(play)) == [StartGang("trainers", 1, ("chief-0", "worker-0"))]
    up_again(play)
    assert play.run.state is RunState.RUNNING
    assert play.states()["worker-1"] == "lost"
    play(ReplicaEnded("chief-0", 0), ReplicaEnded("worker-0", 0), HostSwept("a"))
    assert of(FinishRun, play(HostSwept("b"))) == [FinishRun(RunState.SUCCEEDED, "")]


def test_a_host_that_comes_back_late_is_used_at_the_next_restart() -> None:
    play = three_workers(min_replicas={"worker": 1})
    lose_c(play)
    up_again(play)
    assert play(HostReturned("c")) == []
    fails(play)
    said = play(GangCleared("a", "trainers", 1), GangCleared("b", "trainers", 1))
    assert of(StartGang, said) == [StartGang("trainers", 2, ("chief-0", "worker-0", "worker-1"))]


def test_too_few_replicas_end_the_run_with_the_number() -> None:
    play = three_workers(min_replicas={"worker": 2})
    lose_c(play)
    assert play.run.outcome is RunState.FAILED
    assert "the pool worker needs 2 replicas (`min_replicas`): 1 left" in play.run.failures[0].sentence


def three_groups(**changes: Any) -> Play:
    shares = [replica(f"worker-{number}", "abc"[number], gang=f"group-{number}") for number in range(3)]
    return Play(*shares, hosts="abc", max_restarts=1, **changes).go()


def test_the_other_worker_groups_go_on_without_one_whose_host_stays_away() -> None:
    play = three_groups(min_replicas={"worker": 2})
    play(HostLost("c", "silence"))
    assert of(StartGang, play(TimerFired(instructions.HOST_WAIT), after=600)) == []
    assert play.run.state is RunState.RUNNING
    assert play.states() == {"worker-0": "running", "worker-1": "running", "worker-2": "lost"}
    play(ReplicaEnded("worker-0", 0), ReplicaEnded("worker-1", 0), HostSwept("a"))
    assert of(FinishRun, play(HostSwept("b"))) == [FinishRun(RunState.SUCCEEDED, "")]


def test_it_takes_part_again_when_its_host_comes_back_late() -> None:
    play = three_groups(min_replicas={"worker": 2})
    play(HostLost("c", "silence"))
    play(TimerFired(instructions.HOST_WAIT), after=600)
    said = play(HostReturned("c"))
    assert of(RecordGangRestart, said) == [RecordGangRestart("group-2", 1, "c came back")]
    assert of(StartGang, said) == [StartGang("group-2", 1, ("worker-2",))]
    up_again(play, "worker-2")
    assert play.states()["worker-2"] == "running"


@pytest.mark.parametrize(("host", "enough"), [("c", 3), ("a", 2)], ids=["a pool has too few", "it is the chief's"])
def test_a_group_that_is_needed_ends_the_run_where_its_host_stays_away(host: str, enough: int) -> None:
    play = three_groups(min_replicas={"worker": enough})
    play(HostLost(host, "silence"))
    play(TimerFired(instructions.HOST_WAIT), after=600)
    assert play.run.outcome is RunState.FAILED
    assert f"{host} did not come back" in play.run.failures[0].sentence


def test_of_a_group_of_several_the_whole_pool_is_counted() -> None:
    groups = {"worker-0": "a", "worker-1": "b", "worker-2": "c", "worker-3": "a"}
    shares = [replica(name, host, gang=f"group-{at // 2}") for at, (name, host) in enumerate(groups.items())]
    play = Play(*shares, hosts="abc", max_restarts=1, min_replicas={"worker": 3}).go()
    play(HostLost("c", "silence"), RankFailed("worker-3", 1, PEER), ReplicaEnded("worker-3", 1))
    play(GangCleared("a", "group-1", 0))
    said = play(TimerFired(instructions.HOST_WAIT), after=600)
    assert of(StartGang, said) == [StartGang("group-1", 1, ("worker-3",))]


def test_no_host_is_given_up_before_its_own_lease_has_ended_its_ranks() -> None:
    play = three_workers(min_replicas={"worker": 1}, host_wait_s=0.0)
    play(HostLost("c", "silence"))
    for name in ("chief-0", "worker-0"):
        play(RankFailed(name, 1, PEER), ReplicaEnded(name, 1))
    assert of(StartGang, play(GangCleared("a", "trainers", 0), GangCleared("b", "trainers", 0))) == []
    assert of(StartGang, play(TimerFired(instructions.HOST_WAIT), after=12.4)) == []
    assert of(StartGang, play(TimerFired(instructions.HOST_WAIT), after=0.2)) != []


def test_stop_ends_a_run_that_waits_for_a_host() -> None:
    play = Play(max_restarts=1).go()
    lose_b(play)
    play(StopRequested("enough"))
    assert of(FinishRun, play(HostSwept("a"))) == [FinishRun(RunState.STOPPED, "enough")]


def _next_event(play: Play, dice: random.Random) -> Event:
    """Any event that may happen now, seldom a stop."""
    run = play.run
    possible: list[Event] = [LinkBroken("b"), LinkRestored("b")]
    if dice.random() < 0.05:
        possible.append(StopRequested("enough", dice.random() < 0.5))
    if run.started and dice.random() < 0.2 and not run.host("b").lost:
        possible.append(HostLost("b", "silence"))
    if run.host("b").lost:
        possible.append(HostReturned("b"))
    possible += [HostJoined(host.name) for host in run.hosts if not host.joined] * 5
    waits = of(SetTimer, play.told) + of(SetTimer, play.first)
    possible += [
        TimerFired(told.timer, told.gang, told.generation) for told in waits if told.timer != instructions.JOIN
    ][-4:]
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
def test_whatever_happens_no_two_generations_ever_live_and_the_run_ends(seed: int) -> None:
    dice = random.Random(seed)
    names = ("chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0")
    shares = [replica(name, "a" if name == "chief-0" else dice.choice("ab")) for name in names]
    rules = {"min_replicas": {"worker": 0} if dice.random() < 0.5 else {}, "max_restarts": dice.choice((0, 1, 3))}
    play = Play(*shares, **rules)
    started = {gang.name: 0 for gang in play.run.gangs}
    for _ in range(5000):
        if play.run.state.is_terminal:
            break
        before = play.run
        said = play(_next_event(play, dice), after=dice.choice((0.01, 1.0, 300.0)))
        for start in of(StartGang, said):
            started[start.gang] += 1
            alive = [one.name for one in before.replicas if one.gang == start.gang and not one.state.is_terminal]
            assert len(alive) <= 1  # the one whose end let it start
            assert not [one for one in start.replicas if play.run.host(play.run.replica(one).host).lost]
    assert play.run.state.is_terminal
    # A server that had ended well is started again beside its trainers, over and above its own restarts.
    most = {name: rules["max_restarts"] * (2 if name == "ps-0" else 1) for name in started}
    assert all(count <= most[name] for name, count in started.items())
    assert all(one.state.is_terminal for one in play.run.replicas)
    assert len(of(FinishRun, play.told)) == 1


# With keepers


LOSING = {"heartbeat_s": 0.4, "lease_s": 2.0}
"""Short waits, and not so short that a busy machine loses anybody."""


def counted(then: str) -> list[str]:
    """A program that knows how often its gang was started: `$n`, from 1."""
    return shell(f'n=$((TORCHYARD_GENERATION + 1)); echo "start $n"; {then}')


def test_a_gang_that_fails_is_started_again_on_all_hosts(play: PlayKeepers) -> None:
    async def story(yard: KeeperCluster) -> None:
        a, b = await yard.add("gpu-a", "gpu-b")
        await yard.begin(
            replica("chief-0", "gpu-a", counted("test $n = 3 || sleep 1000")),
            replica("worker-0", "gpu-b", counted("test $n = 3 || { sleep 0.2; echo no luck; exit 3; }")),
            max_restarts=2,
            failure_grace_s=0.2,
        )
        ended = await yard.end()
        assert (ended["state"], [one["restarts"] for one in ended["replicas"]]) == ("succeeded", [2, 2])
        assert b.output("worker-0") == "start 1\nno luck\nstart 2\nno luck\nstart 3\n"
        restarts = [event for event in b.journal() if event["event"] == "gang_restart"]
        assert [event["generation"] for event in restarts] == [1, 2]
        assert restarts[0]["cause"] == "worker-0 on gpu-b: exited with 3; its last line was: no luck"
        assert [state for state in a.states() if state == "restarting"] == ["restarting"] * 2

    play(story)


def test_what_a_failed_generation_left_is_gone_before_the_next_and_others_are_spared(play: PlayKeepers) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a")
        orphan = "(trap '' TERM; exec setsid sh -c 'echo $$ >orphan; exec sleep 1000') & "
        wait_for_it = "while ! test -s orphan; do sleep 0.05; done; exit 1; "
        again = "kill -0 $(cat orphan) 2>/dev/null && echo alive; echo looked; exec sleep 1000"
        first = f"if test $n = 1; then {orphan} {wait_for_it} fi; {again}"
        await yard.begin(
            replica("worker-0", "gpu-a", counted(first)),
            replica("evaluator-0", "gpu-a", shell("(exec sleep 1000) & echo $! >helper; wait")),
            max_restarts=1,
        )
        helper = a.run_dir / "work" / "helper"
        await eventually(lambda: "looked" in a.output("worker-0") and helper.exists() and helper.read_text())
        assert "alive" not in a.output("worker-0")
        os.kill(int(helper.read_text()), 0)  # the evaluator's child lives
        await eventually(lambda: a.states()[-1] == "running")
        await a.call("stop", reason="enough")
        assert (await yard.end())["state"] == "stopped"

    play(story)


def test_a_member_that_was_cut_off_ends_its_ranks_and_takes_part_again(play: PlayKeepers) -> None:
    async def story(yard: KeeperCluster) -> None:
        a, b = await yard.add("gpu-a", "gpu-b", patience=LOSING)
        await yard.begin(
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
        await eventually(lambda: len(yard.left()) == 2)
        await b.call("stop", reason="enough")
        assert (await yard.end())["state"] == "stopped"

    play(story)


def test_a_gang_goes_on_without_a_host_that_is_not_needed(play: PlayKeepers) -> None:
    async def story(yard: KeeperCluster) -> None:
        a, b = await yard.add("gpu-a", "gpu-b", patience=LOSING)
        argv = shell("echo {rank} of {world_size}; test {world_size} = 1 || exec sleep 1000")
        await yard.begin(
            replica("worker-0", "gpu-a", argv),
            replica("worker-1", "gpu-b", argv),
            max_restarts=1,
            failure_grace_s=0.2,
            host_wait_s=0.0,
            min_replicas={"worker": 1},
        )
        await eventually(lambda: (a.output("worker-0"), b.output("worker-1")) == ("0 of 2\n", "1 of 2\n"))
        b.process.kill()
        assert await a.gone() == 0
        assert a.ended()["state"] == "succeeded", a.ended()
        assert a.output("worker-0") == "0 of 2\n0 of 1\n"
        assert [one["state"] for one in a.ended()["replicas"]] == ["succeeded", "lost"]

    play(story)


def test_the_notification_says_what_has_become_of_the_run(play: PlayKeepers) -> None:
    async def story(yard: KeeperCluster) -> None:
        a, b = await yard.add("gpu-a", "gpu-b", patience=LOSING)
        await yard.begin(
            replica("chief-0", "gpu-a", FOREVER),
            replica("worker-0", "gpu-b", FOREVER),
            notify='echo "$TORCHYARD_STATE: $TORCHYARD_CAUSE" >>told',
            max_restarts=1,
            failure_grace_s=0.2,
        )
        told = a.run_dir / "work" / "told"
        await eventually(lambda: "running" in a.states())
        b.process.kill()
        await eventually(told.exists)
        await eventually(lambda: "waiting up to 600 s for gpu-b to come back" in told.read_text())
        await a.call("stop", reason="enough")
        assert await a.gone() == 0
        assert [line.partition(":")[0] for line in told.read_text().splitlines()] == ["restarting", "stopped"]

    play(story)


def test_a_notification_that_fails_or_hangs_holds_nothing_up(play: PlayKeepers) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a")
        await yard.begin(replica("worker-0", "gpu-a", shell("true")), notify="echo no mail here; exit 3")
        assert (await yard.end())["state"] == "succeeded"
        assert (a.run_dir / "notify.log").read_text() == "no mail here\n"

    play(story)
