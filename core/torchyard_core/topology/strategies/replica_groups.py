"""The groups of a topology's replicas: worker groups, server groups, and groups of reducers and evaluators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from torchyard_core.topology.model import Launcher, Role, Topology
from torchyard_core.topology.replicas import Replica, replicas_of
from torchyard_core.topology.strategies.topology_traffic import traffic_of
from torchyard_core.topology.strategies.traffic import names_of
from torchyard_core.topology.strategies.worker_groups import worker_groups


class GroupKind(StrEnum):
    """The task of the replicas in a group."""

    TRAINERS = "trainers"
    SERVERS = "servers"
    REDUCERS = "reducers"
    EVALUATORS = "evaluators"


@dataclass(frozen=True)
class ReplicaGroup:
    """A group of replicas of one kind. The members are in the order of the topology's replicas."""

    kind: GroupKind
    number: int | None
    """The number of the group among the groups of its kind, from 0.

    None if all replicas of the kind form one group.
    """
    members: tuple[str, ...]

    @property
    def key(self) -> str:
        """The unique key of the group, such as `trainers:1`."""
        return self.kind if self.number is None else f"{self.kind}:{self.number}"


def replica_groups(topology: Topology) -> tuple[ReplicaGroup, ...]:
    """Returns all groups of trainers, servers, reducers and evaluators. Each replica belongs to one group."""
    replicas = replicas_of(topology)
    trainers: tuple[tuple[Replica, ...], ...] = ()
    if topology.program.launcher is not Launcher.COMMAND:
        trainers = tuple(group for group in worker_groups(topology, replicas) if group)
    if len(trainers) < 2:
        trainers = (_of(replicas, lambda role: role.trains),)
    servers = [group.members for group in traffic_of(topology).groups if group.serves]
    return (
        *_numbered(GroupKind.TRAINERS, [names_of(group) for group in trainers]),
        *_numbered(GroupKind.SERVERS, servers or [names_of(_of(replicas, lambda role: role is Role.PS))]),
        *_numbered(GroupKind.REDUCERS, [names_of(_of(replicas, lambda role: role is Role.REDUCER))]),
        *_numbered(GroupKind.EVALUATORS, [names_of(_of(replicas, lambda role: role is Role.EVALUATOR))]),
    )


def _of(replicas: tuple[Replica, ...], wanted: Callable[[Role], bool]) -> tuple[Replica, ...]:
    return tuple(replica for replica in replicas if wanted(replica.role))


def _numbered(kind: GroupKind, groups: list[tuple[str, ...]]) -> list[ReplicaGroup]:
    several = len(groups) > 1
    return [ReplicaGroup(kind, at if several else None, names) for at, names in enumerate(groups) if names]
