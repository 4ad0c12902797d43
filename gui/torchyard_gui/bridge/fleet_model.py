"""The window's model of the fleet: hosts of the fleet file, their status, and actions on them.

The property `fleet` may be used on any thread. All other public members may be used only on the GUI thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.background_thread import in_background
from torchyard_core.errors import HostError, TorchyardError
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.fleet.gpu_occupancy import SAMPLE_VALID_S
from torchyard_core.fleet.host_audit import Act
from torchyard_core.fleet.host_check import HostCheck, check_host, failed_check
from torchyard_core.fleet.host_facts_cache import Facts, forget_facts, load_facts, planner_hosts, rename_facts
from torchyard_core.fleet.host_key_trust import ShownKey, record_key, show_key
from torchyard_core.fleet.inventory import (
    DEFAULT_HOSTS,
    Host,
    Inventory,
    add_cluster,
    add_host,
    change_cluster,
    change_hosts,
    read_fleet,
    remove_cluster,
    remove_host,
)
from torchyard_core.home import Home
from torchyard_core.topology.host_facts import HostFacts
from torchyard_gui.bridge.background_jobs import Cancelled, Job, Jobs, explain
from torchyard_gui.bridge.clusters.cluster_statuses import ClusterStatuses
from torchyard_gui.bridge.host_links import HostLinks
from torchyard_gui.bridge.host_states import HostState
from torchyard_gui.bridge.host_status import UNKNOWN, HostActivity, HostStatus, checked_at, now
from torchyard_gui.bridge.login_questions import LoginQuestions
from torchyard_gui.bridge.planner.host_availability import HostAvailability

if TYPE_CHECKING:
    from torchyard_core.fleet.fleet import Fleet


SAMPLE_EVERY_MS = 1000
"""Interval in milliseconds between samples while a page shows the hosts."""
HEARTBEAT_EVERY_MS = 2500
"""Interval in milliseconds between samples while no page shows the hosts. Samples are needed even then, because every
page shows outages and GPU use.
"""
SEARCH_TIMEOUT_S = 90.0
"""Timeout in seconds of a search for interpreters on a host. It is long because the host's file system may be slow."""

Failed = Callable[[TorchyardError], None]


class FleetModel(QObject):
    """Model of the hosts and their status. Signals about a single host carry the host's name."""

    hosts_changed = Signal()
    """Emitted when the list of hosts, or the `problem` of the fleet file, has changed."""
    host_changed = Signal(str)
    """Emitted when a host's status, such as its state, facts or activity, has changed."""
    use_changed = Signal(str)
    """Emitted when a host's sample has arrived or expired; about once a second while a page shows the hosts."""
    undeployed = Signal(object)
    """Emitted with a Removed when an agent has been removed, or when removing it has failed."""
    facts_changed = Signal()
    """Emitted when `facts()` may have changed, for example after a check, or when the users or bookings of a GPU have
    changed.
    """

    def __init__(
        self, home: Home, fleet_file: Path, parent: QObject | None = None, questions: LoginQuestions | None = None
    ):
        """Reads the fleet file and the recorded facts, without contacting a host.

        Args:
            questions: Asks the user for passphrases, passwords and codes. If None, logins that need an answer fail.
        """
        super().__init__(parent)
        self.questions = questions or LoginQuestions(self)
        self._asks = questions is not None
        self.home = home
        self.fleet_file = fleet_file
        self.facts_file = fleet_file.with_name("facts.json")
        self.jobs = Jobs(self)
        self.problem: TorchyardError | None = None
        """The error of the fleet file, or None. If there is an error, `hosts` are those of the file's last valid
        version.
        """
        self.has_looked = False
        """Whether a check of all hosts was started since the window was opened."""
        self._inventory = Inventory(fleet_file, DEFAULT_HOSTS, (), None)
        self.clusters = ClusterStatuses(
            lambda: self._inventory.clusters, lambda: self.fleet, self.jobs, self.questions, parent=self
        )
        self._statuses: dict[str, HostStatus] = {}
        self._file_seen: object = None
        self._facts_seen: object = None
        self._known: dict[str, Facts] = {}
        self._under_way: dict[str, Job] = {}
        self._links = HostLinks(self.jobs, self._silent, self._sampled)
        self._fleet: Fleet | None = None
        self._fleet_lock = threading.Lock()
        self._closed = False
        self._clock = QTimer(self, interval=SAMPLE_EVERY_MS)
        self._clock.timeout.connect(self._tick)
        self._sampled_at: dict[str, float] = {}
        """When each host was sampled last, by the monotonic clock."""
        self._expiry = QTimer(self, singleShot=True, interval=int(SAMPLE_VALID_S * 1000))
        """Drops samples that have become too old after the periodic queries stopped."""
        self._expiry.timeout.connect(self._drop_old_samples)
        self._watchers: set[str] = set()
        self._looked_at = ""
        self._acts_shown = 0
        self._planned = HostAvailability(self, home.history)
        self._planned.changed.connect(self.facts_changed)
        self._read_file()
        self._read_facts()
        self.hosts_changed.connect(self._planned.notify)
        for signal in (self.host_changed, self.use_changed):
            signal.connect(lambda name: self._planned.look(name, self.status(name)))

    @property
    def hosts(self) -> Sequence[HostStatus]:
        """All hosts in the order of the fleet file."""
        return tuple(self._statuses.values())

    def status(self, name: str) -> HostStatus | None:
        return self._statuses.get(name)

    def facts(self) -> Sequence[HostFacts]:
        """Returns the facts of all hosts for the planner, including the current users of GPUs where they are known."""
        return tuple(map(self._planned.of, self._statuses.values()))

    def states(self) -> Mapping[str, HostState]:
        """Returns the state of each host by name."""
        return {name: status.condition for name, status in self._statuses.items()}

    def set_booked(self, booked: Mapping[str, str], *, is_later: bool = False) -> None:
        """Sets the GPUs that other users have booked. The planner treats them as taken.

        Args:
            booked: For each booked slot, a description of its booking, such as `kim until 18:00`.
            is_later: Whether the planned time begins later than now. If so, the current GPU use does not matter.
        """
        self._planned.set_booked(booked, is_later=is_later)

    @property
    def inventory(self) -> Inventory:
        """The last valid contents of the fleet file."""
        return self._inventory

    @property
    def fleet(self) -> Fleet:
        """The fleet with the SSH links to the hosts, shared by the whole window.

        It is created on first access, which should be on a background thread because the creation is slow.
        """
        from torchyard_core.engines.registry import open_fleet  # Deferred, since it loads paramiko (0.25 s).

        with self._fleet_lock:
            if self._fleet is None:
                ours = self.home.known_hosts, self.facts_file
                questions = self.questions if self._asks else None
                self._fleet = open_fleet(self._inventory.hosts, self._inventory.clusters, *ours, questions)
                if self._closed:
                    self._fleet.close()
            return self._fleet

    def refresh(self) -> None:
        """Reads the fleet file and the recorded facts again if a command or another program has changed them."""
        if signature_of(self.fleet_file) != self._file_seen:
            self._read_file()
            self.hosts_changed.emit()
        self._read_facts()

    def check(self, names: Iterable[str] | None = None) -> None:
        """Checks hosts, by default all of them. A check changes nothing on a host."""
        self.refresh()
        self.questions.begin()
        self.has_looked = self.has_looked or names is None
        self._start(names, "checking", install=False)

    def deploy(self, names: Iterable[str]) -> None:
        """Installs or updates the agent on hosts, and then reads the hosts' facts."""
        self.questions.begin()
        self._start(names, "deploying", install=True)

    def undeploy(self, names: Iterable[str]) -> None:
        """Removes the agent from hosts, with the logs and outputs of past runs. Hosts with live runs refuse this."""
        self.questions.begin()
        self._start(names, "undeploying", install=False)

    def cancel(self, names: Iterable[str]) -> None:
        for name in names:
            if job := self._under_way.pop(name, None):
                job.cancel()
                self._change(name, doing=None)
        if not self._under_way:
            self.questions.hush()

    def add(self, host: Host) -> None:
        """Adds a host to the fleet file. Raises TorchyardError if the file cannot be changed."""
        add_host(self.fleet_file, host)
        self.refresh()

    def change(self, edits: Sequence[tuple[Host, Host]]) -> None:
        """Replaces hosts in the fleet file, given as pairs (before, after).

        Raises TorchyardError if the file cannot be changed.
        """
        change_hosts(self.fleet_file, edits)
        for before, after in edits:
            if before.name != after.name:
                rename_facts(self.facts_file, before.name, after.name)
        self.refresh()

    def find_interpreters(
        self, name: str, done: Callable[[list[dict[str, Any]]], None], failed: Failed, owner: QObject | None = None
    ) -> Job:
        """Asks a host's agent for the interpreters on the host. The result is the answer to `host.pythons`."""
        python = self._statuses[name].host.python
        self.questions.begin()

        def search() -> list[dict[str, Any]]:
            link = self.fleet.link(name, install=False)
            found: list[dict[str, Any]] = link.call("host.pythons", {"python": python}, SEARCH_TIMEOUT_S)
            return found

        return self.jobs.run(search, done, failed, owner=owner)

    def remove(self, name: str) -> None:
        """Removes a host from the fleet file. The host's agent stays installed.

        Raises TorchyardError if the file cannot be changed.
        """
        remove_host(self.fleet_file, name)
        forget_facts(self.facts_file, name)
        self.refresh()

    def add_cluster(self, cluster: Cluster) -> None:
        """Adds a cluster to the fleet file. Raises TorchyardError if the file cannot be changed."""
        add_cluster(self.fleet_file, cluster)
        self.refresh()

    def change_cluster(self, before: Cluster, after: Cluster) -> None:
        """Replaces a cluster in the fleet file. Raises TorchyardError if the file cannot be changed."""
        change_cluster(self.fleet_file, before, after)
        self.refresh()

    def remove_cluster(self, name: str) -> None:
        """Removes a cluster from the fleet file. The cluster's runs continue.

        Raises TorchyardError if the file cannot be changed.
        """
        remove_cluster(self.fleet_file, name)
        self.refresh()

    def ask_key(self, name: str, done: Callable[[ShownKey], None], failed: Failed, owner: QObject | None = None) -> Job:
        """Requests the host key of the host, login node or bastion with the given name."""
        inventory = self._inventory
        self.questions.begin()
        return self.jobs.run(lambda: show_key(inventory, name, self.fleet.dialer), done, failed, owner=owner)

    def trust(self, key: ShownKey, done: Callable[[], None], failed: Failed, owner: QObject | None = None) -> Job:
        """Records a host key that the user has verified."""
        return self.jobs.run(lambda: record_key(key, self.fleet.dialer), lambda _: done(), failed, owner=owner)

    def watch(self, on: bool, by: str = "") -> None:
        """Sets whether the caller `by` watches hosts.

        While any caller watches hosts, connected hosts are asked for the users of their GPUs every second, and the
        fleet file and the recorded facts are read again if they have changed.
        """
        if on and not self._closed:
            self._expiry.stop()
            self._watchers.add(by)
            self._set_pace()
            self._tick()
            return
        self._watchers.discard(by)
        self._set_pace()

    def _set_pace(self) -> None:
        """Sets how often hosts are asked for samples: often while a caller watches them, otherwise rarely. If no caller
        watches hosts and there are no links, no samples are requested.
        """
        if self._closed or not (self._watchers or self._fleet is not None):
            self._clock.stop()
            if self._sampled_at and not self._closed:
                self._expiry.start()
            return
        interval = SAMPLE_EVERY_MS if self._watchers else HEARTBEAT_EVERY_MS
        if not self._clock.isActive() or self._clock.interval() != interval:
            self._clock.start(interval)

    def show_acts_of(self, name: str, count: int = 0) -> None:
        """Sets the host whose details are shown, or "" if there is none, and loads its latest `count` audit records."""
        self._looked_at, self._acts_shown = name, count
        self._ask_acts(name)

    def close(self) -> None:
        """Closes links and jobs without waiting for them."""
        self._clock.stop()
        self._expiry.stop()
        self._planned.stop()
        self._closed = True
        self.questions.close()
        self.jobs.close()
        self._links.close()
        for job in self._under_way.values():
            job.cancel()
        with self._fleet_lock:
            if self._fleet is not None:
                in_background(self._fleet.close)

    def _start(self, names: Iterable[str] | None, kind: str, *, install: bool) -> None:
        wanted = [
            name
            for name in (self._statuses if names is None else names)
            if name in self._statuses and name not in self._under_way
        ]
        if not wanted or self._closed:
            return
        if self._fleet is not None:
            self._use_inventory(self._fleet)  # ~/.ssh/config may have changed since the last check.
        jobs = {name: Job() for name in wanted}
        self._under_way |= jobs
        for name in wanted:
            self._change(name, doing=HostActivity("waiting" if len(wanted) > 1 else kind), remark="")

        def ask(name: str) -> HostCheck | None:
            return self._ask(name, jobs[name], kind, install)

        def arrived(name: str, answer: Any) -> None:
            self.jobs.tell(self._arrived, name, jobs[name], kind, answer)

        def failed(error: TorchyardError) -> None:
            for name in wanted:
                self._arrived(name, jobs[name], kind, failed_check(name, UNKNOWN, error))

        self.jobs.run(lambda: self.fleet.each(wanted, ask, arrived), failed=failed)

    def _ask(self, name: str, job: Job, kind: str, install: bool) -> HostCheck | None:
        """Checks a host or deploys its agent. Called on a background thread. Returns None if the job was cancelled."""

        def doing(what: HostActivity) -> None:
            job.checkpoint()
            self.jobs.tell(self._set_activity, name, job, what)

        try:
            doing(HostActivity(kind))
            if kind == "undeploying" and (failed := self._undeploy(name)) is not None:
                return failed
            return check_host(
                self.fleet,
                name,
                install=install,
                replace_same_version=install,
                progress=lambda host, done, total: doing(HostActivity("sending", done, total)),
                looking=lambda: doing(HostActivity("looking")),
            )
        except Cancelled:
            return None
        except Exception as error:  # An error on one host must not discard the results of others.
            return failed_check(name, UNKNOWN, explain(error))

    def _undeploy(self, name: str) -> HostCheck | None:
        """Removes the agent from a host. Called on a background thread. Returns None, or a failed check if the host
        could not be used.
        """
        from torchyard_core.app.undeploy_hosts import undeploy_host

        removed = undeploy_host(self.fleet, name)
        self.jobs.tell(self.undeployed.emit, removed)
        error = removed.error
        return failed_check(name, error.state, error) if removed.failed and isinstance(error, HostError) else None

    def _set_activity(self, name: str, job: Job, what: HostActivity) -> None:
        if self._under_way.get(name) is job:
            self._change(name, doing=what)

    def _arrived(self, name: str, job: Job, kind: str, answer: HostCheck | TorchyardError | None) -> None:
        if self._under_way.get(name) is not job or not job.finish():
            return
        del self._under_way[name]
        self._set_pace()
        if not isinstance(answer, HostCheck):
            self._change(name, doing=None)
            return
        self._read_facts()
        self._statuses[name] = self._statuses[name].checked(answer, now(), self._remark(answer, kind))
        self._hold_link(name)
        self.host_changed.emit(name)
        if name == self._looked_at:
            self._ask_acts(name)

    def _remark(self, check: HostCheck, kind: str) -> str:
        """Returns the version of an agent that a deployment kept because it was newer; "" if there was none."""
        from torchyard_core.fleet.agent_archive import build_archive

        theirs = check.agent["version"] if check.agent else ""
        return str(theirs) if kind == "deploying" and theirs not in ("", build_archive().version) else ""

    def _hold_link(self, name: str) -> None:
        link = self._fleet.open_link(name) if self._fleet is not None else None
        if link is not None:
            self._links.hold(name, link)

    def _ask_acts(self, name: str) -> None:
        """Loads the audit records of a host if it is connected. Does not open a link."""
        link = self._fleet.open_link(name) if self._fleet is not None else None
        if link is not None:
            self._links.ask_acts(name, link, self._acts_shown, self._acts_read)

    def _acts_read(self, name: str, acts: tuple[Act, ...]) -> None:
        status = self._statuses.get(name)
        if status is not None and status.acts != acts:
            self._change(name, acts=acts)

    def _silent(self, name: str, why: TorchyardError, heard: datetime) -> None:
        status = self._statuses.get(name)
        # A deployment closes the link itself and reports its own result, so a link that closes then is not a failure.
        if status is not None and status.answers and name not in self._under_way:
            self._statuses[name] = status.silent(why, heard)
            self.host_changed.emit(name)

    def _drop_old_samples(self) -> None:
        """Marks the GPU use as unknown on hosts whose last sample is too old."""
        oldest = time.monotonic() - SAMPLE_VALID_S
        for name, status in tuple(self._statuses.items()):
            if status.sample is not None and self._sampled_at.get(name, math.inf) <= oldest:
                self._statuses[name] = replace(status, sample=None)
                self.use_changed.emit(name)

    def _tick(self) -> None:
        self.refresh()
        self._drop_old_samples()
        if self._fleet is None:
            return
        self.clusters.resume()
        for name in tuple(self._statuses):
            link = self._fleet.open_link(name)
            if link is None or self._links.is_asking(name):
                continue
            if not self._links.holds(name, link) and not self._statuses[name].answers:
                # Another action, such as a launch, has connected to this host, so the host can be checked.
                self._start([name], "checking", install=False)
            self._links.hold(name, link)
            self._links.ask(name, link)

    def _sampled(self, name: str, sample: dict[str, Any]) -> None:
        before = self._statuses.get(name)
        if before is None:
            return
        self._sampled_at[name] = time.monotonic()
        after = self._statuses[name] = before.sampled(sample, now())
        if after.state != before.state:
            self.host_changed.emit(name)
        else:
            self.use_changed.emit(name)

    def _read_file(self) -> None:
        self._file_seen = signature_of(self.fleet_file)
        try:
            inventory = read_fleet(self.fleet_file).usable()
        except TorchyardError as error:
            self.problem = error
            if self._statuses:
                return
            inventory = Inventory(self.fleet_file, (), (), None)
        else:
            self.problem = None
        self._inventory = inventory
        before = self._statuses
        planned = planner_hosts(inventory.hosts, self._known)
        self._statuses = {
            host.name: self._kept(before.get(host.name), host, facts)
            for host, facts in zip(inventory.hosts, planned, strict=True)
        }
        for name in before.keys() - {name for name, status in self._statuses.items() if status is before.get(name)}:
            self._links.forget(name)
            if job := self._under_way.pop(name, None):
                job.cancel()
        with self._fleet_lock:
            fleet = self._fleet
        if fleet is not None:
            self._use_inventory(fleet)

    def _use_inventory(self, fleet: Fleet) -> None:
        from torchyard_core.engines.registry import use_inventory

        use_inventory(fleet, self._inventory.hosts, self._inventory.clusters)

    def cluster_of(self, host: str) -> str:
        """Returns the cluster whose runs use a host of this name, or "" if there is none."""
        return next((cluster.name for cluster in self._inventory.clusters if cluster.owns(host)), "")

    def _kept(self, before: HostStatus | None, host: Host, facts: HostFacts) -> HostStatus:
        """Returns the known status of a host, or an initial status if the host is new or its entry in the fleet file
        was edited.
        """
        if before is not None and before.host == host:
            return before
        return HostStatus.from_facts(host, facts, self._known.get(host.name, {}))

    def _read_facts(self) -> None:
        signature = signature_of(self.facts_file)
        if signature == self._facts_seen:
            return
        self._facts_seen = signature
        self._known = load_facts(self.facts_file)
        planned = planner_hosts(self._inventory.hosts, self._known)
        for facts in planned:
            before = self._statuses[facts.name]
            found = self._known.get(facts.name, {}) if facts.checked else {}
            if before.facts == facts and before.found == found:
                continue
            after = replace(before, facts=facts, found=found)
            if before.check is None:
                after = replace(after, since=checked_at(found))
            self._statuses[facts.name] = after
            self.host_changed.emit(facts.name)

    def _change(self, name: str, **changes: Any) -> None:
        status = self._statuses.get(name)
        if status is not None:
            self._statuses[name] = replace(status, **changes)
            self.host_changed.emit(name)


def signature_of(path: Path) -> object:
    """Returns a file's modification time, size and inode, or None if they cannot be read."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
