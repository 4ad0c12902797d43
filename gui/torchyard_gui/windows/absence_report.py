"""Reports what happened while no window was open, in a notice above every page such as "Since 18:42: run resnet
finished".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject, Signal

from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_gui.bridge.host_status import HostStatus
from torchyard_gui.runs.labels import day_and_clock
from torchyard_gui.runs.run_titles import title_of
from torchyard_gui.widgets import NoticeBar
from torchyard_gui.windows.window_session import SessionState

NAMED = 3
"""Maximum number of runs that the notice names. Any other runs are only counted. If more hosts than this were lost,
only their number is shown.
"""


class AbsenceReport(QObject):
    """Compares runs and hosts with the state that the last window saved. Each run or host is compared once, as soon as
    its current state is known.
    """

    run_wanted = Signal(str)
    """Emitted with the ID of a run to show."""
    fleet_wanted = Signal()

    def __init__(self, before: SessionState, parent: QObject) -> None:
        super().__init__(parent)
        self.bar = NoticeBar()
        self._since = before.seen_at
        self._unheard_runs = set(before.live_runs)
        self._unheard_hosts = set(before.hosts)
        self._ended: list[KnownRun] = []
        self._reported: set[str] = set()
        self._lost: list[str] = []
        self._calls: list[Callable[[], None]] = []
        self._runs: Sequence[KnownRun] = ()
        self.bar.action_triggered.connect(lambda number: self._calls[number]())
        self.bar.closed.connect(self._forget)

    def has_reported(self, run_id: str) -> bool:
        """Returns whether this notice has reported the end of a run."""
        return run_id in self._reported

    def take_runs(self, runs: Sequence[KnownRun]) -> None:
        """Reports the runs that have ended since the last window was open. `runs` contains all known runs."""
        self._runs = runs
        heard = [run for run in runs if run.run_id in self._unheard_runs and (run.has_ended or run.is_fresh)]
        self._unheard_runs -= {run.run_id for run in heard}
        ended = [run for run in heard if run.has_ended]
        if ended:
            self._ended += ended
            self._reported |= {run.run_id for run in ended}
            self._show()

    def take_host(self, host: HostStatus) -> None:
        """Reports a host as lost if the host answered while the last window was open and is unreachable now."""
        if host.name not in self._unheard_hosts or host.doing is not None:
            return
        if host.answers or host.has_no_agent:
            self._unheard_hosts.discard(host.name)
        elif host.check is not None or host.lost is not None:
            self._unheard_hosts.discard(host.name)
            self._lost.append(host.name)
            self._show()

    @property
    def text(self) -> str:
        """The sentence of the notice, which lists failed runs first, then other ended runs, and then lost hosts."""
        parts = [
            *(self._of_run(run) for run in self._ended[:NAMED]),
            *([self._more(len(self._ended) - NAMED)] if len(self._ended) > NAMED else []),
            *([self._of_hosts()] if self._lost else []),
        ]
        since = day_and_clock(self._since, time.time())
        return self.tr("Since {time}: {what}").format(time=since, what=", ".join(parts))

    def _show(self) -> None:
        self._ended.sort(key=lambda run: run.state != "failed")
        buttons = []
        self._calls = []
        for run in self._ended[:NAMED]:
            buttons.append(self.tr("Show {run}").format(run=title_of(run, self._runs)))
            self._calls.append(lambda run_id=run.run_id: self.run_wanted.emit(run_id))  # type: ignore[misc]  # mypy cannot infer the type of a lambda's default argument.
        if self._lost:
            buttons.append(self.tr("Show the fleet"))
            self._calls.append(self.fleet_wanted.emit)
        is_bad = bool(self._lost) or any(run.state == "failed" for run in self._ended)
        self.bar.show_notice("warn" if is_bad else "info", self.text, *buttons)

    def _of_run(self, run: KnownRun) -> str:
        name = title_of(run, self._runs)
        if run.state == "failed" and run.reason:
            return self.tr("run {run} failed ({reason})").format(run=name, reason=run.reason.rstrip("."))
        text = {
            "failed": self.tr("run {run} failed"),
            "stopped": self.tr("run {run} was stopped"),
        }.get(run.state, self.tr("run {run} finished"))
        return text.format(run=name)

    def _more(self, count: int) -> str:
        return self.tr("1 more run ended") if count == 1 else self.tr("{count} more runs ended").format(count=count)

    def _of_hosts(self) -> str:
        if len(self._lost) == 1:
            return self.tr("host {host} was lost").format(host=self._lost[0])
        if len(self._lost) > NAMED:
            return self.tr("{count} hosts were lost").format(count=len(self._lost))
        return self.tr("{count} hosts were lost ({hosts})").format(count=len(self._lost), hosts=", ".join(self._lost))

    def _forget(self) -> None:
        """Removes the runs and hosts of the dismissed notice, so that later notices do not repeat them."""
        self._ended.clear()
        self._lost.clear()
