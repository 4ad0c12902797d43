"""Pools on machine types: what a type stands for, and what it puts into a pool."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torchyard_core.topology.document.edits import set_pools
from torchyard_core.topology.machine_types import machine
from torchyard_core.topology.model import Pool, Role, Topology


def with_machine_sizes(topology: Topology) -> Topology:
    """With what machine types stand for, where pools do not say it themselves."""
    pools = [_with_machine_size(pool) if pool.machine is not None else pool for pool in topology.pools]
    return topology.model_copy(update={"pools": tuple(pools)}) if pools != list(topology.pools) else topology


def _with_machine_size(pool: Pool) -> Pool:
    assert pool.machine is not None
    has = machine(pool.machine)
    sizes: dict[str, Any] = {"cpus": has.cpus, "memory_gb": has.memory_gb}
    if pool.gpus:
        sizes["gpu_model"] = has.gpu_model
    missing = {key: size for key, size in sizes.items() if size is not None and getattr(pool, key) is None}
    return pool.model_copy(update=missing) if missing else pool


def with_machine(topology: Topology, positions: Collection[int], name: str) -> Topology:
    """The topology with some pools on a machine type, which brings its sizes. Its GPUs go to those who use any; one
    without GPUs takes away those that came with the type before it, and no others."""
    after = topology
    for position in positions:
        pool = topology.pools[position]
        said = machine(name).as_pool()
        before = machine(pool.machine) if pool.machine is not None else None
        if pool.role in (Role.PS, Role.REDUCER):
            said = {key: value for key, value in said.items() if not key.startswith("gpu")}
        elif "gpus" in said:
            said["gpu_memory_gb"] = None
        elif before is not None and before.gpus and (pool.gpus, pool.gpu_model) == (before.gpus, before.gpu_model):
            said |= {"gpus": 0, "gpu_model": None}
        after = set_pools(after, [position], **said)
    return after
