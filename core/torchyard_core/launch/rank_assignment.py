"""Determines the hosts, gangs and ranks of the replicas of a run from a topology and the facts of the hosts.

- A *gang* restarts together: all trainers of a synchronous strategy, or one worker group of an asynchronous strategy.
  Each replica of another role, such as a parameter server, is a separate gang.
- A *world* is the process group of torch.distributed: the trainers of one gang.
- Launcher `torch` starts one rank per GPU of a trainer, or one rank if the trainer has no GPUs. Every other replica,
  and every replica with launcher `command`, has one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchyard_core.problems import LineOf, Problem, has_errors, no_lines
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.model import Launcher, Role, Topology
from torchyard_core.topology.placement.planner import place
from torchyard_core.topology.replicas import Replica, replicas_of
from torchyard_core.topology.strategies.registry import spec_of
from torchyard_core.topology.strategies.worker_groups import worker_groups

TRAINERS_GANG = "trainers"


@dataclass(frozen=True, slots=True)
class PlannedReplica:
    """A replica with its host, GPUs, gang and ranks. `host` is None if no host has capacity for the replica."""

    replica: Replica
    gang: str
    host: str | None
    gpus: tuple[Gpu, ...]
    ranks: int
    """Number of processes that Torchyard starts for the replica."""
    first_rank: int | None
    """The replica's first rank among all trainers; None if the replica is not a trainer."""
    first_world_rank: int | None
    """The replica's first rank in its process group; None if the replica is not a trainer.

    Under an asynchronous strategy, each worker group is a process group, so this rank may differ from `first_rank`.
    """
    node_rank: int | None
    """The replica's position among the replicas of its process group; None if the replica is not a trainer."""

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def role(self) -> Role:
        return self.replica.role

    @property
    def index(self) -> int:
        return self.replica.index

    @property
    def trains(self) -> bool:
        return self.role.trains


@dataclass(frozen=True, slots=True)
class World:
    """A process group of torch.distributed: the trainers of one gang."""

    gang: str
    members: tuple[str, ...]
    """Names of the group's replicas, by node rank. The host of the first replica has the MASTER_PORT."""
    size: int

    @property
    def master(self) -> str:
        return self.members[0]


@dataclass(frozen=True)
class Plan:
    """The plan of a run: its replicas with their hosts, its process groups, and its problems."""

    topology: Topology
    replicas: tuple[PlannedReplica, ...]
    worlds: tuple[World, ...]
    world_size: int
    """Number of ranks of all trainers."""
    hosts: tuple[str, ...]
    """The hosts of the run, the primary first."""
    problems: tuple[Problem, ...]

    @property
    def name(self) -> str:
        return self.topology.name

    @property
    def primary(self) -> str | None:
        """The first host of the plan; None if no replica has a host."""
        return self.hosts[0] if self.hosts else None

    @property
    def can_start(self) -> bool:
        return not has_errors(self.problems)

    def replica(self, name: str) -> PlannedReplica:
        return next(planned for planned in self.replicas if planned.name == name)

    def on_host(self, host: str) -> tuple[PlannedReplica, ...]:
        return tuple(planned for planned in self.replicas if planned.host == host)


def plan(
    topology: Topology, hosts: Sequence[HostFacts], *, found: Sequence[Problem] = (), line: LineOf = no_lines
) -> Plan:
    """Plans a run. Replicas that fit on no host are part of the plan, with `host` set to None.

    Args:
        topology: The topology.
        hosts: The hosts of the fleet.
        found: Problems of the topology (`TopologyFile.check`). The plan lists them before the problems of placement.
        line: Returns the line number of a setting in the topology file.
    """
    replicas = replicas_of(topology)
    placement = place(topology, hosts, line)
    gangs = _gangs(topology, replicas)
    nodes = {
        replica.name: (gang, node_rank) for gang, members in gangs.items() for node_rank, replica in enumerate(members)
    }
    planned: list[PlannedReplica] = []
    next_rank = 0
    next_in_world = dict.fromkeys(gangs, 0)
    for replica in replicas:
        slot = placement.slots.get(replica.name)
        gang, node_rank = nodes[replica.name]
        trains = replica.role.trains
        ranks = _ranks(topology, replica)
        planned.append(
            PlannedReplica(
                replica,
                gang,
                host=slot.host if slot else None,
                gpus=slot.gpus if slot else (),
                ranks=ranks,
                first_rank=next_rank if trains else None,
                first_world_rank=next_in_world[gang] if trains else None,
                node_rank=node_rank if trains else None,
            )
        )
        if trains:
            next_rank += ranks
            next_in_world[gang] += ranks
    worlds = tuple(
        World(gang, tuple(member.name for member in members), next_in_world[gang])
        for gang, members in gangs.items()
        if members[0].role.trains
    )
    problems = (*found, *placement.problems)
    return Plan(topology, tuple(planned), worlds, next_rank, _hosts(planned), problems)


def _gangs(topology: Topology, replicas: tuple[Replica, ...]) -> dict[str, tuple[Replica, ...]]:
    """Returns the replicas by gang, with trainers in the order of their ranks."""
    gangs: dict[str, tuple[Replica, ...]] = {}
    trainers = tuple(replica for replica in replicas if replica.role.trains)
    if spec_of(topology.strategy.kind).is_asynchronous:
        groups = worker_groups(topology, replicas)
        gangs |= {f"group-{number}": members for number, members in enumerate(groups) if members}
    elif trainers:
        gangs[TRAINERS_GANG] = trainers
    gangs |= {replica.name: (replica,) for replica in replicas if not replica.role.trains}
    return gangs


def _ranks(topology: Topology, replica: Replica) -> int:
    if topology.program.launcher is Launcher.COMMAND or not replica.role.trains:
        return 1
    return max(1, replica.pool.gpus)


def _hosts(planned: Sequence[PlannedReplica]) -> tuple[str, ...]:
    # The first replica is the chief, or worker-0 if there is no chief. Its host is the primary, which must be listed
    # first.
    return tuple(dict.fromkeys(replica.host for replica in planned if replica.host is not None))
