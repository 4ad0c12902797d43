"""The clusters of the fleet file, with the results of their checks. All pages share these statuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.fleet.inventory import Host, login_host
from torchyard_gui.bridge.background_jobs import Job, Jobs
from torchyard_gui.bridge.host_status import UNKNOWN, CheckedEntry, HostActivity, now

if TYPE_CHECKING:
    from torchyard_core.engines.slurm.cluster_check import ClusterCheck
    from torchyard_core.engines.slurm.description import ClusterDescription
    from torchyard_core.fleet.daemon_client import DaemonClient
    from torchyard_core.fleet.fleet import Fleet
    from torchyard_gui.bridge.login_questions import LoginQuestions


@dataclass(frozen=True)
class ClusterStatus(CheckedEntry):
    """Immutable status of one cluster."""

    cluster: Cluster
    description: ClusterDescription | None = None
    """The cluster's description from the last successful check since the window was opened; None if there was none."""
    described: datetime | None = None
    """The time of the check that returned `description`."""
    state: str = UNKNOWN
    """The state of a ClusterCheck, or UNKNOWN."""
    since: datetime | None = None
    """The time at which the state began; None before the first check."""
    check: ClusterCheck | None = None
    """The last check since the window was opened, or None if there was none."""
    lost: TorchyardError | None = None
    """The error with which the login node stopped answering; None if it still answers."""
    doing: HostActivity | None = None

    @property
    def name(self) -> str:
        return self.cluster.name

    @property
    def login(self) -> Host:
        return login_host(self.cluster)

    @property
    def check_error(self) -> TorchyardError | None:
        """The error of the last check, or None if the check was successful.

        A connection that was lost after the check does not count as an error.
        """
        return self.check.error if self.check is not None else self.lost

    def checked(self, check: ClusterCheck, time: datetime) -> ClusterStatus:
        """Returns the status after a check."""
        same = check.state == self.state and self.lost is None
        return replace(
            self,
            description=check.description or self.description,
            described=time if check.description is not None else self.described,
            state=check.state,
            since=self.since if same else time,
            check=check,
            lost=None,
            doing=None,
        )

    def failed(self, error: TorchyardError, time: datetime) -> ClusterStatus:
        """Returns the status after a check that ended with an unexpected error."""
        return replace(self, state=UNKNOWN, since=time, check=None, lost=error, doing=None)


class ClusterStatuses(QObject):
    """The statuses of all clusters. If the entry of a cluster in the fleet file changes, the cluster counts as not
    checked.
    """

    changed = Signal(str)
    """Emitted with the name of a cluster whose status has changed."""

    def __init__(
        self,
        clusters: Callable[[], Sequence[Cluster]],
        fleet: Callable[[], Fleet],
        jobs: Jobs,
        questions: LoginQuestions,
        parent: QObject,
    ):
        """Shows each cluster as not checked.

        Args:
            clusters: Returns the clusters of the fleet file.
            fleet: Returns the connections to the hosts and clusters. May be called in any thread.
        """
        super().__init__(parent)
        self._clusters = clusters
        self._fleet = fleet
        self._jobs = jobs
        self._questions = questions
        self._statuses: dict[Cluster, ClusterStatus] = {}
        self._under_way: dict[Cluster, Job] = {}

    @property
    def all(self) -> Sequence[ClusterStatus]:
        """The clusters in the order of the fleet file."""
        return tuple(map(self.of, self._clusters()))

    def of(self, cluster: Cluster) -> ClusterStatus:
        return self._statuses.get(cluster) or ClusterStatus(cluster)

    def status(self, name: str) -> ClusterStatus | None:
        """Returns the status of the cluster with this name, or None if the fleet file has no such cluster."""
        return next((status for status in self.all if status.name == name), None)

    def cpus_of(self, name: str, node: str) -> int | None:
        """Returns the number of cores of a node from the last description of its cluster, or None if it is unknown."""
        status = self.status(name)
        shapes = status.description.shapes if status is not None and status.description is not None else ()
        return next((int(shape["cpus"]) for shape in shapes if node in shape.get("names", ())), None)

    def check(self, names: Iterable[str] | None = None, *, install: bool = True) -> None:
        """Logs in to clusters, by default to all of them, and reads their descriptions.

        Installs the agent on their login nodes if necessary, unless `install` is False.
        """
        wanted = None if names is None else set(names)
        for status in self.all:
            if (wanted is None or status.name in wanted) and status.cluster not in self._under_way:
                self._check(status, install=install)

    def cancel(self, names: Iterable[str]) -> None:
        """Cancels the checks in progress on the given clusters."""
        for status in map(self.status, names):
            if status is not None and (job := self._under_way.pop(status.cluster, None)) is not None:
                job.cancel()
                self.put(replace(status, doing=None))

    def put(self, status: ClusterStatus) -> None:
        """Replaces the status of a cluster."""
        self._statuses[status.cluster] = status
        self.changed.emit(status.name)

    def resume(self) -> None:
        """Checks the clusters that had stopped answering and are connected again."""
        for status in self.all:
            if status.lost is not None and status.doing is None and self._open_login(status.name) is not None:
                self._check(status, install=False)

    def _check(self, status: ClusterStatus, *, install: bool) -> None:
        cluster = status.cluster
        self._questions.begin()

        def look() -> ClusterCheck:
            from torchyard_core.engines.registry import check_cluster

            return check_cluster(self._fleet(), cluster.name, install=install)

        def done(check: ClusterCheck) -> None:
            self._under_way.pop(cluster, None)
            self.put(self.of(cluster).checked(check, now()))
            self._listen_for_end(cluster)

        def failed(error: TorchyardError) -> None:
            self._under_way.pop(cluster, None)
            self.put(self.of(cluster).failed(error, now()))

        self._under_way[cluster] = self._jobs.run(look, done, failed, owner=self)
        self.put(replace(status, doing=HostActivity("checking")))

    def _listen_for_end(self, cluster: Cluster) -> None:
        """Registers `_ended` to be called when the connection to a cluster is closed, if the connection is open."""
        login = self._open_login(cluster.name)
        if login is not None:
            tell = self._jobs.tell
            login.on_close(lambda: tell(self._ended, cluster, login))

    def _open_login(self, name: str) -> DaemonClient | None:
        from torchyard_core.engines.registry import open_login

        return open_login(self._fleet(), name)

    def _ended(self, cluster: Cluster, login: DaemonClient) -> None:
        status = self.of(cluster)
        if not status.answers or cluster in self._under_way or self._open_login(cluster.name) not in (None, login):
            return
        error = TorchyardError(f"the connection to {cluster.name} was lost.", code="unreachable")
        self.put(replace(status, state=UNKNOWN, since=now(), lost=error))
