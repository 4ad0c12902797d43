"""The hosts of a team as one object: links that are opened side by side and kept, one to a host."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import as_completed, wait
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from torchyard_core.background_thread import in_background
from torchyard_core.errors import AgentRefused, FileProblem, HostError
from torchyard_core.fleet.agent_archive import build_archive
from torchyard_core.fleet.agent_deployment import attach
from torchyard_core.fleet.credential_prompts import Questions
from torchyard_core.fleet.daemon_client import Link
from torchyard_core.fleet.gpu_occupancy import SAMPLE_TIMEOUT_S, with_use
from torchyard_core.fleet.host_facts_cache import Facts, load_facts, planner_hosts, save_facts, stamped
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh import SshDialer
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.topology.host_facts import HostFacts

LOOK_TIMEOUT_S = 60.0
"""A first look starts the programs' Python, over NFS maybe."""
AT_ONCE = 256
"""Hosts that are asked at the same time: hosts that do not answer delay no others. Logins at one sshd are bounded by
the dialer."""
USE_HOLDS_S = 30.0
"""How long it is believed who uses a host's GPUs: long enough for a launch to plan on what it has looked at."""
CLOSE_WITHIN_S = 5.0
"""How long open links may take to say goodbye."""

Answer = TypeVar("Answer")

Progress = Callable[[str, int, int], None]
"""(host, bytes sent, bytes in all)."""
Arrival = Callable[[str, Answer | HostError], None]
"""(host, what came from it)."""


class Fleet:
    """Opens links to hosts and closes them all at the end. One dead host delays no other."""

    def __init__(
        self,
        hosts: Iterable[Host],
        known_hosts: Path,
        facts_file: Path,
        questions: Questions | None = None,
        on_remark: Callable[[str], None] = lambda remark: None,
    ):
        """`known_hosts` and `facts_file` are of ours: keys that were trusted, and what was found out before.

        `questions`: who asks the user for passphrases, passwords and codes; nobody by default. `on_remark` is told,
        once and on any thread, where an agent's version is not this desktop's, and where facts cannot be kept.
        """
        self.hosts: Mapping[str, Host] = {host.name: host for host in hosts}
        self.dialer = SshDialer(known_hosts, questions)
        self._facts_file = facts_file
        self._found: dict[str, Facts] = {}
        """What was found out since, where it could not be kept in that file."""
        self._links: dict[str, Link] = {}
        self._used: dict[str, tuple[float, Mapping[str, Any]]] = {}
        """The last sample of each host's telemetry, with when it came."""
        self._on_remark = on_remark
        self._remarked: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def use(self, hosts: Iterable[Host]) -> None:
        """These are the hosts from now on; `~/.ssh/config` is read anew. Links to hosts that left or changed close."""
        after = {host.name: host for host in hosts}
        self.dialer.reread()
        with self._lock:
            gone = [name for name in self._links if self.hosts.get(name) != after.get(name)]
            links = [self._links.pop(name) for name in gone]
            self.hosts = after
        for link in links:
            in_background(link.close)

    def open_link(self, name: str) -> Link | None:
        """The link to a host, if there is one now. Nobody is called."""
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
    ) -> Link:
        """The link to one host, opened where there is none. Raises a HostError."""
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
            self._on_remark(link.remark)
        with self._lock:
            other = self._links.get(name)
            closed = self._closed
            wanted = not closed and self.hosts.get(name) == host
            if wanted and (other is None or other is known or not other.is_open):
                self._links[name] = link
                return link
        link.close()
        if wanted and other is not None:
            return other  # somebody else was faster: one link to a host is enough
        what = "the fleet was closed" if closed else f"{name} was taken out of the fleet"
        raise HostError(name, f"{what} while the host was being reached.")

    def links(
        self,
        names: Iterable[str] | None = None,
        *,
        install: bool = True,
        replace_same_version: bool = False,
        progress: Progress = lambda host, done, total: None,
    ) -> dict[str, Link | HostError]:
        """Links to these hosts (all by default), or what is in the way, opened side by side."""

        def one(name: str) -> Link:
            return self.link(name, install=install, replace_same_version=replace_same_version, progress=progress)

        return self.each(self.hosts if names is None else names, one)

    def known(self) -> Sequence[HostFacts]:
        """Every host as the planner sees it, by what was found out when it was last looked at.

        Who uses its GPUs is known of hosts that were looked at just now.
        """
        with self._lock:
            unkept = dict(self._found)
        planned = planner_hosts(list(self.hosts.values()), {**load_facts(self._facts_file), **unkept})
        since = time.monotonic() - USE_HOLDS_S
        with self._lock:
            used = {name: sample for name, (came, sample) in self._used.items() if came >= since}
        return tuple(with_use(facts, used.get(facts.name)) for facts in planned)

    def reach(
        self, names: Sequence[str], arrived: Callable[[str, AgentLink | HostError], None] = lambda host, link: None
    ) -> dict[str, AgentLink | HostError]:
        """Links to these hosts, or what is in the way, side by side. `arrived` is called for each as it comes."""
        return dict(self.each(names, self.link, arrived))

    def look(self, name: str, python: str | None = None) -> dict[str, Any]:
        """What a host has, by its own account; kept for the planner, with who uses its GPUs now.

        Raises a HostError or AgentRefused.
        """
        host = self._host(name)
        # On this computer the programs' Python is, unless said otherwise, the one that Torchyard itself has.
        wanted = python or host.python or (sys.executable if host.local else None)
        link = self.link(name)
        facts: dict[str, Any] = link.call("host.facts", {"python": wanted}, LOOK_TIMEOUT_S)
        try:
            sample = link.call("telemetry.sample", {}, SAMPLE_TIMEOUT_S)
        except AgentRefused:
            sample = None  # What the host has is known all the same; who uses it is not.
        with self._lock:
            unkept = self._keep(host, facts)
            self._used.pop(name, None)
            if sample is not None:
                self._used[name] = time.monotonic(), sample
        if unkept is not None:
            self._on_remark(f"What was found out about hosts is not kept: {unkept.sentence()}")
        return facts

    def _keep(self, host: Host, facts: Facts) -> FileProblem | None:
        """Keeps facts for the next time; where this computer's disk does not take them, for this time, and says why
        (once). A fleet that is closed writes no more: the program may end in the middle of it."""
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
        """Closes every link. What runs on the hosts goes on."""
        with self._lock:
            self._closed = True
            links, self._links = list(self._links.values()), {}
        wait([in_background(link.close) for link in links], CLOSE_WITHIN_S)

    def each(
        self, names: Iterable[str], ask: Callable[[str], Answer], arrived: Arrival[Answer] = lambda host, answer: None
    ) -> dict[str, Answer | HostError]:
        """What `ask` gives for each host, or the HostError that it raises; the hosts are asked side by side.

        `arrived` is called for each as it comes, on the caller's thread. Ctrl-C ends the waiting at once: hosts that
        do not answer are left to threads that nobody waits for.
        """
        turns = threading.BoundedSemaphore(AT_ONCE)

        def ask_in_turn(name: str) -> Answer:
            with turns:
                return ask(name)

        wanted = list(names)
        futures = {in_background(ask_in_turn, name): name for name in wanted}
        found: dict[str, Answer | HostError] = {}
        for future in as_completed(futures):
            name = futures[future]
            try:
                found[name] = future.result()
            except HostError as error:
                found[name] = error
            arrived(name, found[name])
        return {name: found[name] for name in wanted}
