"""Restores the plan of a past or live run from its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchyard_core.launch.rank_assignment import Plan, plan
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.model import Topology
from torchyard_core.topology.replicas import replicas_of


def recorded_plan(
    text: str, planned: Sequence[Mapping[str, Any]], known: Sequence[HostFacts]
) -> tuple[Plan, tuple[HostFacts, ...]] | None:
    """Restores the plan of a run and the facts of its hosts.

    If `known` lacks a GPU that the run used, the GPU is added to the facts of its host, with its recorded type if there
    is one. Returns None if the topology is unreadable, or if no replica of the topology is recorded.

    Args:
        text: The recorded topology.
        planned: The recorded replicas.
        known: The facts of the fleet's hosts.
    """
    topology = topology_from_text(text).topology if text else None
    if topology is None or not planned:
        return None
    # The record of a sweep contains only the coordinator, which is not a replica of the topology.
    if {str(replica["name"]) for replica in planned}.isdisjoint(one.name for one in replicas_of(topology)):
        return None
    hosts = _hosts(planned, {host.name: host for host in known})
    return _placed(topology, planned, hosts), tuple(hosts.values())


def _hosts(planned: Sequence[Mapping[str, Any]], known: Mapping[str, HostFacts]) -> dict[str, HostFacts]:
    used: dict[str, list[str]] = {}
    types: dict[str, str] = {}
    for replica in planned:
        used.setdefault(str(replica["host"]), []).extend(map(str, replica["gpus"]))
        types.update(zip(map(str, replica["gpus"]), map(str, replica.get("gpu_types", ())), strict=False))
    hosts = {}
    # Hosts of the fleet come first, in the order of the fleet, followed by hosts outside the fleet.
    for name in [*(name for name in known if name in used), *(name for name in used if name not in known)]:
        uuids = used[name]
        host = known.get(name, HostFacts(name))
        there = {gpu.uuid for gpu in host.gpus}
        if not there.issuperset(uuids):
            missing = [uuid for uuid in uuids if uuid not in there]
            first = max((gpu.index for gpu in host.gpus), default=-1) + 1
            more = tuple(Gpu(first + at, uuid, types.get(uuid) or "GPU", 0) for at, uuid in enumerate(missing))
            host = replace(host, gpus=(*host.gpus, *more))
        hosts[name] = host
    return hosts


def _placed(topology: Topology, planned: Sequence[Mapping[str, Any]], hosts: Mapping[str, HostFacts]) -> Plan:
    """Returns the plan of `topology` with each recorded replica on its recorded host and GPUs."""
    places = {str(replica["name"]): replica for replica in planned}
    unplaced = plan(topology, ())
    replicas = []
    for replica in unplaced.replicas:
        if replica.name not in places:
            continue
        place = places[replica.name]
        host = hosts[str(place["host"])]
        wanted = set(map(str, place["gpus"]))
        gpus = tuple(gpu for gpu in host.gpus if gpu.uuid in wanted)
        replicas.append(replace(replica, host=host.name, gpus=gpus))
    return replace(unplaced, replicas=tuple(replicas), hosts=tuple(hosts), problems=())
