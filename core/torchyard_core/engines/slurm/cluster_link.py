"""Links to the nodes of runs on a cluster. All links share one SSH connection to the cluster's login node."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from torchyard_core.fleet.agent_archive import build_archive
from torchyard_core.fleet.agent_deployment import attach
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.fleet.daemon_client import CALL_TIMEOUT_S, DaemonClient, Listener
from torchyard_core.fleet.inventory import login_host
from torchyard_core.fleet.ssh import SshDialer


class NodeLink(DaemonClient):
    """The link to one slot of a cluster. The links of all slots share the connection to the login node."""

    def __init__(self, slot: str, login: DaemonClient):  # super().__init__ is not called: it would start a thread.
        self.host = slot
        self.hello = login.hello
        self.python = login.python
        self.ssh_address = login.ssh_address
        self.remark = login.remark
        self.agent_is_newer = login.agent_is_newer
        self.archive = login.archive
        self._login = login

    @property
    def is_open(self) -> bool:
        return self._login.is_open

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        return self._login.submit(method, {**params, "node": self.host})

    def call(self, method: str, params: dict[str, Any] | None = None, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        return self._login.call(method, {**(params or {}), "node": self.host}, timeout_s)

    def listen(self, method: str, listener: Listener) -> Callable[[], None]:
        def pass_on(params: dict[str, Any]) -> None:
            if params.get("node", self.host) == self.host:
                listener(params)

        return self._login.listen(method, pass_on)

    def on_close(self, callback: Callable[[], None]) -> None:
        self._login.on_close(callback)

    def close(self) -> None:
        """Does nothing, because all slots share the connection. `ClusterHosts.close` closes it."""


class ClusterHosts:
    """The slots of the runs on one cluster, and the connection to its login node."""

    def __init__(self, cluster: Cluster, dialer: SshDialer, on_remark: Callable[[str], None] = lambda remark: None):
        self.cluster = cluster
        self.lists_runs = cluster.slot(1)
        self.mirroring = threading.Lock()
        """Held while reservations are mirrored, so that two threads do not create the same reservation."""
        self._dialer = dialer
        self._on_remark = on_remark
        self._login: DaemonClient | None = None
        self._slots: dict[str, NodeLink] = {}
        self._lock = threading.Lock()

    def owns(self, name: str) -> bool:
        return self.cluster.owns(name)

    def login(self, *, install: bool = True) -> DaemonClient:
        """Returns the connection to the login node, and opens it if necessary. Raises HostError if that fails."""
        with self._lock:
            if self._login is not None and self._login.is_open:
                return self._login
            link = attach(
                login_host(self.cluster), self._dialer, build_archive(), install=install, cluster=self.cluster.name
            )
            if link.remark:
                self._on_remark(link.remark)
            self._login = link
            self._slots = {}
            return link

    @property
    def open_login(self) -> DaemonClient | None:
        """The connection to the login node if it is open."""
        login = self._login
        return login if login is not None and login.is_open else None

    def link(self, name: str, *, install: bool) -> NodeLink:
        login = self.login(install=install)
        with self._lock:
            if name not in self._slots:
                self._slots[name] = NodeLink(name, login)
            return self._slots[name]

    def close(self) -> None:
        with self._lock:
            login, self._login = self._login, None
        if login is not None:
            login.close()
