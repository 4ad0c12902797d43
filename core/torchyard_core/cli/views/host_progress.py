"""Progress of an operation on several hosts: a bar per host on a terminal, else a line per host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torchyard_core.cli.output import progress_bars, remark
from torchyard_core.text_sanitizer import printable


class HostProgress:
    """Progress of each host. All but `arrived` may be called on any thread."""

    def __init__(self, hosts: Iterable[str], bars: Any):
        self._bars = bars
        self._tasks = {} if bars is None else {host: bars.add_task(f"{host}: logging in", total=None) for host in hosts}

    def doing(self, host: str, what: str) -> None:
        """Shows the current operation, whose duration is unknown."""
        if self._bars is not None:
            self._bars.update(self._tasks[host], description=printable(f"{host}: {what}"))

    def sent(self, host: str, done: int, total: int) -> None:
        """Shows how many bytes of the total were sent."""
        if self._bars is not None:
            self._bars.update(self._tasks[host], description=f"{host}: sending", completed=done, total=total)

    def arrived(self, host: str, outcome: str) -> None:
        if self._bars is None:
            remark(f"{host}: {outcome}")
        else:
            self._bars.update(self._tasks[host], description=printable(f"{host}: {outcome}"), completed=1, total=1)


@contextmanager
def host_progress(hosts: Iterable[str]) -> Iterator[HostProgress]:
    """Shows progress while it is open."""
    with progress_bars() as bars:
        yield HostProgress(hosts, bars)
