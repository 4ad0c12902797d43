"""Checks of pins and host lists against pools and fleet."""

from __future__ import annotations

from collections.abc import Sequence

from torchyard_core.formatting import counted
from torchyard_core.problems import Findings, did_you_mean, error_finding, near_miss, warning_finding
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology
from torchyard_core.topology.placement.pin_syntax import GpuChoice, parse_pin
from torchyard_core.topology.replicas import Replica, replicas_of


def check_hosts(topology: Topology, hosts: Sequence[HostFacts]) -> Findings:
    """Yields errors for hosts in a pool's list that are not in the fleet."""
    names = [host.name for host in hosts]
    for position, pool in enumerate(topology.pools):
        for number, host in enumerate(pool.hosts):
            if host not in names:
                message = f"the fleet has no host `{host}`{did_you_mean(host, names)}"
                yield error_finding("unknown-host", message, "pools", position, "hosts", number)


def check_pins(topology: Topology, hosts: Sequence[HostFacts] | None) -> Findings:
    """Yields problems of pins.

    Errors are invalid pins, unknown replicas, hosts and GPUs, a wrong number of GPUs, and two pins to one GPU. A host
    that the pool does not list is a warning.
    """
    if not topology.pins:
        return
    replicas = {replica.name: replica for replica in replicas_of(topology)}
    fleet = {host.name: host for host in hosts} if hosts is not None else None
    taken: dict[tuple[str, int], str] = {}
    for name, text in topology.pins.items():
        replica = replicas.get(name)
        if replica is None:
            yield error_finding("unknown-replica", _unknown_replica(name, replicas), "pins", name)
            continue
        try:
            choice = parse_pin(text)
        except ValueError as problem:
            yield error_finding("bad-pin", str(problem), "pins", name)
            continue
        yield from _fits(replica, choice)
        if fleet is not None:
            yield from _exists(name, choice, fleet)
        for index in choice.indices or ():
            other = taken.setdefault((choice.host, index), name)
            if other != name:
                message = f"{name} and {other} are both pinned to {choice.host}:{index}"
                yield error_finding("pin-clash", message, "pins", name)


def _unknown_replica(name: str, replicas: dict[str, Replica]) -> str:
    role, dash, index = name.rpartition("-")
    of_role = [replica.name for replica in replicas.values() if replica.role == role]
    if of_role:
        return f"there is no replica `{name}` to pin; the last {role} is `{of_role[-1]}`"
    close_role = near_miss(role if dash else name, {replica.role.value for replica in replicas.values()})
    close = f"{close_role}-{index}" if dash and f"{close_role}-{index}" in replicas else f"{close_role}-0"
    return f"there is no replica `{name}` to pin" + (f"; did you mean `{close}`?" if close_role else "")


def _fits(replica: Replica, choice: GpuChoice) -> Findings:
    wanted = replica.pool.gpus
    if choice.indices is not None and len(choice.indices) != wanted:
        message = f"{replica.name} takes {counted(wanted, 'GPU')}, but is pinned to {len(choice.indices)}"
        yield error_finding("pin-gpus", message, "pins", replica.name)
    if replica.pool.hosts and choice.host not in replica.pool.hosts:
        message = (
            f"{replica.name} is pinned to {choice.host}, which pool `{replica.pool.name}` does not list; it goes there"
        )
        yield warning_finding("pin-outside", message, "pins", replica.name)


def _exists(name: str, choice: GpuChoice, fleet: dict[str, HostFacts]) -> Findings:
    host = fleet.get(choice.host)
    if host is None:
        message = f"the fleet has no host `{choice.host}`{did_you_mean(choice.host, fleet)}"
        yield error_finding("unknown-host", message, "pins", name)
    elif host.checked:
        for index in choice.indices or ():
            if host.gpu_at(index) is None:
                available = f"it has {counted(len(host.gpus), 'GPU')}" if host.gpus else "it has no GPU"
                yield error_finding("unknown-gpu", f"{host.name} has no GPU {index}; {available}", "pins", name)
