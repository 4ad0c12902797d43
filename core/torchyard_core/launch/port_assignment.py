"""Which port each replica and each torch world gets, of those that its host's keeper holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchyard_core.launch.rank_assignment import Plan

Port = int | str
"""A string where nothing is held yet: text for people in its place."""


@dataclass(frozen=True)
class Ports:
    """Ports by replica (for CLUSTER_SPEC and TF_CONFIG), and MASTER_PORT by gang."""

    replicas: Mapping[str, Port]
    masters: Mapping[str, Port]


def ports_needed(plan: Plan) -> dict[str, int]:
    """How many ports each host must hold: one a replica, and one for each world whose first replica is there."""
    return {host: len(users) for host, users in _users(plan).items()}


def assign_ports(plan: Plan, held: Mapping[str, Sequence[Port]]) -> Ports:
    """Deals out each host's held ports in plan order, the worlds' after the replicas'."""
    replicas: dict[str, Port] = {}
    masters: dict[str, Port] = {}
    for host, users in _users(plan).items():
        if len(held[host]) < len(users):
            raise ValueError(f"{host} holds {len(held[host])} ports, and {len(users)} are needed")
        for (kind, name), port in zip(users, held[host], strict=False):
            (masters if kind == "master" else replicas)[name] = port
    return Ports(replicas, masters)


def _users(plan: Plan) -> dict[str, list[tuple[str, str]]]:
    """(kind, name) of what takes a port, by host."""
    users: dict[str, list[tuple[str, str]]] = {host: [] for host in plan.hosts}
    host_of = {planned.name: planned.host for planned in plan.replicas}
    for planned in plan.replicas:
        if planned.host is not None:
            users[planned.host].append(("replica", planned.name))
    for world in plan.worlds:
        master_host = host_of[world.master]
        if master_host is not None:
            users[master_host].append(("master", world.gang))
    return users
