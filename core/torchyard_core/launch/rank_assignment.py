"""Who runs where, in which gang, as which rank. Pure: a topology and what is known of the hosts go in, a plan comes
out; nothing is started.

- A *gang* is restarted as one: all trainers of a synchronous strategy, one worker group of an asynchronous one,
  each server, reducer and evaluator alone.
- A *world* is what torch.distributed sees: the trainers of one gang.
- Launcher torch starts one rank a GPU, else one; launcher command one process a replica, which is then its rank.
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
    """One replica with its place in the cluster. `host` is None where none can take it."""

    replica: Replica
    gang: str
    host: str | None
    gpus: tuple[Gpu, ...]
    ranks: int
    """How many processes Torchyard starts for it."""
    first_rank: int | None
    """Of its ranks among all trainers; None outside them."""
    first_world_rank: int | None
    """Of its ranks in its torch world. Differs from `first_rank` in the groups of asynchronous kinds."""
    node_rank: int | None
    """Its position among the replicas of its world."""

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
    """A torch world: the trainers of one gang."""

    gang: str
    members: tuple[str, ...]
    """Names of its replicas, by node rank. The first one's host serves MASTER_PORT."""
    size: int
    """Ranks."""

    @property
    def master(self) -> str:
        return self.members[0]


@dataclass(frozen=True)
class Plan:
    """All of a run that can be known before it is started."""

    topology: Topology
    replicas: tuple[PlannedReplica, ...]
    worlds: tuple[World, ...]
    world_size: int
    """Ranks of all trainers."""
    hosts: tuple[str, ...]
    """Those that take part, the primary first."""
    problems: tuple[Problem, ...]

    @property
    def name(self) -> str:
        return self.topology.name

    @property
    def primary(self) -> str | None:
        """The chief's host."""
        return self.hosts[0] if self.hosts else None

    @property
    def can_start(self) -> bool:
        return not has_errors(self.problems)

    def replica(self, name: str) -> PlannedReplica:
        return next(planned for planned in self.replicas if planned.name == name)

    def on_host(self, host: str) -> tuple[PlannedReplica, ...]:
        return tuple(planned for planned in self.replicas if planned.host == host)


def plan(
    topology: Topology,
    hosts: Sequence[HostFacts],
    *,
    found: Sequence[Problem] = (),
    line: LineOf = no_lines,
) -> Plan:
    """Plans a run on these hosts.

    `found` are the problems that checking the topology gave (`TopologyFile.check`): the plan carries them along
    with those of placement. Replicas that fit nowhere are in the plan too, without a host.
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
    """Members by gang, the trainers' in rank order."""
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
    # Replicas come with the chief first, so its host does too.
    return tuple(dict.fromkeys(replica.host for replica in planned if replica.host is not None))
