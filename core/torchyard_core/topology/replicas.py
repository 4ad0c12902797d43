"""Replicas of a topology, listed from its pools."""

from __future__ import annotations

from dataclasses import dataclass

from torchyard_core.topology.model import Pool, Role, Topology


@dataclass(frozen=True, slots=True)
class Replica:
    """A member of a pool. The replicas of a role are numbered across all of its pools, in the order of the file."""

    role: Role
    index: int
    pool: Pool
    pool_index: int
    """Position of `pool` in the topology."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


def replicas_of(topology: Topology) -> tuple[Replica, ...]:
    """Returns all replicas, ordered by role: chief, workers, servers, reducers, evaluators.

    Within a role, replicas are in the order of the pools.
    """
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
