"""The state machine of a run. It maps an event to a new state and instructions, without I/O and without a clock.

Only the primary decides, so a run has one cause of failure, one end and one order of events.

    (waiting for its start ──due, every host has its GPUs──>)
    starting ──all spawned──> running ──those of `ends_with` ended with 0──────────┐
       │                       │   ^ restarting (see `restart_policy`)             │
       └──stop, last failure───┴──> stopping (grace, SIGTERM, grace, SIGKILL) ────>┤
                                                                                   v
                                               every host swept ──> succeeded │ failed │ stopped
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Callable

from torchyard_agent.keeper.decisions import events, instructions, replica_return, restart_policy
from torchyard_agent.keeper.decisions.events import Event
from torchyard_agent.keeper.decisions.failure_cause import end_with_cause
from torchyard_agent.keeper.decisions.instructions import Instruction
from torchyard_agent.keeper.decisions.state import (
    COLLECT_S,
    KILL_AFTER_S,
    Failure,
    Gang,
    Host,
    Replica,
    Run,
    Step,
    replica_of,
)
from torchyard_agent.protocol.messages import Policy, ReplicaPlan
from torchyard_agent.protocol.run_states import ReplicaState, RunState

__all__ = ["COLLECT_S", "KILL_AFTER_S", "Run", "begin", "transition"]

WAITS_FOR_JOB = "its job has not started yet"
LEFTOVERS_GRACE_S = 2.0
"""Grace period in seconds for processes that the ranks of a successful run left behind."""
LEFTOVERS_GRACE_AFTER_FAILURE_S = 0.5


def begin(
    hosts: Iterable[str],
    replicas: Iterable[ReplicaPlan],
    policy: Policy,
    *,
    join_within_s: float,
    lease_s: float = 10.0,
    collect_s: float = COLLECT_S,
    meeting_point: str = "",
    scheduled: str = "",
    gpus_within_s: float = 600.0,
    own_jobs: Collection[str] = (),
) -> tuple[Run, list[Instruction]]:
    """Returns the initial state of a run and the first instructions. All keepers of the run must already be prepared.

    Args:
        hosts: The names of the hosts, beginning with the primary's.
        scheduled: The start time of a scheduled run as text. The hosts join, but start no ranks before the event
            `StartDue`.
        own_jobs: The hosts that belong to group jobs (`Host.own_job`). A host joins when its group job starts.
    """
    known = tuple(
        one._replace(dropped=True, reason=WAITS_FOR_JOB) if one.host in own_jobs else one
        for one in map(replica_of, replicas)
    )
    gangs = tuple(Gang(name) for name in dict.fromkeys(one.gang for one in known))
    there = tuple(
        Host(name, ready=not scheduled, own_job=name in own_jobs, lost=name in own_jobs, connected=name not in own_jobs)
        for name in hosts
    )
    run = Run(policy, known, there, gangs, meeting_point, lease_s, collect_s)
    run = run._replace(scheduled=scheduled, gpus_within_s=gpus_within_s)
    step = Step(run, 0.0)
    step.record_run(RunState.WAITING if scheduled else RunState.STARTING, scheduled)
    for replica in known:
        step.record_replica(replica)
    step.out.append(instructions.SetTimer(instructions.JOIN, join_within_s))
    return step.run, step.out


def transition(run: Run, event: Event, now: float) -> tuple[Run, list[Instruction]]:
    """Returns the state and the instructions after `event` at `now`, which is in seconds on a monotonic clock."""
    if run.state.is_terminal:
        return run, []
    step = Step(run, now)
    _ON[type(event)](step, event)
    restart_policy.settle(step)
    if any(one.added for one in step.run.replicas):
        _on_growth(step, None)
    _settle(step)
    return step.run, step.out


def _on_joined(step: Step, event: events.HostJoined) -> None:
    step.set_host(event.host, joined=True, connected=True)
    if step.run.host(event.host).own_job:
        step.set_host(event.host, lost=False, swept=step.run.outcome is not None)
    if not step.run.scheduled and not step.run.host(event.host).ready and step.run.outcome is None:
        step.out.append(instructions.AcquireGpus(event.host, step.run.only_if_idle))
    _start_when_ready(step)


def _start_when_ready(step: Step) -> None:
    if step.run.started or step.run.outcome or not all(host.ready for host in step.run.hosts):
        return
    if not all(host.joined or host.own_job for host in step.run.hosts) or _lacks_replicas(step.run):
        return
    if step.run.state is RunState.WAITING:
        step.record_run(RunState.STARTING, "")
    step.set(started=True)
    for replica in step.run.replicas:
        if not replica.dropped:
            step.set_replica(replica.name, state=ReplicaState.STARTING)
    step.out.append(instructions.StartRanks())


def _lacks_replicas(run: Run) -> bool:
    """Returns whether a pool has fewer replicas than its `min_replicas`, because group jobs have not started yet."""
    planned = [one.pool for one in run.replicas]
    there = [one.pool for one in run.replicas if not run.host(one.host).lost]
    least = run.policy["min_replicas"]
    pools = {one.pool for one in run.replicas if run.host(one.host).own_job}
    return any(there.count(pool) < least.get(pool, planned.count(pool)) for pool in pools)


def _on_start_due(step: Step, event: events.StartDue) -> None:
    """Orders every host to lock its GPUs, now or when it joins. A lost host may return until the GPUS timer expires."""
    if step.run.started or step.run.outcome or not step.run.scheduled:
        return
    step.set(scheduled="", only_if_idle=event.only_if_idle)
    step.out.append(instructions.SetTimer(instructions.GPUS, step.run.gpus_within_s))
    for host in step.run.hosts:
        if host.lost:
            step.record_run(RunState.WAITING, f"{host.name} was lost before the run's start; waiting for its return")
        elif host.joined:
            step.out.append(instructions.AcquireGpus(host.name, event.only_if_idle))


def _on_gpus_acquired(step: Step, event: events.GpusAcquired) -> None:
    step.set_host(event.host, ready=True, held_by="")
    _start_when_ready(step)


def _on_gpus_busy(step: Step, event: events.GpusBusy) -> None:
    step.set_host(event.host, ready=False, held_by=event.what)
    if step.run.outcome is None and not step.run.started:
        step.record_run(RunState.WAITING, f"its time has come, but on {event.host} {event.what}")


def _on_gpus_timeout(step: Step) -> None:
    late = [host for host in step.run.hosts if not host.ready]
    if late and step.run.outcome is None and not step.run.started:
        lost = "the host was lost before the run's start, and did not come back"
        why = lost if late[0].lost else late[0].held_by or "it did not lock the run's GPUs in time"
        step.fail(Failure(f"{late[0].name}: {why}", curable=False))


def _on_lost_before_start(step: Step, host: str, why: str) -> None:
    """Handles the loss of a host before a scheduled run's start. The host may return until the GPUS timer expires."""
    step.set_host(host, ready=False)
    lost = f"{host} was lost: {why}"
    step.record_run(RunState.WAITING, f"{step.run.scheduled}; {lost}" if step.run.scheduled else lost)
    step.out.append(instructions.NotifyUser(step.run.reason))


def _on_spawned(step: Step, event: events.ReplicaSpawned) -> None:
    if step.run.replica(event.replica).state is ReplicaState.STARTING:
        step.set_replica(event.replica, state=ReplicaState.RUNNING)


def _on_rank_failed(step: Step, event: events.RankFailed) -> None:
    replica = step.run.replica(event.replica)
    if replica.state not in (ReplicaState.STARTING, ReplicaState.RUNNING):
        return  # The replica was ordered to end, so the exit code of the rank is irrelevant.
    step.set_replica(event.replica, failure=event.cause, exit_code=event.exit_code, reason=event.cause.text)
    failure = Failure(
        f"{replica.name} on {replica.host}: {event.cause.text}", event.cause.consequence, event.cause.curable
    )
    if restart_policy.handle_failure(step, step.run.gang(replica.gang), failure, replica):
        return
    if replica.role == "evaluator":
        grace_s = step.run.policy["failure_grace_s"]
        step.out.append(instructions.EndRanks(replica.host, (replica.name,), grace_s))
    else:
        step.fail(failure)


def _on_ended(step: Step, event: events.ReplicaEnded) -> None:
    replica = step.run.replica(event.replica)
    if replica.state.is_terminal:
        return
    if replica.failure is not None:
        step.set_replica(replica.name, state=ReplicaState.FAILED)
    elif replica.state is ReplicaState.STOPPING:
        step.set_replica(replica.name, state=ReplicaState.STOPPED, exit_code=event.exit_code)
    else:
        step.set_replica(replica.name, state=ReplicaState.SUCCEEDED, exit_code=event.exit_code)


def _on_host_lost(step: Step, event: events.HostLost) -> None:
    host = step.run.host(event.host)
    if host.swept or host.lost:
        return
    step.set_host(host.name, lost=True, connected=False)
    if step.run.state is RunState.WAITING:
        _on_lost_before_start(step, host.name, event.why)
        return
    restart_policy.on_host_lost(step, host.name)
    why = f"{host.name} {'has left' if event.has_left else 'was lost'}: {event.why}"
    if host.own_job:
        restart_policy.leave(step, host.name, why)
        return
    if not step.run.started:  # The run ends, because a host was lost before any rank was started.
        step.fail(Failure(why))
    for replica in step.run.replicas:
        if replica.host == host.name and not replica.state.is_terminal:
            step.set_replica(replica.name, state=ReplicaState.LOST, reason=why)
            taken = restart_policy.handle_failure(step, step.run.gang(replica.gang), Failure(why), replica)
            if not taken and replica.role != "evaluator":
                step.fail(Failure(why))


def _on_host_returned(step: Step, event: events.HostReturned) -> None:
    # By the time a lost host reconnects, it has terminated all of the run's processes on it.
    ending = step.run.outcome is not None
    step.set_host(event.host, lost=False, connected=True, swept=ending)
    if step.run.state is RunState.WAITING:
        step.record_run(RunState.WAITING, step.run.scheduled or f"{event.host} is back")
        if not step.run.scheduled:
            step.out.append(instructions.AcquireGpus(event.host, step.run.only_if_idle))


def _on_stop_requested(step: Step, event: events.StopRequested) -> None:
    if step.run.outcome is None:
        step.set(outcome=RunState.FAILED if event.is_failure else RunState.STOPPED, chosen=True)
        step.record_run(RunState.STOPPING, event.reason)
        grace_s = 0.0 if event.force else step.run.policy["stop_grace_s"]
        step.end(step.run.replicas, grace_s if event.within_s is None else min(grace_s, event.within_s))
    elif event.within_s is not None and not event.force:  # The run is already ending, and may get less time.
        if step.run.outcome is RunState.STOPPED and step.now + event.within_s < step.run.end_by:
            step.end(step.run.replicas, event.within_s)
            step.out += [instructions.Sweep(host, event.within_s) for host in _unswept(step.run)]
    elif event.force:  # The run is already ending. A forced stop ends the grace period.
        step.end(step.run.replicas, 0.0)
        step.out += [instructions.Sweep(host, 0.0) for host in _unswept(step.run)]


def _unswept(run: Run) -> list[str]:
    """Returns the hosts that were ordered to end the remaining processes and have not done so yet."""
    return [host.name for host in run.hosts if run.sweeping and not host.swept and not host.lost]


def _on_timer(step: Step, event: events.TimerFired) -> None:
    if event.timer == instructions.JOIN:
        late = [host.name for host in step.run.hosts if not host.joined and not host.own_job]
        # This timer is relevant only before the run starts. Hosts that are added later have a timer of their own.
        if late and step.run.outcome is None and not step.run.started:
            step.set(outcome=RunState.FAILED, failures=tuple(_did_not_join(name, step.run) for name in late))
            for name in late:
                step.set_host(name, lost=True, connected=False)
            end_with_cause(step)
            step.end(step.run.replicas, KILL_AFTER_S)
    elif event.timer == instructions.JOIN_ADDED:
        _on_growth(step, event)
    elif event.timer == instructions.GPUS:
        _on_gpus_timeout(step)
    elif event.timer == instructions.CHOOSE:
        if step.run.outcome is RunState.FAILED and not step.run.chosen:
            end_with_cause(step)
    elif event.timer == instructions.RETURN:
        replica_return.on_pause_over(step, step.run.gang(event.gang), event.generation)
    elif event.timer == instructions.GANG_GRACE:
        restart_policy.on_grace(step, step.run.gang(event.gang), event.generation)
    elif event.timer == instructions.GRACE and step.run.outcome is RunState.FAILED:
        step.end((one for one in step.run.replicas if one.state is not ReplicaState.STOPPING), KILL_AFTER_S)


def _on_cleared(step: Step, event: events.GangCleared) -> None:
    if any(gang.name == event.gang for gang in step.run.gangs):
        restart_policy.on_cleared(step, event)
    else:
        replica_return.on_cleared(step, event)


def _on_growth(step: Step, event: events.ReplicasAdded | events.ReplicasWithdrawn | events.TimerFired | None) -> None:
    # Imported only when needed: hosts are added to few runs, and each import uses memory in every keeper.
    from torchyard_agent.keeper.decisions import growth_policy

    growth_policy.apply(step, event)


def _did_not_join(host: str, run: Run) -> Failure:
    primary = run.hosts[0].name
    return Failure(
        f"{host} did not reach the primary {primary} at {run.meeting_point} in time; is a firewall in between? "
        f"Set `ports` of {primary} in the fleet file to ports that it lets through"
    )


_ON: dict[type, Callable[[Step, Any], None]] = {
    events.HostJoined: _on_joined,
    events.ReplicaSpawned: _on_spawned,
    events.RankFailed: _on_rank_failed,
    events.ReplicaEnded: _on_ended,
    events.LinkBroken: lambda step, event: step.set_host(event.host, connected=False),
    events.LinkRestored: lambda step, event: step.set_host(event.host, connected=True),
    events.HostLost: _on_host_lost,
    events.HostReturned: _on_host_returned,
    events.GangCleared: _on_cleared,
    events.GangTrains: restart_policy.on_trains,
    events.ReplicaReady: replica_return.on_ready,
    events.BoundaryReached: replica_return.on_boundary,
    events.ReplicasAdded: _on_growth,
    events.ReplicasWithdrawn: _on_growth,
    events.StartDue: _on_start_due,
    events.GpusAcquired: _on_gpus_acquired,
    events.GpusBusy: _on_gpus_busy,
    events.HostSwept: lambda step, event: step.set_host(event.host, swept=True),
    events.StopRequested: _on_stop_requested,
    events.TimerFired: _on_timer,
}


def _settle(step: Step) -> None:
    """Makes the changes that follow from the state alone. Called after every event."""
    run = step.run
    if run.state in (RunState.STARTING, RunState.RESTARTING) and run.started and run.outcome is None:
        waiting = (ReplicaState.PENDING, ReplicaState.STARTING)
        counted = [one for one in run.replicas if not one.missing and not (one.dropped and run.host(one.host).own_job)]
        none_waits = not any(replica.state in waiting for replica in counted)
        if none_waits and (run.state is RunState.STARTING or restart_policy.trainers_are_up(run)):
            step.record_run(RunState.RUNNING, "")
    _settle_success(step)
    if step.run.outcome is None or not all(replica.state.is_terminal for replica in step.run.replicas):
        return
    if not step.run.chosen:
        end_with_cause(step)
    if not step.run.sweeping:
        _sweep(step)
    if all(host.swept or host.lost for host in step.run.hosts):
        outcome = step.run.outcome
        assert outcome is not None
        step.set(state=outcome)
        step.out.append(instructions.FinishRun(outcome, step.run.reason))


def _settle_success(step: Step) -> None:
    """Ends the run as succeeded when the replicas that `ends_with` names have ended with 0. Stops all others.

    Evaluators among the named replicas may have failed. If none of the named replicas has succeeded, the run fails.
    """
    if step.run.chosen or not step.run.started:
        return
    named = _named_by_ends_with(step.run)
    for replica in named:
        is_ended_evaluator = replica.role == "evaluator" and replica.state.is_terminal
        if replica.state is not ReplicaState.SUCCEEDED and not is_ended_evaluator:
            return
    # If no named replica has succeeded here, all of them are evaluators that have ended.
    if not any(replica.state is ReplicaState.SUCCEEDED for replica in named):
        step.fail(Failure(f"{named[0].name} on {named[0].host}: {named[0].reason}"))
        return
    step.set(outcome=RunState.SUCCEEDED, chosen=True)
    rest = [replica for replica in step.run.replicas if not replica.state.is_terminal]
    if rest:
        step.record_run(RunState.STOPPING, "")
        step.end(rest, step.run.policy["stop_grace_s"])


def _named_by_ends_with(run: Run) -> list[Replica]:
    there = [replica for replica in run.replicas if not replica.dropped and not replica.missing]
    trainers = [replica for replica in there if replica.trainer]
    if run.policy["ends_with"] == "chief":
        chiefs = [replica for replica in there if replica.role == "chief"]
        first = [replica for replica in there if replica.role == "worker" and replica.number == 0]
        return chiefs or first or trainers or there
    return trainers if run.policy["ends_with"] == "trainers" and trainers else there


def _sweep(step: Step) -> None:
    """Orders all hosts to end the remaining processes when the grace period of ending replicas is over."""
    left_s = max(0.0, step.run.end_by - step.now)
    if step.run.outcome is RunState.SUCCEEDED:
        left_s = max(left_s, LEFTOVERS_GRACE_S)
    elif step.run.outcome is RunState.FAILED:
        left_s = max(left_s, LEFTOVERS_GRACE_AFTER_FAILURE_S)
    step.set(sweeping=True)
    for host in step.run.hosts:
        if not host.joined:
            step.set_host(host.name, swept=True)  # A host that has not received an assignment runs no processes.
        elif not host.lost:
            step.out.append(instructions.Sweep(host.name, left_s))
