"""The window's links to hosts: detects lost links, and requests samples and audit records over the links."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.host_audit import Act, read_audit
from torchyard_gui.bridge.background_jobs import Job, Jobs
from torchyard_gui.bridge.host_status import now

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import DaemonClient

SILENT_AFTER_S = 10.0
"""If a host has not answered for this many seconds, its state counts as unknown."""

Silent = Callable[[str, TorchyardError, datetime], None]
Sampled = Callable[[str, dict[str, Any]], None]


class HostLinks:
    """Watches links and sends queries over them.

    `silent` is called when a host no longer answers, with the host, the error, and the time of the last answer.
    `sampled` is called with a host and each of its telemetry samples.
    """

    def __init__(self, jobs: Jobs, silent: Silent, sampled: Sampled):
        self._jobs = jobs
        self._silent = silent
        self._sampled = sampled
        self._links: dict[str, DaemonClient] = {}
        self._asking: dict[str, Job] = {}

    def holds(self, name: str, link: DaemonClient) -> bool:
        """Returns whether `link` is the current link of a host."""
        return self._links.get(name) is link

    def hold(self, name: str, link: DaemonClient) -> None:
        """Makes `link` the current link of a host, and watches whether it is closed."""
        if not self.holds(name, link):
            self._links[name] = link
            link.on_close(partial(self._jobs.tell, self._lost, name, link))

    def is_asking(self, name: str) -> bool:
        """Returns whether a request for a sample from the host is pending."""
        return name in self._asking

    def ask(self, name: str, link: DaemonClient) -> None:
        """Requests a telemetry sample, which includes the users of GPUs, from a host."""
        asked = now()
        job = self._asking[name] = Job()

        def done(sample: dict[str, Any]) -> None:
            self._asking.pop(name, None)
            self._sampled(name, sample)

        def failed(error: TorchyardError) -> None:
            self._asking.pop(name, None)
            self._silent(name, error, asked)

        self._jobs.run(lambda: link.call("telemetry.sample", {}, SILENT_AFTER_S), done, failed, job=job)

    def ask_acts(self, name: str, link: DaemonClient, count: int, done: Callable[[str, tuple[Act, ...]], None]) -> None:
        """Requests the latest `count` audit records of a host, and calls `done` with them. A failure is ignored."""
        self._jobs.run(lambda: read_audit(link, count), partial(done, name))

    def forget(self, name: str) -> None:
        self._links.pop(name, None)
        if job := self._asking.pop(name, None):
            job.cancel()

    def close(self) -> None:
        """Cancels the pending requests for samples, so that their answers are ignored."""
        for job in self._asking.values():
            job.cancel()

    def _lost(self, name: str, link: DaemonClient) -> None:
        if self.holds(name, link):
            del self._links[name]
            why = TorchyardError(f"the connection to {name} was lost.", code="lost", hint="Runs there continue.")
            self._silent(name, why, now())
