"""How a gang ends after a failure and starts again. Pure, as all that decides.

    up ──failure, loss──> failing (grace, SIGTERM, SIGKILL) ──all ended──> clearing ──nothing left──> waiting ──> up
                                                                                        for lost hosts ┘

A gang starts again only once nothing of it is left anywhere: every host that can be reached has said so, and one that
cannot has been silent for longer than its own lease and its ranks' end take. Never two generations at once.

Trainers start again only once all servers and reducers are up, those too that had ended because the trainers had: or
they would lose one restart after the other to a server that is not there yet.
"""

from __future__ import annotations

from torchyard_agent.keeper.decisions import events
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

TIDY_S = 0.5
"""What failed ranks left behind has this long to end by itself."""
SAFETY_S = 1.0
"""Beyond a lost host's lease and its ranks' end: clocks are read at different moments."""


def take_failure(step: Step, gang: Gang, failure: Failure) -> bool:
    """Whether the gang takes it upon itself; False where the run has to end over it."""
    if step.run.outcome is not None:
        return False
    _remember(step, gang, failure)
    if gang.phase == FAILING:
        step.set_gang(gang.name, failures=(*gang.failures, failure))
        return True
    if gang.phase != UP or not failure.curable or not _may_restart(step.run, gang):
        return False
    step.set_gang(gang.name, phase=FAILING, failures=(failure,), failed_at=step.now)
    if failure.consequence and _trains(step.run, gang) and step.run.servers():
        step.out.append(events.Wait(events.EXPLAIN, step.run.lease_s + SAFETY_S, gang.name, gang.generation))
    grace_s = step.run.policy["failure_grace_s"]
    step.out.append(events.Wait(events.GANG_GRACE, grace_s, gang.name, gang.generation))
    return True


def _remember(step: Step, gang: Gang, failure: Failure) -> None:
    """A server's failure, in case trainers fail over it."""
    if not failure.consequence and any(one.gang == gang.name for one in step.run.servers()):
        step.set(roots=(*step.recent_roots(), Root(step.now, failure)))


def _trains(run: Run, gang: Gang) -> bool:
    return any(one.trainer for one in run.members(gang))


def _is_unexplained(step: Step, gang: Gang) -> bool:
    """Whether trainers say that they lost a server, and it may yet come out what became of it.

    Where the server's host was cut off, its loss is known only after the lease. Trainers that started again before
    would not find it, and lose another restart.
    """
    if not step.run.servers() or not _trains(step.run, gang):
        return False
    over = step.now >= gang.failed_at + step.run.lease_s + SAFETY_S
    return not over and step.first_cause(gang.failures).consequence


def _may_restart(run: Run, gang: Gang) -> bool:
    return gang.generation < run.policy["max_restarts"]


def on_grace(step: Step, gang: Gang, generation: int) -> None:
    """Those that did not fail had their time to end on their own."""
    if gang.phase == FAILING and gang.generation == generation:
        members = step.run.members(gang)
        step.end([one for one in members if one.state is not ReplicaState.STOPPING], KILL_AFTER_S)


def on_cleared(step: Step, host: str, gang: Gang, generation: int) -> None:
    if gang.generation == generation:
        step.set_gang(gang.name, clearing=tuple(name for name in gang.clearing if name != host))


def on_host_lost(step: Step, host: str) -> None:
    """From when on a lost host is neither waited for nor feared."""
    safe_s = step.run.lease_s + KILL_AFTER_S + SAFETY_S
    wait_s = max(step.run.policy["host_wait_s"], safe_s)
    step.set_host(host, wait_until=step.now + wait_s)
    step.out.append(events.Wait(events.HOST_WAIT, wait_s))
    for gang in step.run.gangs:
        step.set_gang(gang.name, clearing=tuple(name for name in gang.clearing if name != host))


def settle(step: Step) -> None:
    """Moves every gang on as far as it can go now."""
    for name in [gang.name for gang in sorted(step.run.gangs, key=lambda gang: _trains(step.run, gang))]:
        if step.run.outcome is not None:
            return
        gang = step.run.gang(name)
        ended = all(one.state.is_terminal for one in step.run.members(gang))
        if gang.phase == FAILING and ended and not _is_unexplained(step, gang):
            gang = _clear(step, gang)
        if gang.phase == CLEARING and not gang.clearing:
            gang = step.set_gang(name, phase=WAITING)
            _say_whom_it_waits_for(step, gang)
        elif gang.phase == UP and _is_wanted_back(step.run, gang):
            hosts = dict.fromkeys(one.host for one in step.run.replicas if one.gang == name)
            gang = _begin_clearing(step, gang, f"{' and '.join(hosts)} came back")
            gang = step.set_gang(name, phase=WAITING)
        if gang.phase == WAITING:
            _start_again(step, gang)


def _clear(step: Step, gang: Gang) -> Gang:
    """All have ended: one cause is chosen, and what they left behind is ended too."""
    cause = step.first_cause(gang.failures)
    if not cause.curable:
        step.fail(cause)
        return gang
    return _begin_clearing(step, gang, cause.sentence)


def _begin_clearing(step: Step, gang: Gang, cause: str) -> Gang:
    members = step.run.members(gang)
    hosts: dict[str, list[str]] = {}
    for one in members:
        if not step.run.host(one.host).lost:
            hosts.setdefault(one.host, []).append(one.name)
    gang = step.set_gang(gang.name, phase=CLEARING, cause=cause, clearing=tuple(hosts))
    step.out.append(events.TellGangRestart(gang.name, gang.generation + 1, cause))
    if any(one.trainer for one in members) and not _others_train(step.run, gang):
        step.tell_run(RunState.RESTARTING, cause)
    for host, names in hosts.items():
        step.out.append(events.Clear(host, gang.name, gang.generation, tuple(names), TIDY_S))
    return gang


def trainers_are_up(run: Run) -> bool:
    """Whether no trainer's gang is on its way to another start."""
    return all(run.gang(one.gang).phase == UP for one in run.replicas if one.trainer)


def _others_train(run: Run, gang: Gang) -> bool:
    """Whether another gang of trainers goes on meanwhile, so that the run is still running."""
    return any(one.trainer and one.gang != gang.name and one.state is ReplicaState.RUNNING for one in run.replicas)


def _lost_hosts(run: Run, gang: Gang) -> list[str]:
    members = [replica for replica in run.replicas if replica.gang == gang.name]
    return [host.name for host in run.hosts if host.lost and any(one.host == host.name for one in members)]


def _say_whom_it_waits_for(step: Step, gang: Gang) -> None:
    lost = _lost_hosts(step.run, gang)
    if _trains(step.run, gang):
        others = [step.run.gang(one.gang) for one in step.run.servers()]
        missing = [name for other in others if other.phase != UP for name in _lost_hosts(step.run, other)]
        lost = list(dict.fromkeys((*lost, *missing)))
    wait_s = max((step.run.host(name).wait_until - step.now for name in lost), default=0.0)
    if lost and wait_s > 0 and step.run.state is RunState.RESTARTING:
        waiting = f"waiting up to {wait_s:.0f} s for {' and '.join(lost)} to come back"
        waits = events.Waits(tuple(lost), wait_s, gang.cause)
        step.tell_run(RunState.RESTARTING, f"{gang.cause}; {waiting}", waits)
        step.out.append(events.AskForSomebody(step.run.reason))


def _start_again(step: Step, gang: Gang) -> None:
    """Starts the next generation: on all hosts, or without those that were waited for in vain."""
    lost = _lost_hosts(step.run, gang)
    if any(step.run.host(name).wait_until > step.now for name in lost):
        return
    if _trains(step.run, gang) and not _servers_are_up(step):
        return
    members = [replica for replica in step.run.replicas if replica.gang == gang.name]
    without = [one for one in members if one.host in lost]
    if without:
        too_few = _too_few(step.run, without)
        if too_few is not None:
            _give_up(step, gang, members, too_few)
            return
    taking_part = [one for one in members if one.host not in lost]
    if not taking_part and not _can_be_missed(step.run, members):
        _give_up(step, gang, members, f"{' and '.join(lost)} did not come back")
        return
    for one in without:
        step.set_replica(one.name, dropped=True)
    if not taking_part:
        step.set_gang(gang.name, phase=UP, failures=(), cause="")
        return
    step.set_gang(gang.name, phase=UP, generation=gang.generation + 1, failures=(), cause="")
    for one in taking_part:
        step.set_replica(
            one.name,
            state=ReplicaState.STARTING,
            exit_code=None,
            reason="",
            failure=None,
            restarts=one.restarts + 1,
            dropped=False,
        )
    step.out.append(events.StartGang(gang.name, gang.generation + 1, tuple(one.name for one in taking_part)))


def _servers_are_up(step: Step) -> bool:
    """Those that had ended by themselves, since their trainers had parted, are started again.

    That is no failure of theirs, and so happens even where they have no restart left.
    """
    are_up = True
    for one in step.run.servers():
        gang = step.run.gang(one.gang)
        if gang.phase == UP and one.state is ReplicaState.SUCCEEDED:
            _begin_clearing(step, gang, "its trainers start again")
        are_up = are_up and step.run.gang(one.gang).phase == UP
    return are_up


def _can_be_missed(run: Run, members: list[Replica]) -> bool:
    """Whether the other worker groups can go on without this one, as they can without all but the chief's."""
    chief = next((one.gang for one in run.replicas if one.trainer), None)
    return all(one.trainer and one.gang != chief for one in members)


def _is_wanted_back(run: Run, gang: Gang) -> bool:
    """Whether the run went on without the whole gang, all of whose hosts are there again."""
    if run.members(gang) or not _may_restart(run, gang):
        return False
    return not _lost_hosts(run, gang)


def _too_few(run: Run, without: list[Replica]) -> str | None:
    """Why the run cannot go on without these; None where it can."""
    lost = {host.name for host in run.hosts if host.lost}
    for pool in dict.fromkeys(one.pool for one in without if one.role != "evaluator"):
        left = sum(one.pool == pool and not one.dropped and one.host not in lost for one in run.replicas)
        enough = run.policy["min_replicas"].get(pool)
        hosts = " and ".join(dict.fromkeys(one.host for one in without if one.pool == pool))
        if enough is None:
            return f"{hosts} did not come back, and the pool {pool} has no `min_replicas` to go on with fewer"
        if left < enough:
            return (
                f"{hosts} did not come back, and the pool {pool} needs {enough} replicas (`min_replicas`): {left} left"
            )
    return None


def _give_up(step: Step, gang: Gang, members: list[Replica], why: str) -> None:
    if all(one.role == "evaluator" for one in members):
        step.set_gang(gang.name, phase=UP)  # it stays as it is: an evaluator never ends a run
        return
    step.fail(Failure(f"{gang.cause}; {why}" if gang.cause else why))
