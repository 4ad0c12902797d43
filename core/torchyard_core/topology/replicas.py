"""Replicas of a topology, listed from its pools."""

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
