"""Launch jobs: launch a run or sweep, restart a run, or resume a sweep, on a background thread.

The jobs emit checks, progress and outcome as signals.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal

from torchyard_core.background_thread import in_background
from torchyard_core.booking.planned_time import PlannedTime
from torchyard_core.errors import AgentRefused, HostError, RunFailed, TorchyardError
from torchyard_core.fleet.cluster import cluster_named_by
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.confirmations import Confirmation
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.topology.file import TopologyFile, topology_from_text
from torchyard_gui.bridge.background_jobs import explain
from torchyard_gui.bridge.fleet_model import FleetModel

if TYPE_CHECKING:
    from torchyard_core.app.desktop import Desktop
    from torchyard_core.app.launch_run import LaunchCallbacks, LaunchUseCase
    from torchyard_core.launch.calendar_interface import BookingOptions
    from torchyard_core.launch.launch import StartedRun
    from torchyard_core.sweeps.search_file import SearchFile


class LaunchJob(QObject):
    """A single launch. Unless it is closed, it ends with exactly one of the signals `started`, `failed` and
    `cancelled`.
    """

    checked = Signal(object)
    """Emitted with each Check."""
    progressed = Signal(str, object, object)
    """Emitted with a step's name, the amount that is done, and the total; see `Launch.on_progress`."""
    asked = Signal(object)
    """Emitted with a Confirmation. The launch waits until `answer` or `cancel` is called."""
    started = Signal(str)
    """Emitted with the ID of the run once it has started."""
    failed = Signal(object)
    """Emitted with a TorchyardError. Nothing is left on the hosts, unless the code is `start_unknown`, which means that
    the run may have started.
    """
    cancelled = Signal()
    """Emitted once the launch is cancelled and nothing is left on the hosts."""

    def __init__(
        self,
        source: TopologyFile,
        fleet_model: FleetModel,
        name: str = "",
        parent: QObject | None = None,
        *,
        planned: PlannedTime | None = None,
        place: str = "",
    ):
        """Prepares a launch; `start` begins it.

        Args:
            name: Name of the run, by default that of the topology.
            planned: Planned time. If it is later than now, the launch books the GPUs, and the hosts start the run at
                that time. On a cluster, it is the earliest start of the job, and nothing is booked.
            place: The chosen cluster, or "" for the hosts of the fleet file. A cluster that the topology itself names
                takes precedence.
        """
        super().__init__(parent)
        self._planned = planned or PlannedTime()
        clusters = fleet_model.inventory.clusters
        named = cluster_named_by(source.topology, clusters) if source.topology is not None else None
        self._on = place if named is None and place else None
        self.cluster = named.name if named is not None else place
        """The cluster on which the run takes place, or "" for the hosts of the fleet file."""
        self.source = source
        self.run_id = ""
        self.is_over = False
        self.is_cancelled = False
        self._model = fleet_model
        self._name = name
        self._launch: LaunchUseCase | None = None
        self._desktop: Desktop | None = None
        self._answered = threading.Event()
        self._answer = False

    def start(self) -> None:
        """Starts the launch on a background thread."""
        self._model.questions.begin()
        self._model.jobs.run(self._run, self._ended, lambda error: self._ended(error), owner=self)

    def answer(self, yes: bool) -> None:
        """Answers the question of the last `asked` signal."""
        self._answer = yes
        self._answered.set()

    def cancel(self) -> None:
        """Cancels and reverts the launch.

        `cancelled` is emitted once the launch is fully reverted, or `failed` if the outcome is unknown.
        """
        self.is_cancelled = True
        self.answer(False)
        if self._launch is not None:
            self._launch.cancel()
        self._model.questions.hush()

    def close(self) -> None:
        """Cancels the launch without further signals. Called when the window closes."""
        self.cancel()
        self.is_over = True

    # The following methods run on the background thread.

    def _emit(self, kind: str, *details: Any) -> None:
        self._model.jobs.tell(self._receive, kind, details)

    def _ask(self, question: Confirmation) -> bool:
        """Emits a question and waits for the answer or for the cancellation of the launch."""
        if not self.is_cancelled:
            self._answered.clear()
            self._emit("asked", question)
            if self.is_cancelled:  # The GUI thread may have cancelled the launch in the meantime.
                self._answered.set()
            self._answered.wait()
        return self._answer and not self.is_cancelled

    def _run(self) -> StartedRun | TorchyardError | None:
        """Runs the launch. Returns the started run, the error that stopped the launch, or None after a cancellation."""
        from torchyard_core.app.desktop import Desktop
        from torchyard_core.app.launch_run import InvalidTopology
        from torchyard_core.app.launch_sweep import InvalidSearch
        from torchyard_core.launch.launch import StartUnknown
        from torchyard_core.launch.progress import Cancelled

        try:
            self._desktop = Desktop.open(self._model.home, self._model.fleet)
            launch = self._launch = self._make(self._desktop)
            if self.is_cancelled:
                launch.cancel()
            return launch.run()
        except Cancelled:
            return None
        except (InvalidTopology, InvalidSearch) as error:
            first = next(problem for problem in error.problems if problem.severity == "error")
            return RunFailed(first.message, code=error.code)
        except StartUnknown as unknown:
            return unknown
        except Exception as error:  # An exception would be lost with the thread, so it is returned.
            # After a cancellation, the operation that was interrupted may fail with another error.
            return None if self.is_cancelled else _without_file(explain(error))

    def _make(self, desktop: Desktop) -> LaunchUseCase:
        """Creates the launch or restart (from `torchyard_core.app`) that this job runs."""
        from torchyard_core.app.launch_run import LaunchRun

        booking = self._booking()
        return LaunchRun(desktop, self.source, self._callbacks(), name=self._name, on=self._on, booking=booking)

    def _booking(self) -> BookingOptions:
        """Returns the booking options for the planned time."""
        from torchyard_core.launch.calendar_interface import BookingOptions

        planned = self._planned.at(datetime.now(UTC))
        if self.cluster:
            return BookingOptions(start_at=planned.start)
        if planned.is_later:
            return BookingOptions(planned.length, planned.start)
        # The user did not choose the default planned time, so its length is not used.
        return BookingOptions(usual_length=planned.length if planned != PlannedTime() else None)

    def _callbacks(self) -> LaunchCallbacks:
        from torchyard_core.app.launch_run import LaunchCallbacks

        return LaunchCallbacks(
            on_check=lambda check: self._emit("check", self._with_remark(check)),
            on_progress=lambda step, done, total: self._emit("progress", step, done, total),
            on_unrecorded=lambda error: self._emit("check", _UNRECORDED),
            ask=self._ask,
        )

    def _with_remark(self, check: Check) -> Check:
        """Adds the remark of the link to a host, if there is one, to the message of the host's passed check.

        Other checks are returned unchanged.
        """
        link = self._model.fleet.open_link(check.host) if check.name == "host" and check.ok else None
        if link is None or not link.remark:
            return check
        return replace(check, message=f"{check.message}. {link.remark}", warning=True)

    # The following methods run on the GUI thread.

    def _receive(self, kind: str, details: tuple[Any, ...]) -> None:
        if self.is_over:
            return
        if kind == "check":
            self.checked.emit(*details)
        elif kind == "asked":
            self.asked.emit(*details)
        else:
            self.progressed.emit(*details)

    def _ended(self, outcome: StartedRun | TorchyardError | None) -> None:
        if self.is_over:
            return
        if outcome is None or isinstance(outcome, TorchyardError):
            self.is_over = True
            self._close_calendar()
            if outcome is None:
                self.cancelled.emit()
            else:
                self.failed.emit(outcome)
        elif self.is_cancelled:
            self._take_back(outcome)
        else:
            self.is_over = True
            self._close_calendar()
            self.run_id = outcome.run_id
            self.started.emit(outcome.run_id)

    def _take_back(self, started: StartedRun) -> None:
        """Ends a run that had already started when the user cancelled."""
        from torchyard_core.launch.launch import StartUnknown

        assert self._launch is not None
        launch = self._launch

        def undo() -> TorchyardError | None:
            try:
                launch.undo(started)
            except StartUnknown as unknown:
                return unknown
            return None

        self._model.jobs.run(undo, self._ended, lambda error: self._ended(error), owner=self)

    def _close_calendar(self) -> None:
        if self._desktop is not None:
            in_background(self._desktop.calendar.close)
            self._desktop = None


def _without_file(error: TorchyardError) -> TorchyardError:
    """Returns an error to show in the checklist.

    If it is a topology problem, the file name and line number are removed from its message.
    """
    if not error.topology_problem:
        return error
    return RunFailed(error.topology_problem, code="topology_problems", hint=error.advice)


_UNRECORDED = Check("history", "", True, "", warning=True)


class SweepJob(LaunchJob):
    """A single launch of a sweep."""

    def __init__(
        self,
        source: TopologyFile,
        search: SearchFile,
        fleet_model: FleetModel,
        parent: QObject | None = None,
        *,
        planned: PlannedTime | None = None,
        place: str = "",
    ):
        """Prepares a launch; `start` begins it. The arguments are those of LaunchJob."""
        super().__init__(source, fleet_model, parent=parent, planned=planned, place=place)
        self._search = search

    def _make(self, desktop: Desktop) -> LaunchUseCase:
        from torchyard_core.app.launch_sweep import LaunchSweep

        booking = self._booking()
        return LaunchSweep(desktop, self.source, self._search, self._callbacks(), on=self._on, booking=booking)


class RelaunchJob(LaunchJob):
    """A launch that continues an ended run or sweep, from the topology in its record."""

    def __init__(self, run: KnownRun, text: str, file: str, fleet_model: FleetModel, parent: QObject | None = None):
        """Prepares the launch; `start` begins it.

        Args:
            text: Text of the topology, from the run's record.
            file: Path of the topology's file, from the run's record; empty if there is none.
        """
        super().__init__(topology_from_text(text, file or run.name), fleet_model, run.name, parent)
        self._ended_run = run


class RestartJob(RelaunchJob):
    """A single restart of an ended run, with the signals of a launch."""

    from_beginning = False
    """Whether to begin at the first step instead of the newest checkpoint."""

    def _make(self, desktop: Desktop) -> LaunchUseCase:
        from torchyard_core.app.restart_run import RestartRun

        return RestartRun(desktop, self._ended_run, self._callbacks(), from_beginning=self.from_beginning)


class ResumeSweepJob(RelaunchJob):
    """A single resumption of an ended sweep, with the signals of a launch."""

    new_code = False
    """Whether to accept files of the working folder that have changed since the sweep began."""

    def _make(self, desktop: Desktop) -> LaunchUseCase:
        from torchyard_core.app.resume_sweep import resume_sweep
        from torchyard_core.app.run_links import link_to_primary
        from torchyard_core.launch.runs.sweep_copies import SweepCopies

        problem: TorchyardError | None = None
        try:
            SweepCopies(desktop.home.sweeps).update(
                self._ended_run.run_id, link_to_primary(desktop.fleet, self._ended_run)
            )
        except (AgentRefused, HostError) as error:
            problem = error
        return resume_sweep(desktop, self._ended_run, problem, self._callbacks(), new_code=self.new_code)
