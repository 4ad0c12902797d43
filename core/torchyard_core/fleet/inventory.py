"""The fleet file: the hosts and how to connect to them.

Problems in the file have line numbers. If the file's layout permits, an edit changes only the lines of the edited host
or cluster, and comments are preserved (`inventory_patch`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from torchyard_core.atomic_write import write_atomically
from torchyard_core.errors import TorchyardError, UsageError
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.fleet.host_fields import Jumps, Transport, Word
from torchyard_core.fleet.inventory_patch import NEW_FILE, with_changed_entry, with_entry, without_entry
from torchyard_core.next_steps import RemoveHost
from torchyard_core.problems import Problem, did_you_mean, has_errors
from torchyard_core.topology.host_facts import PortRange
from torchyard_core.topology.model import Amount, FrozenModel, Text
from torchyard_core.yaml_io.document import Document, parse_document
from torchyard_core.yaml_io.file_reader import path_exists, read_text
from torchyard_core.yaml_io.model_validation import validate

THIS_COMPUTER = "this-computer"
PRIVATE_MODE = 0o600
_NAME = re.compile(r"\w[\w.-]*")


def _host_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"must be a word of letters, digits, `.`, `_` and `-`, not '{name}'")
    return name


def _ports(text: str) -> str:
    parse_ports(text)
    return text


def parse_ports(text: str) -> PortRange:
    """Parses `29400-29499` as (29400, 29499).

    A single port is a range of one port. Raises ValueError for other text.
    """
    match = re.fullmatch(r"\s*([0-9]{1,5})\s*(?:-\s*([0-9]{1,5})\s*)?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1024 <= first <= last <= 65535:
        raise ValueError(f"must be a range like 29400-29499, between 1024 and 65535, not '{text}'")
    return first, last


class Host(FrozenModel):
    """A host in the fleet file. Settings that are not given come from `~/.ssh/config` or the host, or have defaults."""

    name: Annotated[str, Field(max_length=100), AfterValidator(_host_name)]
    local: bool = False
    """Whether the host is this computer. If so, no SSH connection is needed."""
    address: Word | None = None
    """An address, or a Host of ~/.ssh/config. By default, the host's name."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the host's SSH server. By default, the port in ~/.ssh/config, else 22."""
    user: Word | None = None
    identity_file: str | None = None
    proxy_jump: Jumps | None = None
    data_address: Word | None = None
    """Address for training traffic. By default, the address from which the host reaches the primary's host."""
    interface: Word | None = None
    """Value of NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; by default the interface that has `data_address`."""
    transport: Transport = Transport.PARAMIKO
    """`openssh` uses the system's ssh, for example for Kerberos or FIDO."""
    python: str | None = None
    """The interpreter for programs."""
    agent_python: str | None = None
    """The interpreter for the agent."""
    agent_dir: str | None = None
    """The agent's folder; by default ~/.torchyard."""
    ports: Annotated[Text, AfterValidator(_ports)] | None = None
    """Range of ports that firewalls between hosts allow, such as 29400-29499; by default any free port."""
    bandwidth_gbps: Amount | None = Field(default=None, gt=0)
    """Bandwidth of the host's network link in Gbit/s. The window uses it to estimate exchange times."""
    labels: dict[str, Text] = Field(default_factory=dict)
    """Labels by which pools select hosts."""

    @property
    def port_range(self) -> PortRange | None:
        return parse_ports(self.ports) if self.ports is not None else None

    @property
    def place(self) -> str:
        """The login as text, such as `lee@10.0.0.11:2222`."""
        address = self.address or self.name
        if self.port:
            address = f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}"
        return f"{self.user}@{address}" if self.user else address


def login_host(cluster: Cluster) -> Host:
    """Returns the login node of a cluster as a Host that has the cluster's name."""
    settings = cluster.login.model_dump(exclude_unset=True)
    return Host(name=cluster.name, **settings)


class FleetModel(FrozenModel):
    """The content of the fleet file."""

    version: Literal[1]
    hosts: tuple[Host, ...] = ()
    clusters: tuple[Cluster, ...] = ()


DEFAULT_HOSTS = (Host(name=THIS_COMPUTER, local=True),)
"""The fleet if there is no fleet file."""


@dataclass(frozen=True)
class Inventory:
    """The fleet file: its path, its hosts, its problems, its parsed text, and its clusters."""

    path: Path
    hosts: tuple[Host, ...]
    problems: tuple[Problem, ...]
    document: Document | None
    """The parsed file; None if it does not exist."""
    clusters: tuple[Cluster, ...] = ()

    def usable(self) -> Inventory:
        """Returns this inventory. If the file has an error, raises TorchyardError with all problems of the file."""
        if not has_errors(self.problems):
            return self
        lines = "\n".join(problem.printed(str(self.path)) for problem in self.problems)
        raise TorchyardError(lines, code="fleet_problems", hint="Correct the fleet file.")

    def host(self, name: str) -> Host:
        """Returns the host with this name. Raises UsageError, which suggests a similar name, for an unknown name."""
        for host in self.hosts:
            if host.name == name:
                return host
        names = [*(host.name for host in self.hosts), *(cluster.name for cluster in self.clusters)]
        message = f"the fleet has no host `{name}`{did_you_mean(name, names)}"
        raise UsageError(message, code="unknown_host", hint=f"Its hosts: {', '.join(names) or 'none'}.")

    def named(self, names: Sequence[str]) -> tuple[Host, ...]:
        """Returns the hosts with these names, or all hosts if no name is given.

        Raises UsageError for an unknown name.
        """
        return tuple(self.host(name) for name in dict.fromkeys(names)) if names else self.hosts

    def split(self, names: Sequence[str]) -> tuple[tuple[Host, ...], tuple[Cluster, ...]]:
        """Returns the hosts and clusters with these names, by default all. Raises UsageError for an unknown name."""
        if not names:
            return self.hosts, self.clusters
        by_name = {cluster.name: cluster for cluster in self.clusters}
        hosts = [name for name in dict.fromkeys(names) if name not in by_name]
        clusters = tuple(by_name[name] for name in dict.fromkeys(names) if name in by_name)
        return (self.named(hosts) if hosts else ()), clusters


def read_fleet(path: Path) -> Inventory:
    """Reads the fleet file.

    If the file does not exist, the fleet consists of this computer. Raises FileProblem if it cannot be read.
    """
    if not path_exists(path):
        return Inventory(path, DEFAULT_HOSTS, (), None)
    return _inventory(path, read_text(path))


def _inventory(path: Path, text: str) -> Inventory:
    document = parse_document(text, str(path))
    fleet, found = validate(FleetModel, document.data, document.composed.written, document.line)
    problems = [*document.problems, *found]
    if fleet is not None:
        problems += _check(fleet, document)
    if fleet is None:
        return Inventory(path, (), tuple(problems), document)
    return Inventory(path, fleet.hosts, tuple(problems), document, fleet.clusters)


def _check(fleet: FleetModel, document: Document) -> Iterator[Problem]:
    seen: set[str] = set()
    for position, host in enumerate(fleet.hosts):
        if host.name in seen:
            line = document.line(("hosts", position, "name"))
            message = f"host `{host.name}` is defined twice"
            yield Problem("error", "duplicate-host", message, line, f"hosts.{host.name}")
        seen.add(host.name)
        if owner := next((cluster.name for cluster in fleet.clusters if cluster.owns(host.name)), None):
            line = document.line(("hosts", position, "name"))
            message = f"`{host.name}` is the name of a node of runs on the cluster {owner}"
            yield Problem("error", "duplicate-host", message, line, f"hosts.{host.name}")
        if host.local and (pointless := host.model_fields_set & {"address", "port", "user", "proxy_jump"}):
            key = min(pointless)
            line = document.line(("hosts", position, key))
            message = f"`{key}` has no effect on a local host, which is reached without SSH"
            yield Problem("warning", "local-host", message, line, f"hosts.{host.name}.{key}")
    for position, cluster in enumerate(fleet.clusters):
        if cluster.name in seen:
            line = document.line(("clusters", position, "name"))
            message = f"`{cluster.name}` is defined twice; hosts and clusters need different names"
            yield Problem("error", "duplicate-host", message, line, f"clusters.{cluster.name}")
        seen.add(cluster.name)


def add_host(path: Path, host: Host) -> Inventory:
    """Adds a host to the file. Raises UsageError if the name already exists.

    Raises FileProblem or TorchyardError if the file cannot be read, changed or written.
    """
    inventory = read_fleet(path).usable()
    if any(other.name == host.name for other in inventory.hosts):
        hint = ("Choose another name, or remove that host first.", RemoveHost(host.name))
        raise UsageError(f"the fleet has a host `{host.name}` already.", code="host_exists", hint=hint)
    if any(cluster.name == host.name for cluster in inventory.clusters):
        message = f"the fleet has a cluster `{host.name}` already."
        raise UsageError(message, code="host_exists", hint="Choose another name.")
    entry = host.model_dump(mode="json", exclude_unset=True)
    return _write(inventory, with_entry(_text(inventory), entry), (*inventory.hosts, host))


def remove_host(path: Path, name: str) -> Inventory:
    """Removes a host from the file. Raises UsageError for an unknown name.

    Raises FileProblem or TorchyardError if the file cannot be read, changed or written.
    """
    inventory = read_fleet(path).usable()
    host = inventory.host(name)
    position = inventory.hosts.index(host)
    left = tuple(other for other in inventory.hosts if other is not host)
    return _write(inventory, without_entry(_text(inventory), position), left)


def add_cluster(path: Path, cluster: Cluster) -> Inventory:
    """Adds a cluster to the file.

    Raises TorchyardError if the file cannot be read, changed or written, or if the cluster's name is already in use.
    """
    inventory = read_fleet(path).usable()
    entry = cluster.model_dump(mode="json", exclude_defaults=True)
    text = with_entry(_text(inventory), entry, "clusters")
    return _write(inventory, text, inventory.hosts, (*inventory.clusters, cluster))


def change_cluster(path: Path, before: Cluster, after: Cluster) -> Inventory:
    """Replaces a cluster in the file.

    Raises UsageError if the cluster in the file differs from `before`, and TorchyardError if the file cannot be read,
    changed or written, or if the new name is in use.
    """
    inventory = read_fleet(path).usable()
    clusters = list(inventory.clusters)
    if before not in clusters:
        message = f"the entry of {before.name} in the fleet file was changed meanwhile."
        raise UsageError(message, code="host_changed", hint="Open the cluster again to see what it is now.")
    position = clusters.index(before)
    text = _text(inventory)
    entry = dict(parse_document(text, "fleet").data["clusters"][position])
    _set_changed(entry, before, after, leave=("login",))
    login = dict(entry.get("login") or {})
    _set_changed(login, before.login, after.login)
    if login:
        entry["login"] = login
    else:
        entry.pop("login", None)
    clusters[position] = after
    return _write(inventory, with_changed_entry(text, position, entry, "clusters"), inventory.hosts, tuple(clusters))


def remove_cluster(path: Path, name: str) -> Inventory:
    """Removes a cluster from the file. Raises UsageError for an unknown name.

    Raises FileProblem or TorchyardError if the file cannot be read, changed or written.
    """
    inventory = read_fleet(path).usable()
    found = [position for position, cluster in enumerate(inventory.clusters) if cluster.name == name]
    if not found:
        names = [cluster.name for cluster in inventory.clusters]
        hint = f"Its clusters: {', '.join(names) or 'none'}."
        message = f"the fleet has no cluster `{name}`{did_you_mean(name, names)}"
        raise UsageError(message, code="unknown_cluster", hint=hint)
    left = tuple(cluster for cluster in inventory.clusters if cluster.name != name)
    return _write(inventory, without_entry(_text(inventory), found[0], "clusters"), inventory.hosts, left)


def change_hosts(path: Path, edits: Sequence[tuple[Host, Host]]) -> Inventory:
    """Replaces hosts in the file in one write. `edits` contains pairs of (before, after).

    Raises UsageError if a host in the file differs from `before`, or if another host already has the new name. Raises
    FileProblem or TorchyardError if the file cannot be read, changed or written.
    """
    inventory = read_fleet(path).usable()
    hosts = list(inventory.hosts)
    text = _text(inventory)
    for before, after in edits:
        if before not in hosts:
            message = f"the entry of {before.name} in the fleet file was changed meanwhile."
            raise UsageError(message, code="host_changed", hint="Open the host again to see what it is now.")
        position = hosts.index(before)
        if after.name != before.name and any(other.name == after.name for other in hosts):
            hint = "Choose another name."
            raise UsageError(f"the fleet has a host `{after.name}` already.", code="host_exists", hint=hint)
        text = with_changed_entry(text, position, _changed_entry(text, position, before, after))
        hosts[position] = after
    return _write(inventory, text, tuple(hosts))


def _changed_entry(text: str, position: int, before: Host, after: Host) -> dict[str, Any]:
    """Returns the new entry of a host.

    Keys that are equal in `before` and `after` keep their values in the file, such as an explicit default.
    """
    entry = dict(parse_document(text, "fleet").data["hosts"][position])
    _set_changed(entry, before, after)
    return entry


def _set_changed(entry: dict[str, Any], before: FrozenModel, after: FrozenModel, leave: Sequence[str] = ()) -> None:
    """Applies the differences between `before` and `after` to `entry`. Keys in `leave` are not changed."""
    values = after.model_dump(mode="json", exclude_defaults=True)
    for key in type(before).model_fields:
        if key in leave or getattr(before, key) == getattr(after, key):
            continue
        if key in values:
            entry[key] = values[key]
        else:
            entry.pop(key, None)


def _text(inventory: Inventory) -> str:
    return inventory.document.text if inventory.document is not None else NEW_FILE


def _write(
    before: Inventory, text: str, hosts: tuple[Host, ...], clusters: tuple[Cluster, ...] | None = None
) -> Inventory:
    """Writes `text`, after verifying that it parses to `hosts` and `clusters` (by default the clusters of `before`).

    Raises TorchyardError if the text has an error, for example two hosts of the same name.
    """
    after = _inventory(before.path, text).usable()
    if (after.hosts, after.clusters) != (hosts, before.clusters if clusters is None else clusters):
        raise AssertionError(f"{before.path}: the changed text does not parse to the changed hosts and clusters")
    write_atomically(before.path, text, PRIVATE_MODE)
    return after
