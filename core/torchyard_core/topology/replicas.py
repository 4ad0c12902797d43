"""The replicas that a topology's pools stand for, and the worker groups they train in."""

from __future__ import annotations

from dataclasses import dataclass

from torchyard_core.topology.model import Pool, Role, Topology


@dataclass(frozen=True, slots=True)
class Replica:
    """One node of the cluster. Numbered through all pools of its role, in the file's order."""

    role: Role
    index: int
    pool: Pool
    pool_index: int
    """Position of `pool` in the topology."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


def replicas_of(topology: Topology) -> tuple[Replica, ...]:
    """All replicas: the chief, workers, servers, reducers, evaluators, each in pool order."""
    return tuple(
        Replica(role, index, pool, pool_index)
        for role in Role
        for index, (pool_index, pool) in enumerate(
            (pool_index, pool)
            for pool_index, pool in enumerate(topology.pools)
            if pool.role is role
            for _ in range(pool.replicas)
        )
    )


def worker_group_count(topology: Topology) -> int:
    """How many torch worlds the trainers form: one, or for asynchronous kinds one a worker group."""
    if not topology.strategy.kind.is_asynchronous:
        return 1
    workers = sum(pool.replicas for pool in topology.pools if pool.role is Role.WORKER)
    return max(1, min(topology.strategy.worker_groups or workers, workers))


def worker_groups(topology: Topology, replicas: tuple[Replica, ...]) -> tuple[tuple[Replica, ...], ...]:
    """The trainers by worker group: contiguous blocks of workers, larger first, the chief first in group 0."""
    chiefs = tuple(replica for replica in replicas if replica.role is Role.CHIEF)
    workers = tuple(replica for replica in replicas if replica.role is Role.WORKER)
    count = worker_group_count(topology)
    size, larger = divmod(len(workers), count)
    groups: list[tuple[Replica, ...]] = []
    taken = 0
    for group in range(count):
        end = taken + size + (group < larger)
        groups.append((chiefs if group == 0 else ()) + workers[taken:end])
        taken = end
    return tuple(groups)
