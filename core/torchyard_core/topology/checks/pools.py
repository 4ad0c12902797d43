"""Checks of names, pools and numbers of replicas."""

from __future__ import annotations

from torchyard_core.formatting import counted
from torchyard_core.problems import Findings, error_finding, warning_finding
from torchyard_core.topology.model import MAX_REPLICAS, Role, Topology


def check_names(topology: Topology) -> Findings:
    if not topology.name.isprintable() or topology.name.strip() != topology.name:
        yield error_finding("bad-name", "name must be one line of text without spaces around it", "name")
    seen: dict[str, int] = {}
    for position, pool in enumerate(topology.pools):
        if not pool.name.isprintable() or pool.name.strip() != pool.name:
            yield error_finding(
                "bad-name", "a pool's name must be one line of text without spaces around it", "pools", position, "name"
            )
        if pool.name in seen:
            first = seen[pool.name] + 1
            message = f"pool `{pool.name}` is defined twice, first as entry {first} of pools"
            yield error_finding("duplicate-pool", message, "pools", position, "name")
        else:
            seen[pool.name] = position


def check_pools(topology: Topology) -> Findings:
    chiefs = [position for position, pool in enumerate(topology.pools) if pool.role is Role.CHIEF]
    for position in chiefs[1:]:
        yield error_finding(
            "chief-count", "there is another chief pool already; a run has one chief", "pools", position
        )
    if not any(pool.role.trains for pool in topology.pools):
        yield error_finding("no-trainers", "nothing trains: a topology needs a chief or workers", "pools")
    total = sum(pool.replicas for pool in topology.pools)
    if total > MAX_REPLICAS:
        yield error_finding("too-many-replicas", f"{total} replicas are over the limit of {MAX_REPLICAS}", "pools")
    for position, pool in enumerate(topology.pools):
        at = ("pools", position)
        if pool.role is Role.CHIEF and pool.replicas != 1:
            yield error_finding("chief-count", f"a chief pool has 1 replica, not {pool.replicas}", *at, "replicas")
        if pool.min_replicas is not None and pool.min_replicas > pool.replicas:
            message = f"min_replicas is {pool.min_replicas}, more than the {counted(pool.replicas, 'replica')}"
            yield error_finding("min-replicas", message, *at, "min_replicas")
        if pool.gpus and pool.role in (Role.PS, Role.REDUCER):
            message = f"{pool.role} replicas use no GPU; `gpus` reserves {pool.gpus} without use"
            yield warning_finding("gpus-unused", message, *at, "gpus")
        if not pool.gpus:
            for key in ("gpu_model", "gpu_memory_gb"):
                if getattr(pool, key) is not None:
                    yield warning_finding("gpu-wish", f"`{key}` does nothing while `gpus` is 0", *at, key)
        if len(set(pool.hosts)) != len(pool.hosts):
            yield warning_finding("unknown-host", "a host is listed twice", *at, "hosts")
