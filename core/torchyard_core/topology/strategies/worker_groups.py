"""Worker groups: the process groups of torch.distributed that the trainers of a topology form."""

from __future__ import annotations

from torchyard_core.topology.model import Role, Topology
from torchyard_core.topology.replicas import Replica
from torchyard_core.topology.strategies.registry import spec_of
from torchyard_core.topology.strategies.traffic import contiguous_blocks


def worker_group_count(topology: Topology) -> int:
    """Returns the number of worker groups, which is 1 under a synchronous strategy."""
    if not spec_of(topology.strategy.kind).is_asynchronous:
        return 1
    workers = sum(pool.replicas for pool in topology.pools if pool.role is Role.WORKER)
    return max(1, min(topology.strategy.worker_groups or workers, workers))


def worker_groups(topology: Topology, replicas: tuple[Replica, ...]) -> tuple[tuple[Replica, ...], ...]:
    """Returns the trainers by worker group. Groups are contiguous blocks of workers, larger groups first.

    The chief is the first replica of group 0.
    """
    chiefs = tuple(replica for replica in replicas if replica.role is Role.CHIEF)
    workers = tuple(replica for replica in replicas if replica.role is Role.WORKER)
    first, *others = contiguous_blocks(workers, worker_group_count(topology))
    return (chiefs + first, *others)
