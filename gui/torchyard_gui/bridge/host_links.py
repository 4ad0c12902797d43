"""Links to hosts, as the window holds them: it hears of their end, and asks over them who uses a host, and what was
done to it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.host_audit import Act, read_acts
from torchyard_gui.bridge.host_status import now
from torchyard_gui.bridge.jobs import Job, Jobs

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import Link

SILENT_AFTER_S = 10.0
"""A host that has not answered for so long is told as unknown."""
NEWEST_ACTS = 5
"""So many are told of a host."""

Silent = Callable[[str, TorchyardError, datetime], None]
Sampled = Callable[[str, dict[str, Any]], None]


class HostLinks:
    """`silent` is called with a host, why nothing more is heard of it, and since when; `sampled` with its answer."""

    def __init__(self, jobs: Jobs, silent: Silent, sampled: Sampled):
        self._jobs = jobs
        self._silent = silent
        self._sampled = sampled
        self._links: dict[str, Link] = {}
        self._asking: dict[str, Job] = {}

    def holds(self, name: str, link: Link) -> bool:
        """Whether this is the link of the host that is held already."""
        return self._links.get(name) is link

    def hold(self, name: str, link: Link) -> None:
        """Hears of the end of a host's link."""
        if not self.holds(name, link):
            self._links[name] = link
            link.on_close(partial(self._jobs.tell, self._lost, name, link))

    def is_asking(self, name: str) -> bool:
        """Whether a host still owes its answer."""
        return name in self._asking

    def ask(self, name: str, link: Link) -> None:
        """Asks who uses a host."""
        asked = now()
        job = self._asking[name] = Job()

        def done(sample: dict[str, Any]) -> None:
            self._asking.pop(name, None)
            self._sampled(name, sample)

        def failed(error: TorchyardError) -> None:
            self._asking.pop(name, None)
            self._silent(name, error, asked)

        self._jobs.run(lambda: link.call("telemetry.sample", {}, SILENT_AFTER_S), done, failed, job=job)

    def ask_acts(self, name: str, link: Link, told: Callable[[str, tuple[Act, ...]], None]) -> None:
        """Asks what was done to a host last. One that cannot say leaves what was known of it."""
        self._jobs.run(lambda: read_acts(link, NEWEST_ACTS), partial(told, name))

    def let_go(self, name: str) -> None:
        """Of a host that has left the fleet nothing more is told."""
        self._links.pop(name, None)
        if job := self._asking.pop(name, None):
            job.cancel()

    def close(self) -> None:
        """Waits for no answer any more."""
        for job in self._asking.values():
            job.cancel()

    def _lost(self, name: str, link: Link) -> None:
        if self.holds(name, link):
            del self._links[name]
            why = TorchyardError(f"the connection to {name} was lost.", code="lost", hint="What runs there goes on.")
            self._silent(name, why, now())
