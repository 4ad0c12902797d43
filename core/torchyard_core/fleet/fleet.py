"""The fleet: keeps one shared link per host, opens links concurrently, and caches the facts of hosts."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import as_completed, wait
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torchyard_core.background_thread import in_background
from torchyard_core.errors import AgentRefused, FileProblem, HostError
from torchyard_core.fleet.agent_archive import build_archive
from torchyard_core.fleet.agent_deployment import attach
from torchyard_core.fleet.credential_prompts import Prompter
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.fleet.gpu_occupancy import SAMPLE_TIMEOUT_S, with_occupancy
from torchyard_core.fleet.host_facts_cache import Facts, load_facts, planner_hosts, save_facts, stamped
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh import SshDialer
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.topology.host_facts import HostFacts

LOOK_TIMEOUT_S = 60.0
"""Timeout in seconds for reading facts.

To read them, the agent runs the interpreter for programs, which may be on a slow NFS file system.
"""
AT_ONCE = 256
"""Maximum number of hosts that are contacted concurrently.

The number is high, so that hosts that do not answer do not delay the others. The dialer limits the concurrent logins on
each sshd.
"""
USE_HOLDS_S = 30.0
"""Time in seconds for which a sample of GPU use is valid, long enough to plan a launch."""
CLOSE_WITHIN_S = 5.0
"""Time limit in seconds for closing the open links."""

Answer = TypeVar("Answer")

Progress = Callable[[str, int, int], None]
"""A callback that is called with (host, bytes sent, total bytes)."""
Arrival = Callable[[str, Answer | HostError], None]
"""A callback that is called with a host and its answer or error."""


class OtherHosts(Protocol):
    """Hosts that are not in the fleet file because a scheduler chooses them, such as the nodes of a cluster's runs."""

    lists_runs: str
    """The host whose link lists all runs on these hosts."""

    def owns(self, name: str) -> bool:
        """Returns whether one of the hosts has this name."""

    def link(self, name: str, *, install: bool) -> DaemonClient:
        """Returns the link to one of the hosts, and opens it if necessary. Raises HostError if that fails."""

    def close(self) -> None:
        """Closes all links."""


class Fleet:
    """Opens and keeps one link per host. Requests to several hosts are concurrent."""

    def __init__(
        self,
        hosts: Iterable[Host],
        known_hosts: Path,
        facts_file: Path,
        questions: Prompter | None = None,
        on_remark: Callable[[str], None] = lambda remark: None,
    ):
        """Creates a fleet without links.

        Args:
            hosts: The hosts of the fleet file.
            known_hosts: Torchyard's own file of trusted host keys.
            facts_file: The cache of host facts.
            questions: Prompts the user for passphrases, passwords and codes; None if the user cannot be asked.
            on_remark: Called on any thread with a message for the user: a remark about the version of an agent (once
                for each remark), or the error if facts cannot be written.
        """
        self.hosts: Mapping[str, Host] = {host.name: host for host in hosts}
        self.dialer = SshDialer(known_hosts, questions)
        self.others: tuple[OtherHosts, ...] = ()
        """The hosts that are not in the fleet file, one item for each cluster."""
        self._facts_file = facts_file
        self._found: dict[str, Facts] = {}
        """Facts by host that could not be written to the facts file."""
        self._links: dict[str, DaemonClient] = {}
        self._used: dict[str, tuple[float, Mapping[str, Any]]] = {}
        """Time (monotonic) and value of the telemetry sample that `look` last read from each host."""
        self.on_remark = on_remark
        self._remarked: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def use(self, hosts: Iterable[Host]) -> None:
        """Replaces the hosts and reads `~/.ssh/config` again.

        Closes the links to hosts that were removed or changed.
        """
        after = {host.name: host for host in hosts}
        self.dialer.reread()
        with self._lock:
            gone = [name for name in self._links if self.hosts.get(name) != after.get(name)]
            links = [self._links.pop(name) for name in gone]
            self.hosts = after
        for link in links:
            in_background(link.close)

    def knows(self, name: str) -> bool:
        """Returns whether a link to a host of this name can be opened."""
        return name in self.hosts or any(other.owns(name) for other in self.others)

    @property
    def listing(self) -> tuple[str, ...]:
        """The hosts through which all runs can be listed."""
        return (*self.hosts, *(other.lists_runs for other in self.others))

    def open_link(self, name: str) -> DaemonClient | None:
        """Returns the link to a host if the link is open. Does not open a link."""
        with self._lock:
            link = self._links.get(name)
        return link if link is not None and link.is_open else None

    def link(
        self,
        name: str,
        *,
        install: bool = True,
        replace_same_version: bool = False,
        progress: Progress = lambda host, done, total: None,
    ) -> DaemonClient:
        """Returns the link to a host, and opens it if necessary.

        The options are those of `agent_deployment.attach`. Raises HostError if the link cannot be opened.
        """
        for hosts in self.others:
            if hosts.owns(name):
                return hosts.link(name, install=install)
        known = self.open_link(name)
        if known is not None and not replace_same_version:
            return known
        host = self._host(name)
        link = attach(
            host,
            self.dialer,
            build_archive(),
            install=install,
            replace_same_version=replace_same_version,
            progress=lambda done, total: progress(name, done, total),
        )
        with self._lock:
            is_news = link.remark and (name, link.remark) not in self._remarked
            self._remarked.add((name, link.remark))
        if is_news:
            self.on_remark(link.remark)
        with self._lock:
            other = self._links.get(name)
            closed = self._closed
            wanted = not closed and self.hosts.get(name) == host
            if wanted and (other is None or other is known or not other.is_open):
                self._links[name] = link
                return link
        link.close()
        if wanted and other is not None:
            return other  # Another thread has opened a link in the meantime, so this link is closed.
        reason = "the fleet was closed" if closed else f"{name} was removed from the fleet"
        raise HostError(name, f"{reason} while connecting to the host.")

    def links(self, names: Iterable[str] | None = None, *, install: bool = True) -> dict[str, DaemonClient | HostError]:
        """Opens links to the named hosts, by default to all hosts, concurrently.

        Returns the link or the error of each host.
        """
        return self.each(self.hosts if names is None else names, partial(self.link, install=install))

    def known(self) -> Sequence[HostFacts]:
        """Returns the cached facts of all hosts for the planner.

        They include the last sample of a host's GPU use if it is at most USE_HOLDS_S old.
        """
        with self._lock:
            unkept = dict(self._found)
        planned = planner_hosts(list(self.hosts.values()), {**load_facts(self._facts_file), **unkept})
        since = time.monotonic() - USE_HOLDS_S
        with self._lock:
            used = {name: sample for name, (came, sample) in self._used.items() if came >= since}
        return tuple(with_occupancy(facts, used.get(facts.name)) for facts in planned)

    def reach(
        self, names: Sequence[str], arrived: Callable[[str, AgentLink | HostError], None] = lambda host, link: None
    ) -> dict[str, AgentLink | HostError]:
        """Connects to hosts concurrently.

        Returns the link or the error of each host. Each result is also passed to `arrived` as soon as it is known.
        """
        return dict(self.each(names, self.link, arrived))

    def interpreters(self, names: Iterable[str]) -> dict[str, str | None]:
        """Returns each host's interpreter for programs, as set in the fleet file.

        If none is set, the result is None, or the interpreter that runs Torchyard if the host is this computer.
        """
        hosts = {name: self._host(name) for name in names}
        # On this computer, programs run by default with the interpreter that runs Torchyard.
        return {name: host.python or (sys.executable if host.local else None) for name, host in hosts.items()}

    def look(self, name: str, python: str | None = None) -> dict[str, Any]:
        """Reads and caches a host's facts, and reads the use of its GPUs.

        Raises HostError or AgentRefused if the facts cannot be read.
        """
        host = self._host(name)
        wanted = python or self.interpreters([name])[name]
        link = self.link(name)
        facts: dict[str, Any] = link.call("host.facts", {"python": wanted}, LOOK_TIMEOUT_S)
        try:
            sample = link.call("telemetry.sample", {}, SAMPLE_TIMEOUT_S)
        except AgentRefused:
            sample = None  # The facts are valid even if the GPU use is unknown.
        with self._lock:
            unkept = self._keep(host, facts)
            self._used.pop(name, None)
            if sample is not None:
                self._used[name] = time.monotonic(), sample
        if unkept is not None:
            self.on_remark(f"Facts about hosts cannot be stored: {unkept.sentence()}")
        return facts

    def _keep(self, host: Host, facts: Facts) -> FileProblem | None:
        """Writes facts to the facts file, or keeps them in memory if that fails.

        Returns the error, or None if the write succeeded or facts from an earlier failed write are still in memory.
        """
        if self._closed:
            return None
        try:
            save_facts(self._facts_file, [(host, facts)])
        except FileProblem as problem:
            is_first = not self._found
            self._found[host.name] = stamped(host, facts)
            return problem if is_first else None
        self._found.pop(host.name, None)
        return None

    def _host(self, name: str) -> Host:
        if name not in self.hosts:
            raise HostError(name, f"{name} is no longer in the fleet.")
        return self.hosts[name]

    def close(self) -> None:
        """Closes all links. Runs on the hosts continue."""
        with self._lock:
            self._closed = True
            links, self._links = list(self._links.values()), {}
        closing = [*(link.close for link in links), *(other.close for other in self.others)]
        wait([in_background(close) for close in closing], CLOSE_WITHIN_S)

    def each(
        self, names: Iterable[str], ask: Callable[[str], Answer], arrived: Arrival[Answer] = lambda host, answer: None
    ) -> dict[str, Answer | HostError]:
        """Calls `ask` for each host concurrently. Returns the result or the HostError of each host.

        Raises any other exception of `ask`. `arrived` is called with each result on the caller's thread. Ctrl-C ends
        the wait immediately, because the calls run on daemon threads.
        """
        slots = threading.BoundedSemaphore(AT_ONCE)

        def ask_in_slot(name: str) -> Answer:
            with slots:
                return ask(name)

        hosts = list(names)
        futures = {in_background(ask_in_slot, name): name for name in hosts}
        found: dict[str, Answer | HostError] = {}
        for future in as_completed(futures):
            name = futures[future]
            try:
                found[name] = future.result()
            except HostError as error:
                found[name] = error
            arrived(name, found[name])
        return {name: found[name] for name in hosts}
