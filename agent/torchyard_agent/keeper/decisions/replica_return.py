"""Decides how lost replicas return to a gang that continues without them. No I/O.

    member ──loss──> GONE ──all ranks ended, host connected──> CLEARING ──nothing left──> PAUSING ──failure_grace_s──>
    STARTED ──its ranks have distributed their model──> READY ──the members are at a step boundary──> member

A replica is started again at most `max_restarts` times. If a replica fails before it is a member, the members are not
affected, and the replica is started again unless this limit is reached.
"""

from __future__ import annotations

from torchyard_agent.keeper.decisions import instructions
from torchyard_agent.keeper.decisions.events import BoundaryReached, GangCleared, ReplicaReady
from torchyard_agent.keeper.decisions.state import UP, Gang, Replica, Run, Step
from torchyard_agent.protocol.run_states import ReplicaState

GONE = "gone"
"""The phase of a lost replica whose ranks may still run, and whose host may be lost."""
CLEARING = "clearing"
"""The phase in which a host ends the processes that a lost replica left behind."""
PAUSING = "pausing"
"""The phase of a lost replica whose restart delay (`failure_grace_s`) has not elapsed yet."""
STARTED = "started"
"""The phase of a replica that was started and is preparing its training."""
READY = "ready"
"""The phase of a replica that is waiting for the training state of its peers."""
LEFTOVERS_GRACE_S = 0.5
"""Grace period in seconds for processes that lost ranks left behind."""
TOLERANCE_S = 0.001
"""Number of seconds by which a timer may fire before the time that was computed for it."""


def record_membership(step: Step, gang: Gang, cause: str) -> None:
    """Gives the gang's current membership the next number, and instructs the primary to announce it."""
    gang = step.set_gang(gang.name, membership=gang.membership + 1)
    members = step.run.members(gang)
    there = tuple(one.name for one in members if not one.missing)
    lost = tuple(one.name for one in members if one.missing and not one.added)
    step.out.append(
        instructions.RecordMembership(
            gang.name, gang.generation, gang.membership, there, lost, cause, joined=gang.joined
        )
    )


def on_failed(step: Step, replica: Replica) -> None:
    """Ends the ranks of a replica that was lost, or that failed before it became a member again."""
    step.set_replica(replica.name, phase=GONE)
    if not step.run.host(replica.host).lost:
        step.out.append(instructions.EndRanks(replica.host, (replica.name,), 0.0))


def on_host_lost(step: Step, host: str) -> None:
    """Makes replicas wait for their lost host to return.

    Until then, the host cannot report that their processes have ended.
    """
    for one in step.run.replicas:
        if one.host == host and one.phase == CLEARING:
            step.set_replica(one.name, phase=GONE)


def settle(step: Step, gang: Gang) -> None:
    """Begins the return of the lost replicas whose ranks have all ended."""
    for one in step.run.members(gang):
        # If a replica ends before it is a member, it has not returned, even if its exit code is 0.
        is_gone = one.missing and one.state.is_terminal and one.phase in (GONE, STARTED, READY)
        if is_gone and not step.run.host(one.host).lost and may_start(step, gang, one):
            step.set_replica(one.name, phase=CLEARING)
            order = instructions.ClearGang(one.host, one.name, gang.generation, (one.name,), LEFTOVERS_GRACE_S)
            step.out.append(order)


def may_start(step: Step, gang: Gang, replica: Replica) -> bool:
    """Returns whether a lost replica may be started. All members must be running, and it must have restarts left."""
    left = [one for one in step.run.members(gang) if not one.missing]
    train = all(one.state is ReplicaState.RUNNING and one.failure is None for one in left)
    allowed = not replica.withdrawn and not is_exhausted(step.run, replica)
    return train and gang.phase == UP and step.run.outcome is None and allowed


def is_exhausted(run: Run, replica: Replica) -> bool:
    """Returns whether the replica has been started alone as often as `max_restarts` allows."""
    return replica.returns >= run.policy["max_restarts"] + replica.uncounted


def on_cleared(step: Step, event: GangCleared) -> None:
    """Begins a replica's restart delay when none of its earlier processes is left."""
    replica = step.run.replica(event.gang)
    gang = step.run.gang(replica.gang)
    if replica.phase == CLEARING and gang.generation == event.generation:
        pause_s = step.run.policy["failure_grace_s"]
        step.set_replica(replica.name, phase=PAUSING, start_at=step.now + pause_s)
        step.out.append(instructions.SetTimer(instructions.RETURN, pause_s, gang.name, gang.generation))


def on_pause_over(step: Step, gang: Gang, generation: int) -> None:
    """Restarts the lost replicas whose restart delay has elapsed."""
    if gang.generation != generation:
        return
    for one in step.run.members(gang):
        if one.phase != PAUSING or step.now < one.start_at - TOLERANCE_S:
            continue
        if step.run.host(one.host).lost or not may_start(step, gang, one):
            step.set_replica(one.name, phase=GONE)
        else:
            start(step, gang, one, restarts=one.restarts + 1)


def start(step: Step, gang: Gang, replica: Replica, restarts: int) -> None:
    """Starts a replica alone, in the current generation of its gang."""
    step.set_replica(
        replica.name,
        state=ReplicaState.STARTING,
        exit_code=None,
        reason="",
        failure=None,
        restarts=restarts,
        phase=STARTED,
        returns=replica.returns + 1,
    )
    step.out.append(instructions.StartReplica(gang.name, gang.generation, replica.name, replica.returns + 1))


def on_ready(step: Step, event: ReplicaReady) -> None:
    """Announces to the members that a replica is ready to join them."""
    replica = step.run.replica(event.replica)
    if replica.phase == STARTED and replica.returns == event.attempt and not replica.state.is_terminal:
        step.set_replica(replica.name, phase=READY)
        gang = step.run.gang(replica.gang)
        gang = step.set_gang(gang.name, announced=gang.announced + 1)
        step.out.append(instructions.AnnounceReturn(gang.name, gang.generation, gang.announced))


def on_boundary(step: Step, event: BoundaryReached) -> None:
    """Makes the replicas that are ready members of their gang.

    The members wait at the step boundary for a new membership, which is sent even if no replica is ready any more.
    """
    gang = step.run.gang(event.gang)
    if gang.generation != event.generation or gang.phase != UP or event.number <= gang.joined:
        return
    ready = [
        one
        for one in step.run.members(gang)
        if one.phase == READY and one.state is ReplicaState.RUNNING and one.failure is None
    ]
    for one in ready:
        step.set_replica(one.name, missing=False, phase="", added=False)
    # Replicas that were announced after the members had responded become members too.
    gang = step.set_gang(gang.name, joined=gang.announced)
    back, new = [one.name for one in ready if not one.added], [one.name for one in ready if one.added]
    parts = [
        *([f"{' and '.join(back)} {'is' if len(back) == 1 else 'are'} back"] if back else []),
        *([f"{' and '.join(new)} {'has' if len(new) == 1 else 'have'} joined"] if new else []),
    ]
    record_membership(step, gang, " and ".join(parts) or "a worker was lost again before its return")
