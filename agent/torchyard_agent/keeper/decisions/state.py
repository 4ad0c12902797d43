"""The state of a run, from which decisions are made, and the transition that changes it.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torchyard_agent.keeper.decisions import instructions
from torchyard_agent.keeper.decisions.events import Cause
from torchyard_agent.keeper.decisions.instructions import Instruction
from torchyard_agent.protocol.messages import Policy, ReplicaPlan
from torchyard_agent.protocol.run_states import ReplicaState, RunState

COLLECT_S = 1.0
"""Failures within this many seconds after the first failure are candidates for the cause."""
NOTICED_WITHIN_S = 20.0
"""Time in seconds for which a server's failure counts as a possible cause of its trainers' failures.

Trainers detect the failure of a server within 10 s. The primary may detect the loss of a server's host later.
"""
KILL_AFTER_S = 1.5
"""Seconds from SIGTERM to SIGKILL for replicas that must end because another replica has failed or was lost."""

UP = "up"
"""The phase of a gang that is not being restarted: it is starting, running, has ended, or was dropped."""
FAILING = "failing"
"""The phase of a gang after the failure of a replica. The other replicas are ended after their grace period."""
CLEARING = "clearing"
"""The phase of a gang whose ranks have all ended, while its hosts end the processes that the ranks left behind."""
WAITING = "waiting"
"""The phase of a gang that is waiting for lost hosts, or for its servers."""


SERVERS = ("ps", "reducer")


class Replica(NamedTuple):
    name: str
    host: str
    role: str
    number: int
    """The number of the replica within its role."""
    gang: str
    trainer: bool
    pool: str = ""
    state: ReplicaState = ReplicaState.PENDING
    exit_code: int | None = None
    reason: str = ""
    failure: Cause | None = None
    """The failure of one of the replica's ranks, unless the rank had been ordered to end."""
    restarts: int = 0
    dropped: bool = False
    """Whether the gang is continuing without the replica, because its host was lost and did not return."""
    missing: bool = False
    """Whether the gang is continuing without the replica until the replica returns (`on_worker_loss: continue`)."""
    phase: str = ""
    """The phase of a lost replica's return (see `replica_return`)."""
    returns: int = 0
    """The number of times that the replica was started alone after a loss."""
    start_at: float = 0.0
    """The earliest time at which the lost replica is started."""
    added: bool = False
    """Whether the replica was added to the live run and has not been a member yet (see `growth_policy`)."""
    withdrawn: bool = False
    """Whether the addition of the replica has failed or was cancelled."""
    uncounted: int = 0
    """Number of `returns` that do not count as restarts: 1 if the replica was added later, otherwise 0."""


def replica_of(plan: ReplicaPlan) -> Replica:
    """Returns the initial state of a planned replica."""
    return Replica(plan["name"], plan["host"], plan["role"], plan["index"], plan["gang"], plan["trainer"], plan["pool"])


class Host(NamedTuple):
    name: str
    joined: bool = False
    connected: bool = True
    lost: bool = False
    wait_until: float = 0.0
    """The time until which gangs wait for the host if it is lost."""
    swept: bool = False
    """Whether no process of the run is left on the host."""
    ready: bool = True
    """Whether the host has locked the run's GPUs. Hosts of a scheduled run do this when the run starts."""
    held_by: str = ""
    """A description of the process that uses the GPUs if the host could not lock them, otherwise ""."""
    dismissed: bool = False
    """Whether the host was added to the live run and has left it, because no replica was added there."""
    own_job: bool = False
    """Whether the host belongs to a group job.

    A group job may start after the run, end before it, and start again on another node. While the job does not run, the
    host counts as lost, and the run continues on the other hosts.
    """


class Failure(NamedTuple):
    sentence: str
    """A description for users, such as "worker-1 on gpu-b: exited with 1: ValueError: bad" or "gpu-b was lost: …"."""
    consequence: bool = False
    curable: bool = True
    """Whether a restart may help."""


class Root(NamedTuple):
    """A server's failure. The server's trainers observe this failure as a lost connection."""

    at: float
    failure: Failure


class Gang(NamedTuple):
    """A set of replicas that are restarted together."""

    name: str
    phase: str = UP
    generation: int = 0
    """The number of times that the gang has been restarted."""
    failures: tuple[Failure, ...] = ()
    """The failures in this generation, in the order in which they were reported."""
    cause: str = ""
    """The reason why the gang is being restarted."""
    failed_at: float = 0.0
    """The time at which the first failure of this generation was reported."""
    clearing: tuple[str, ...] = ()
    """The hosts that have not yet reported that all processes of this generation have exited."""
    trains: bool = False
    """Whether all ranks of this generation have completed a step."""
    membership: int = 0
    """The number of the membership. It increases with each loss that causes no restart, and with each return."""
    announced: int = 0
    """The number of announced returns in this generation."""
    joined: int = 0
    """The number of the last announced return to which the members have responded at a step boundary."""


class Run(NamedTuple):
    """The complete state of a run, according to the events that the primary has received."""

    policy: Policy
    replicas: tuple[Replica, ...]
    hosts: tuple[Host, ...]
    gangs: tuple[Gang, ...]
    meeting_point: str = ""
    """The primary's `address:port`, which is shown in messages to the user."""
    lease_s: float = 10.0
    collect_s: float = COLLECT_S
    state: RunState = RunState.STARTING
    reason: str = ""
    scheduled: str = ""
    """A description of the planned start, such as "starts at 2026-11-22T09:00:00Z", or "" once the start is due."""
    only_if_idle: bool = False
    gpus_within_s: float = 600.0
    started: bool = False
    """Whether the ranks were ordered to start."""
    outcome: RunState | None = None
    """The terminal state of the run, which is set when its end is decided."""
    chosen: bool = False
    """Whether the cause of the outcome is decided. Later failures do not change it."""
    failures: tuple[Failure, ...] = ()
    roots: tuple[Root, ...] = ()
    """Recent failures of servers."""
    end_by: float = 0.0
    """The time at which the grace period of replicas that were ordered to end is over."""
    sweeping: bool = False

    def replica(self, name: str) -> Replica:
        return next(replica for replica in self.replicas if replica.name == name)

    def host(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def gang(self, name: str) -> Gang:
        return next(gang for gang in self.gangs if gang.name == name)

    def members(self, gang: Gang) -> list[Replica]:
        """Returns the gang's replicas, except the dropped ones."""
        return [replica for replica in self.replicas if replica.gang == gang.name and not replica.dropped]

    def servers(self) -> list[Replica]:
        """Returns the parameter servers and reducers, except the dropped ones."""
        return [replica for replica in self.replicas if replica.role in SERVERS and not replica.dropped]


class Step:
    """A transition in progress: the run as changed so far, and the instructions that have been issued."""

    def __init__(self, run: Run, now: float):
        self.run = run
        self.now = now
        self.out: list[Instruction] = []

    def set(self, **changes: Any) -> None:
        self.run = self.run._replace(**changes)

    def set_host(self, name: str, **changes: Any) -> None:
        self.set(hosts=tuple(host._replace(**changes) if host.name == name else host for host in self.run.hosts))

    def set_gang(self, name: str, **changes: Any) -> Gang:
        self.set(gangs=tuple(gang._replace(**changes) if gang.name == name else gang for gang in self.run.gangs))
        return self.run.gang(name)

    def set_replica(self, name: str, **changes: Any) -> None:
        """Changes a replica, and issues an instruction to journal its state if the state has changed."""
        before = self.run.replica(name)
        after = before._replace(**changes)
        self.set(replicas=tuple(after if one is before else one for one in self.run.replicas))
        if after.state is not before.state:
            self.record_replica(after)

    def record_replica(self, replica: Replica) -> None:
        self.out.append(
            instructions.RecordReplicaState(
                replica.name, replica.host, replica.state, replica.exit_code, replica.reason, replica.restarts
            )
        )

    def record_run(self, state: RunState, reason: str, waits: instructions.HostWait | None = None) -> None:
        self.set(state=state, reason=reason)
        self.out.append(instructions.RecordRunState(state, reason, waits))

    def end(self, replicas: Iterable[Replica], grace_s: float) -> None:
        """Instructs hosts to end replicas. Replicas that have not started become `stopped` immediately."""
        by_host: dict[str, list[str]] = {}
        for replica in replicas:
            if replica.state is ReplicaState.PENDING:
                self.set_replica(replica.name, state=ReplicaState.STOPPED)
            elif not replica.state.is_terminal:
                self.set_replica(replica.name, state=ReplicaState.STOPPING)
                by_host.setdefault(replica.host, []).append(replica.name)
        self.set(end_by=self.now + grace_s)
        for host, names in by_host.items():
            is_stop = self.run.outcome in (RunState.STOPPED, RunState.SUCCEEDED)
            self.out.append(instructions.EndRanks(host, tuple(names), grace_s, is_stop))

    def recent_roots(self) -> tuple[Root, ...]:
        return tuple(root for root in self.run.roots if self.now - root.at <= NOTICED_WITHIN_S)

    def fail(self, failure: Failure) -> None:
        """Ends the run because of a failure.

        Until the cause is chosen, further failures are added to the candidates.
        """
        if self.run.outcome is None:
            self.set(outcome=RunState.FAILED, failures=(failure,))
            self.out.append(instructions.SetTimer(instructions.CHOOSE, self.run.collect_s))
            self.out.append(instructions.SetTimer(instructions.GRACE, self.run.policy["failure_grace_s"]))
        elif self.run.outcome is RunState.FAILED and not self.run.chosen:
            self.set(failures=(*self.run.failures, failure))
