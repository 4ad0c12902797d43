"""Decides how replicas are added to a live run with `on_worker_loss: continue`. No I/O.

    ADDED ──its host has joined──> STARTED ──> READY ──at a step boundary──> member     (see `replica_return`)
      └──its host did not join, its attempts are used up, or the user has interrupted the command──> withdrawn

An added replica does not affect the others until it is a member: restarts begin without it, and it joins their next
generation. As a member, it is a replica like any other.
"""

from __future__ import annotations

from torchyard_agent.keeper.decisions import instructions, replica_return
from torchyard_agent.keeper.decisions.events import ReplicasAdded, ReplicasWithdrawn, TimerFired
from torchyard_agent.keeper.decisions.state import KILL_AFTER_S, UP, Gang, Host, Replica, Run, Step, replica_of
from torchyard_agent.protocol.run_states import ReplicaState, RunState

ADDED = "added"
"""The phase in which an added replica waits for its host to join."""


def refusal(run: Run, host: str) -> str:
    """Returns the reason why no worker can be added on this host now, worded as a clause, or "" if one can be added."""
    if run.outcome is not None or run.state.is_terminal or not run.started:
        return f"it is {run.state.value}"
    if run.policy.get("on_worker_loss") != "continue":
        return "only a run with `on_worker_loss: continue` takes workers while it trains"
    gang = next((run.gang(one.gang) for one in run.replicas if one.trainer), None)
    if gang is None:
        return "it has no workers"
    members = [one for one in run.members(gang) if not one.missing]
    if gang.phase != UP or run.state is not RunState.RUNNING:
        return "its workers are being restarted"
    if not gang.trains:
        return "its workers have not completed a step together yet; a single worker trains alone and cannot be joined"
    if any(one.state is not ReplicaState.RUNNING for one in members):
        return "it is at its end: a worker has ended"
    known = next((one for one in run.hosts if one.name == host), None)
    if known is not None and known.lost and not known.dismissed:
        return f"{host} is lost"
    return ""


def is_new_host(run: Run, host: str) -> bool:
    """Returns whether a host is not a member of the run, or has left it."""
    return all(one.name != host or one.dismissed for one in run.hosts)


def apply(step: Step, event: ReplicasAdded | ReplicasWithdrawn | TimerFired | None) -> None:
    """Applies an event about added replicas.

    If `event` is None, only the changes that follow from the current state are made.
    """
    if isinstance(event, ReplicasAdded):
        _on_added(step, event)
    elif isinstance(event, ReplicasWithdrawn):
        _on_withdrawn(step, event)
    elif event is not None:
        _on_join_timeout(step)
    else:
        for gang in step.run.gangs:
            if gang.phase == UP and gang.trains:
                _settle(step, gang)
        _dismiss_hosts(step)


def _on_added(step: Step, event: ReplicasAdded) -> None:
    """Adds replicas. Also adds their host if it is new or has left the run."""
    if refusal(step.run, event.host):
        return
    if is_new_host(step.run, event.host):
        others = tuple(host for host in step.run.hosts if host.name != event.host)
        step.set(hosts=(*others, Host(event.host, wait_until=step.now + event.join_within_s)))
        step.out.append(instructions.SetTimer(instructions.JOIN_ADDED, event.join_within_s))
    for plan in event.replicas:
        replica = replica_of(plan)._replace(missing=True, added=True, phase=ADDED, uncounted=1)
        step.set(replicas=(*step.run.replicas, replica))
        step.record_replica(replica)


def _on_withdrawn(step: Step, event: ReplicasWithdrawn) -> None:
    """Withdraws the replicas that the event names, except those that are already members."""
    for one in step.run.replicas:
        if one.name in event.replicas and one.added and not one.withdrawn:
            _withdraw(step, one, event.why)


def _on_join_timeout(step: Step) -> None:
    """Withdraws the replicas of added hosts that did not join in time."""
    for host in step.run.hosts:
        if not host.joined and step.run.started and step.now >= host.wait_until - replica_return.TOLERANCE_S:
            primary = step.run.hosts[0].name
            why = f"{host.name} did not reach the primary {primary} at {step.run.meeting_point} in time"
            for one in step.run.replicas:
                if one.host == host.name and not one.withdrawn:
                    _withdraw(step, one, why)


def _withdraw(step: Step, replica: Replica, why: str) -> None:
    step.set_replica(replica.name, withdrawn=True, phase="")
    step.out.append(instructions.RecordWithdrawal(replica.name, why))
    if replica.state is ReplicaState.PENDING:
        step.set_replica(replica.name, state=ReplicaState.STOPPED, reason=why)
    elif not replica.state.is_terminal:
        step.set_replica(replica.name, state=ReplicaState.STOPPING, reason=why)
        step.out.append(instructions.EndRanks(replica.host, (replica.name,), KILL_AFTER_S))


def _settle(step: Step, gang: Gang) -> None:
    """Starts added replicas whose host has joined, and withdraws those that may not be started again."""
    for one in step.run.replicas:
        if not one.added or one.withdrawn or one.gang != gang.name:
            continue
        host = step.run.host(one.host)
        if one.phase == ADDED and host.joined and not host.lost and replica_return.may_start(step, gang, one):
            replica_return.start(step, gang, one, restarts=one.restarts)
        elif one.state.is_terminal and replica_return.is_exhausted(step.run, one):
            _withdraw(step, one, one.reason)


def on_restart(step: Step, gang: Gang) -> None:
    """Prepares added replicas for joining the gang's next generation, and drops the withdrawn ones."""
    for one in step.run.members(gang):
        if one.withdrawn:
            step.set_replica(one.name, dropped=True)
        elif one.added:
            step.set_replica(one.name, state=ReplicaState.PENDING, exit_code=None, reason="", failure=None, phase=ADDED)


def _dismiss_hosts(step: Step) -> None:
    """Dismisses each host whose replicas were all withdrawn and have ended."""
    if step.run.outcome is not None:
        return
    for name in dict.fromkeys(one.host for one in step.run.replicas if one.withdrawn):
        there = [one for one in step.run.replicas if one.host == name]
        is_empty = all(one.withdrawn and one.state.is_terminal for one in there)
        if is_empty and not step.run.host(name).dismissed:
            step.set_host(name, dismissed=True, lost=True, connected=False)
            step.out.append(instructions.DismissHost(name, f"not added to the run: {there[-1].reason}"))
