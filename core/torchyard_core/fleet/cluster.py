"""A cluster in the fleet file: a scheduler that allocates the nodes of runs, and the login to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from torchyard_core.errors import UsageError
from torchyard_core.fleet.host_fields import Jumps, Transport, Word
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import FrozenModel, Text, Topology

_NAME = re.compile(r"\w[\w-]*")
_TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")


def _cluster_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"must be a word of letters, digits, `_` and `-`, not '{name}'")
    return name


def _time_limit(text: str) -> str:
    if not _TIME.fullmatch(text):
        raise ValueError(f"must be a time of Slurm such as 04:00:00 or 2-00:00:00, not '{text}'")
    return text


def _option(text: str) -> str:
    if not text.isprintable() or text.startswith("-") or " " in text or not text:
        raise ValueError(f"must be one word that does not begin with `-`, not '{text}'")
    return text


Option = Annotated[Text, AfterValidator(_option)]


def clusters_as_hosts(clusters: Sequence[Cluster], topology: Topology | None) -> tuple[HostFacts, ...]:
    """Returns the clusters that the topology's pools name, each as a host of unknown capacity.

    The result is used by checks that contact no host.
    """
    named = {host for pool in topology.pools for host in pool.hosts or ()} if topology is not None else set()
    return tuple(
        HostFacts(cluster.name, address=cluster.login.address or cluster.name, python=cluster.python)
        for cluster in clusters
        if cluster.name in named
    )


def require_hosts(topology: Topology, clusters: Iterable[Cluster], what: str, advice: str) -> None:
    """Raises UsageError if a pool of the topology names a cluster.

    Called for operations that support only hosts of the fleet file. The error message begins with `what` and has the
    hint `advice`.
    """
    named = {host for pool in topology.pools for host in pool.hosts or ()}
    for cluster in clusters:
        if cluster.name in named:
            message = f"{what} on hosts of the fleet file, and the topology names the cluster {cluster.name}."
            raise UsageError(message, code="on_cluster", hint=advice)


def cluster_named_by(topology: Topology, clusters: Iterable[Cluster]) -> Cluster | None:
    """Returns the cluster to which every pool of the topology refers.

    Returns None if the pools do not all refer to one cluster.
    """
    named = {pool.hosts for pool in topology.pools}
    return next((cluster for cluster in clusters if named == {(cluster.name,)}), None)


def moved_to_cluster(topology: Topology, name: str) -> Topology:
    """Returns the topology with all pools on the cluster `name`.

    Labels, pins and host names refer to hosts in the fleet file, so they are removed.
    """
    pools = tuple(pool.model_copy(update={"hosts": (name,), "labels": {}}) for pool in topology.pools)
    return topology.model_copy(update={"pools": pools, "pins": {}})


class Login(FrozenModel):
    """The SSH login to a cluster's login node, with the same settings as a host."""

    local: bool = False
    """Whether this computer is a login node of the cluster. If so, no SSH connection is needed."""
    address: Word | None = None
    """An address, or a Host of ~/.ssh/config; by default the cluster's name."""
    port: int | None = Field(default=None, ge=1, le=65535)
    user: Word | None = None
    identity_file: str | None = None
    proxy_jump: Jumps | None = None
    transport: Transport = Transport.PARAMIKO
    agent_python: str | None = None
    """The interpreter for the agent, on the login node and on the nodes."""
    agent_dir: str | None = None
    """The agent's folder; by default ~/.torchyard. It must be on a file system that the login node and nodes share."""


class Cluster(FrozenModel):
    """A cluster in the fleet file, which allocates the nodes of its runs."""

    name: Annotated[str, Field(max_length=100), AfterValidator(_cluster_name)]
    kind: Literal["slurm"]
    login: Login = Field(default_factory=Login)
    partition: Option | None = None
    """The partition of jobs; by default Slurm's default partition."""
    account: Option | None = None
    qos: Option | None = None
    time_limit: Annotated[Text, AfterValidator(_time_limit)] | None = None
    """The time limit of jobs; by default the partition's."""
    python: str | None = None
    """The interpreter for programs on the nodes; by default `python3`."""
    setup: tuple[str, ...] = ()
    """Shell lines that run on the nodes before the lines of the program's own `setup`."""

    def slot(self, number: int) -> str:
        """Returns the name of the slot with this number, counted from 1. The first slot is the primary's."""
        return f"{self.name}.{number}"

    def owns(self, host: str) -> bool:
        """Returns whether `host` is the name of a slot of this cluster."""
        name, dot, number = host.rpartition(".")
        return bool(dot) and name == self.name and number.isdecimal()
