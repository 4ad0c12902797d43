"""Decides how a gang ends after a failure and is restarted. No I/O.

    up ──failure, loss──> failing (grace, SIGTERM, SIGKILL) ──all ended──> clearing ──nothing left──> waiting ──> up
                                                                                        for lost hosts ┘

Two generations of a gang never run at the same time. A gang is restarted only when every connected host has reported
that it runs no process of the gang, and every other host has been unreachable for longer than the sum of its lease and
the time that its ranks need to exit. Trainers are restarted only when all servers and reducers are running. Otherwise
the trainers would use up their restarts while a server is missing. Servers that exited after the trainers are restarted
first.
"""

from __future__ import annotations

from torchyard_agent.keeper.decisions import instructions, replica_return
from torchyard_agent.keeper.decisions.events import GangCleared, GangTrains
from torchyard_agent.keeper.decisions.failure_cause import most_likely_cause
from torchyard_agent.keeper.decisions.state import (
    CLEARING,
    FAILING,
    KILL_AFTER_S,
    UP,
    WAITING,
    Failure,
    Gang,
    Replica,
    Root,
    Run,
    Step,
)
from torchyard_agent.protocol.run_states import ReplicaState, RunState

LEFTOVERS_GRACE_S = 0.5
"""Grace period in seconds for processes that failed ranks left behind."""
SAFETY_S = 1.0
"""Safety margin in seconds for differences between the clocks of hosts.

It is added to a lost host's lease and the time that its ranks need to exit.
"""


def handle_failure(step: Step, gang: Gang, failure: Failure, replica: Replica | None = None) -> bool:
    """Begins a restart of the gang, adds the failure to a restart in progress, or continues without the replica.

    Returns:
        Whether one of these was possible. If not, the caller ends the run, unless an evaluator has failed.
    """
    if step.run.outcome is not None:
        return False
    if replica is not None and replica.missing:
        replica_return.on_failed(step, replica)
        return True
    _remember_root(step, gang, failure)
    if gang.phase == FAILING:
        step.set_gang(gang.name, failures=(*gang.failures, failure))
        return True
    if replica is not None and _may_continue_without(step.run, gang, replica, failure):
        _continue_without(step, gang, replica, failure)
        return True
    if gang.phase != UP or not failure.curable or not _may_restart(step.run, gang):
        return False
    step.set_gang(gang.name, phase=FAILING, failures=(failure,), failed_at=step.now)
    if failure.consequence and _trains(step.run, gang) and step.run.servers():
        step.out.append(
            instructions.SetTimer(instructions.EXPLAIN, step.run.lease_s + SAFETY_S, gang.name, gang.generation)
        )
    grace_s = step.run.policy["failure_grace_s"]
    step.out.append(instructions.SetTimer(instructions.GANG_GRACE, grace_s, gang.name, gang.generation))
    return True


def _may_continue_without(run: Run, gang: Gang, replica: Replica, failure: Failure) -> bool:
    """Returns whether a gang of trainers continues without a lost replica, as `on_worker_loss: continue` specifies.

    The replica's pool must keep its `min_replicas`, and all other replicas of the gang must be running. If a replica
    has already ended with 0, the gang is about to end. It is then restarted, because the lost replica may be the one
    that saves the last checkpoint.
    """
    if run.policy.get("on_worker_loss") != "continue" or gang.phase != UP or not gang.trains or not failure.curable:
        return False
    left = [one for one in run.members(gang) if one.name != replica.name and not one.missing]
    least = run.policy["min_replicas"].get(replica.pool)
    enough = least is not None and sum(one.pool == replica.pool for one in left) >= least
    is_running = all(one.state is ReplicaState.RUNNING and one.failure is None for one in left)
    if replica.returns and run.members(gang)[0].state is ReplicaState.SUCCEEDED:
        # The chief has finished and the last checkpoint is saved. From now on, the failure of a returned replica is
        # harmless, because its script may not end together with the others.
        is_running = all(one.state in (ReplicaState.RUNNING, ReplicaState.SUCCEEDED) for one in left)
    return replica.trainer and not replica.missing and enough and bool(left) and is_running


def _continue_without(step: Step, gang: Gang, replica: Replica, failure: Failure) -> None:
    step.set_replica(replica.name, missing=True)
    replica_return.record_membership(step, gang, failure.sentence)
    replica_return.on_failed(step, replica)


def on_trains(step: Step, event: GangTrains) -> None:
    if step.run.gang(event.gang).generation == event.generation:
        step.set_gang(event.gang, trains=True)


def _remember_root(step: Step, gang: Gang, failure: Failure) -> None:
    """Records a server's failure, which may later turn out to be the cause of its trainers' failures."""
    if not failure.consequence and any(one.gang == gang.name for one in step.run.servers()):
        step.set(roots=(*step.recent_roots(), Root(step.now, failure)))


def _trains(run: Run, gang: Gang) -> bool:
    return any(one.trainer for one in run.members(gang))


def _is_unexplained(step: Step, gang: Gang) -> bool:
    """Returns whether trainers have lost their connection to a server whose own failure may not be known yet.

    The loss of a server's host becomes known only after the lease. If trainers were restarted earlier, they would fail
    again.
    """
    if not step.run.servers() or not _trains(step.run, gang):
        return False
    over = step.now >= gang.failed_at + step.run.lease_s + SAFETY_S
    return not over and most_likely_cause(step, gang.failures).consequence


def _may_restart(run: Run, gang: Gang) -> bool:
    return gang.generation < run.policy["max_restarts"]


def on_grace(step: Step, gang: Gang, generation: int) -> None:
    """Ends the gang's remaining replicas. Called when their grace period is over."""
    if gang.phase == FAILING and gang.generation == generation:
        members = step.run.members(gang)
        step.end([one for one in members if one.state is not ReplicaState.STOPPING], KILL_AFTER_S)


def on_cleared(step: Step, event: GangCleared) -> None:
    gang = step.run.gang(event.gang)
    if gang.generation == event.generation:
        step.set_gang(gang.name, clearing=tuple(name for name in gang.clearing if name != event.host))


def on_host_lost(step: Step, host: str) -> None:
    """Sets the time until which gangs wait for a lost host.

    At that time, all ranks of the host have certainly exited.
    """
    safe_s = step.run.lease_s + KILL_AFTER_S + SAFETY_S
    wait_s = max(step.run.policy["host_wait_s"], safe_s)
    step.set_host(host, wait_until=step.now + wait_s)
    step.out.append(instructions.SetTimer(instructions.HOST_WAIT, wait_s))
    for gang in step.run.gangs:
        step.set_gang(gang.name, clearing=tuple(name for name in gang.clearing if name != host))
    replica_return.on_host_lost(step, host)


def settle(step: Step) -> None:
    """Advances every gang to its next phase where possible."""
    _end_with_too_few(step)
    for name in [gang.name for gang in sorted(step.run.gangs, key=lambda gang: _trains(step.run, gang))]:
        if step.run.outcome is not None:
            return
        gang = step.run.gang(name)
        ended = all(one.state.is_terminal for one in step.run.members(gang))
        if gang.phase == FAILING and ended and not _is_unexplained(step, gang):
            gang = _clear(step, gang)
        if gang.phase == CLEARING and not gang.clearing:
            gang = step.set_gang(name, phase=WAITING)
            _announce_wait(step, gang)
        elif gang.phase == UP and gang.trains:
            replica_return.settle(step, gang)
        elif gang.phase == UP and _may_return(step.run, gang):
            hosts = dict.fromkeys(one.host for one in step.run.replicas if one.gang == name)
            how = f"joined: the job of {name} has started" if _is_own_job(step.run, gang) else "came back"
            gang = _begin_clearing(step, gang, f"{' and '.join(hosts)} {how}")
            gang = step.set_gang(name, phase=WAITING)
        if gang.phase == WAITING:
            _restart(step, gang)


def _clear(step: Step, gang: Gang) -> Gang:
    """Determines why the gang must be restarted, and ends the processes that the gang's replicas left behind.

    Called when all replicas of the gang have ended. If a restart would not help, the run ends.
    """
    cause = most_likely_cause(step, gang.failures)
    if not cause.curable:
        step.fail(cause)
        return gang
    return _begin_clearing(step, gang, cause.sentence)


def _begin_clearing(step: Step, gang: Gang, cause: str) -> Gang:
    members = step.run.members(gang)
    hosts: dict[str, list[str]] = {}
    for one in members:
        place = step.run.host(one.host)
        if not place.lost and place.joined:
            hosts.setdefault(one.host, []).append(one.name)
    gang = step.set_gang(gang.name, phase=CLEARING, cause=cause, clearing=tuple(hosts))
    step.out.append(instructions.RecordGangRestart(gang.name, gang.generation + 1, cause))
    if any(one.trainer for one in members) and not _others_train(step.run, gang):
        step.record_run(RunState.RESTARTING, cause)
    for host, names in hosts.items():
        step.out.append(instructions.ClearGang(host, gang.name, gang.generation, tuple(names), LEFTOVERS_GRACE_S))
    return gang


def trainers_are_up(run: Run) -> bool:
    """Returns whether no gang of trainers is being restarted."""
    return all(run.gang(one.gang).phase == UP for one in run.replicas if one.trainer)


def _others_train(run: Run, gang: Gang) -> bool:
    """Returns whether a trainer of another gang is running. The run's state then remains `running`."""
    return any(one.trainer and one.gang != gang.name and one.state is ReplicaState.RUNNING for one in run.replicas)


def _lost_hosts(run: Run, gang: Gang) -> list[str]:
    members = [replica for replica in run.replicas if replica.gang == gang.name and not replica.added]
    return [host.name for host in run.hosts if host.lost and any(one.host == host.name for one in members)]


def _announce_wait(step: Step, gang: Gang) -> None:
    lost = _lost_hosts(step.run, gang)
    if _trains(step.run, gang):
        others = [step.run.gang(one.gang) for one in step.run.servers()]
        missing = [name for other in others if other.phase != UP for name in _lost_hosts(step.run, other)]
        lost = list(dict.fromkeys((*lost, *missing)))
    wait_s = max((step.run.host(name).wait_until - step.now for name in lost), default=0.0)
    if lost and wait_s > 0 and step.run.state is RunState.RESTARTING:
        waiting = f"waiting up to {wait_s:.0f} s for {' and '.join(lost)} to come back"
        waits = instructions.HostWait(tuple(lost), wait_s, gang.cause)
        step.record_run(RunState.RESTARTING, f"{gang.cause}; {waiting}", waits)
        step.out.append(instructions.NotifyUser(step.run.reason))


def _restart(step: Step, gang: Gang) -> None:
    """Starts the next generation of a gang, without the lost hosts if the wait for them is over.

    If the run cannot continue without the lost hosts, it ends.
    """
    lost = _lost_hosts(step.run, gang)
    if any(step.run.host(name).wait_until > step.now for name in lost):
        return
    if _trains(step.run, gang) and not _servers_are_up(step):
        return
    members = [replica for replica in step.run.replicas if replica.gang == gang.name and not replica.added]
    without = [one for one in members if one.host in lost]
    if without:
        too_few = _too_few(step.run, without)
        if too_few is not None:
            _give_up(step, gang, members, too_few)
            return
    taking_part = [one for one in members if one.host not in lost]
    if not taking_part and not _is_dispensable(step.run, members):
        _give_up(step, gang, members, f"{' and '.join(lost)} did not come back")
        return
    for one in without:
        step.set_replica(one.name, dropped=True)
    if not taking_part:
        step.set_gang(gang.name, phase=UP, failures=(), cause="")
        return
    step.set_gang(
        gang.name, phase=UP, generation=gang.generation + 1, failures=(), cause="", trains=False, membership=0
    )
    step.set_gang(gang.name, announced=0, joined=0)
    if any(one.added for one in step.run.members(gang)):
        from torchyard_agent.keeper.decisions import growth_policy  # Imported only when hosts are added.

        growth_policy.on_restart(step, gang)
    for one in taking_part:
        step.set_replica(
            one.name,
            state=ReplicaState.STARTING,
            exit_code=None,
            reason="",
            failure=None,
            restarts=one.restarts + (one.state is not ReplicaState.PENDING),
            dropped=False,
            missing=False,
            phase="",
        )
    step.out.append(instructions.StartGang(gang.name, gang.generation + 1, tuple(one.name for one in taking_part)))


def _servers_are_up(step: Step) -> bool:
    """Returns whether all servers are running, and restarts servers that ended after their trainers had disconnected.

    A server that ends after its trainers has not failed, so it is restarted even if it has no restarts left.
    """
    are_up = True
    for one in step.run.servers():
        gang = step.run.gang(one.gang)
        if gang.phase == UP and one.state is ReplicaState.SUCCEEDED:
            _begin_clearing(step, gang, "its trainers start again")
        are_up = are_up and step.run.gang(one.gang).phase == UP
    return are_up


def _is_dispensable(run: Run, members: list[Replica]) -> bool:
    """Returns whether the run can continue without the gang `members`: a worker group other than the chief's."""
    chief = next((one.gang for one in run.replicas if one.trainer), None)
    return all(one.trainer and one.gang != chief for one in members)


def _may_return(run: Run, gang: Gang) -> bool:
    """Returns whether a gang that the run dropped can be restarted because all its hosts have returned."""
    if not run.started or run.members(gang) or _lost_hosts(run, gang):
        return False
    if not _is_own_job(run, gang):
        return _may_restart(run, gang)
    there = [one.state for one in run.replicas if one.gang == gang.name]
    return all(state.is_terminal or state is ReplicaState.PENDING for state in there)


def _is_own_job(run: Run, gang: Gang) -> bool:
    """Returns whether the gang's hosts belong to a group job."""
    return any(run.host(one.host).own_job for one in run.replicas if one.gang == gang.name)


def leave(step: Step, host: str, why: str) -> None:
    """Continues without the worker groups on `host`, whose group job has ended, until the job starts again.

    This counts neither as a restart nor as a failure. The ranks of these groups on other hosts are ended.
    """
    for name in dict.fromkeys(one.gang for one in step.run.replicas if one.host == host):
        for one in step.run.replicas:  # The replicas of a group that was dropped earlier may still be ending.
            is_there = one.gang == name and one.host == host and one.state is not ReplicaState.PENDING
            if is_there and not one.state.is_terminal:
                step.set_replica(one.name, state=ReplicaState.LOST, reason=why)
        members = step.run.members(step.run.gang(name))
        if all(one.state is ReplicaState.SUCCEEDED for one in members):
            continue
        step.set_gang(name, phase=UP, failures=(), cause="", clearing=(), trains=False)
        if step.run.outcome is None:
            step.end(members, KILL_AFTER_S)
        for one in members:
            step.set_replica(one.name, dropped=True)


def _end_with_too_few(step: Step) -> None:
    """Ends the run if group jobs did not start again in time and a pool has fewer replicas than `min_replicas`."""
    over = [host for host in step.run.hosts if host.own_job and host.lost and host.wait_until <= step.now]
    names = {host.name for host in over if host.joined}
    without = [one for one in step.run.replicas if one.host in names and one.dropped]
    too_few = _too_few(step.run, without) if step.run.started and step.run.outcome is None else None
    if too_few is not None:
        step.fail(Failure(too_few, curable=False))


def _too_few(run: Run, without: list[Replica]) -> str | None:
    """Returns the reason why the run cannot continue without the replicas in `without`, or None if it can."""
    lost = {host.name for host in run.hosts if host.lost}
    for pool in dict.fromkeys(one.pool for one in without if one.role != "evaluator"):
        there = [one for one in run.replicas if one.pool == pool and not one.dropped and not one.added]
        left = sum(one.host not in lost for one in there)
        enough = run.policy["min_replicas"].get(pool)
        hosts = " and ".join(dict.fromkeys(one.host for one in without if one.pool == pool))
        if enough is None:
            return f"{hosts} did not come back, and the pool {pool} has no `min_replicas` to continue with fewer"
        if left < enough:
            return (
                f"{hosts} did not come back, and the pool {pool} needs {enough} replicas (`min_replicas`): {left} left"
            )
    return None


def _give_up(step: Step, gang: Gang, members: list[Replica], why: str) -> None:
    if all(one.role == "evaluator" for one in members):
        step.set_gang(gang.name, phase=UP)  # A run continues even if its evaluators are lost.
        return
    step.fail(Failure(f"{gang.cause}; {why}" if gang.cause else why))
