"""The jobs of a TensorFlow-style cluster, with the addresses of their tasks.

CLUSTER_SPEC, TF_CONFIG and TensorFlow's ClusterSpec describe clusters in this form. The list of a job's addresses is
dense (`[host:port, …]`) or sparse (`{index: host:port}`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchyard_core.interop.document_reader import DocumentReader
from torchyard_core.problems import Place
from torchyard_core.topology.document.edits import POOL_NAMES
from torchyard_core.topology.model import MAX_REPLICAS, Role, Topology
from torchyard_core.topology.placement.pin_syntax import parse_pin
from torchyard_core.topology.replicas import replicas_of

PORT = 2222
"""First port of the replicas on each host in exported documents, as in the examples of TensorFlow's documentation."""
THIS_COMPUTER = "this-computer"
_ADDRESS = re.compile(r"(?:(?:grpc|https?)://)?(\[[0-9a-fA-F:.]+(?:%[^\s\[\]/]+)?\]|[^\s:/\[\]]+):([0-9]{1,5})")
_LOCAL = {"localhost", "127.0.0.1", "[::1]"}


@dataclass(frozen=True)
class Job:
    """The tasks of one job, with the hosts in their addresses."""

    role: Role
    place: Place
    count: int
    hosts: Mapping[int, str]
    """The host in each task's address, by the task's index. The indices of a sparse job have gaps."""


def split_address(address: str) -> tuple[str, int] | None:
    """Splits `host:port` into host and port. Returns None for text of another form."""
    match = _ADDRESS.fullmatch(address.strip())
    if match is None or not 0 < int(match[2]) < 65536:
        return None
    return match[1], int(match[2])


def read_jobs(reader: DocumentReader, place: Place, roles: Mapping[str, Role]) -> dict[str, Job]:
    """Returns the jobs of a cluster by name. Raises FileProblem for an invalid cluster.

    Args:
        reader: The document.
        place: The location of the cluster in the document.
        roles: The allowed names of jobs with their roles.
    """
    cluster = reader.block(place)
    if not cluster:
        reader.stop("the cluster is empty.", place, f"Allowed are lists of `host:port` by job: {', '.join(roles)}.")
    jobs = {}
    for name, tasks in cluster.items():
        at = (*place, name)
        if name not in roles:
            reader.stop(f"there is no job `{name}`.", at, f"Allowed are {', '.join(roles)}.")
        if not isinstance(tasks, (dict, list)):
            reader.stop(f"`{name}` is no list of addresses.", at, "Allowed: `[host:port, …]` or `{index: host:port}`.")
        if not tasks:
            continue
        keys = range(len(tasks)) if isinstance(tasks, list) else list(tasks)
        hosts: dict[int, str] = {}
        for key in keys:
            index = _index(reader, at, key)
            if index in hosts:
                reader.stop(f"task {index} of `{name}` is given twice.", (*at, key), "Allowed is one address a task.")
            hosts[index] = _host(reader, (*at, key), name)
        jobs[name] = Job(roles[name], at, max(hosts) + 1, hosts)
    for name, job in jobs.items():
        if missing := [str(index) for index in range(job.count) if index not in job.hosts]:
            shown = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
            reader.remark(f"the sparse job `{name}` does not say where {shown} is; there are {job.count}.", job.place)
    return jobs


def _index(reader: DocumentReader, place: Place, key: Any) -> int:
    text = str(key)
    if not text.isdecimal() or int(text) >= MAX_REPLICAS:
        reader.stop(
            f"a sparse index is {text}, beyond every list.",
            (*place, key),
            f"Allowed are whole numbers from 0 to {MAX_REPLICAS - 1}.",
        )
    return int(text)


def _host(reader: DocumentReader, place: Place, job: str) -> str:
    address = reader.text(place) or ""
    parted = split_address(address)
    if parted is None:
        reader.stop(f"a task of `{job}` is at '{address}'.", place, "Allowed is `host:port`, like gpu-a:2222.")
    return parted[0]


def refuse_two_chiefs(reader: DocumentReader, place: Place) -> None:
    """Raises FileProblem for a cluster with both `chief` and `master`.

    Both name the chief; `master` is the name in older versions of TensorFlow.
    """
    if {"chief", "master"} <= reader.block(place).keys():
        reader.stop("the cluster has a chief and a master.", (*place, "master"), "Allowed is one of the two.")


def as_pools(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Returns the jobs as pools, the chief first."""
    order = list(Role)
    pools = []
    for job in sorted(jobs, key=lambda job: order.index(job.role)):
        pools.append({"name": POOL_NAMES[job.role], "role": job.role.value, "replicas": job.count})
    return pools


def as_pins(reader: DocumentReader, jobs: Iterable[Job]) -> dict[str, str]:
    """Returns pins, by replica name, that place each replica on the host in its address.

    Adds remarks about the pins, and about hosts whose names are not valid in the fleet file.
    """
    pins: dict[str, str] = {}
    for job in jobs:
        for index, host in sorted(job.hosts.items()):
            named = THIS_COMPUTER if host in _LOCAL else host
            try:
                parse_pin(named)
            except ValueError:
                reader.remark(f"{job.role}-{index} is at {host}, which cannot name a host of the fleet.", job.place)
            else:
                pins[f"{job.role}-{index}"] = named
    names = list(dict.fromkeys(pins.values()))
    if names:
        shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        reader.remark(f"replicas are pinned to their addresses' hosts ({shown}): the fleet must know these names.")
    return pins


def pins_with_remarks(reader: DocumentReader, jobs: Iterable[Job]) -> dict[str, Any]:
    """Returns `{"pins": …}` for a topology. The pins place the replicas on the hosts in their addresses.

    Addresses that a cloud has assigned are ignored. Adds a remark about them, and one about the missing number of GPUs.
    """
    pool_data: dict[str, Any] = {}
    if reader.text(("environment",)) == "cloud":
        reader.remark("the addresses are that cloud's and are left out: the planner chooses hosts of yours.")
    elif pins := as_pins(reader, jobs):
        pool_data["pins"] = pins
    reader.remark("the document does not say how many GPUs a replica takes: set `gpus`.")
    return pool_data


def addresses_for(topology: Topology) -> dict[str, str]:
    """Returns an address for each replica. The user can edit the addresses in the exported document.

    The host in an address is the host to which the replica is pinned, or the replica's own name if there is no pin.
    Each replica on a host has another port.
    """
    found: dict[str, str] = {}
    ports: dict[str, int] = {}
    for replica in replicas_of(topology):
        host = replica.name
        pin = topology.pins.get(replica.name)
        if pin is not None:
            host = pin.partition(":")[0]
        port = ports.get(host, PORT)
        ports[host] = port + 1
        found[replica.name] = f"{host}:{port}"
    return found
