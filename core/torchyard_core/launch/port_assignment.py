"""Assigns the ports that keepers have reserved to replicas and to process groups of torch.distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchyard_core.formatting import counted
from torchyard_core.launch.rank_assignment import Plan

Port = int | str
"""A port number. In a preview, for which no ports are reserved, it is a placeholder text."""


@dataclass(frozen=True)
class Ports:
    """The ports of replicas (for CLUSTER_SPEC and TF_CONFIG), and the MASTER_PORT of each gang."""

    replicas: Mapping[str, Port]
    masters: Mapping[str, Port]


def ports_needed(plan: Plan) -> dict[str, int]:
    """Returns the number of ports that each host needs: one per replica, and one per world with its master there."""
    return {host: len(users) for host, users in _users(plan).items()}


def assign_ports(plan: Plan, held: Mapping[str, Sequence[Port]]) -> Ports:
    """Assigns the ports of each host in the order of the plan, first to replicas, then to the masters of worlds.

    Raises ValueError if too few ports are reserved on a host.
    """
    replicas: dict[str, Port] = {}
    masters: dict[str, Port] = {}
    for host, users in _users(plan).items():
        if len(held[host]) < len(users):
            raise ValueError(f"{host} holds {counted(len(held[host]), 'port')}, and needs {len(users)}")
        for (kind, name), port in zip(users, held[host], strict=False):
            (masters if kind == "master" else replicas)[name] = port
    return Ports(replicas, masters)


def _users(plan: Plan) -> dict[str, list[tuple[str, str]]]:
    """Returns the users of each host's ports: (`replica`, replica name) or, for MASTER_PORT, (`master`, gang name)."""
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
