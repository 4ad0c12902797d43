"""A launch under way, told to the window: each check as it is made, how far sending and starting are, and its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal

from torchyard_core.background_thread import in_background
from torchyard_core.booking.planned_time import PlannedTime
from torchyard_core.errors import RunFailed, TorchyardError
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.confirmations import Question
from torchyard_core.launch.runs.history import History
from torchyard_core.problems import has_errors
from torchyard_core.topology.file import TopologyFile
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.jobs import explain

if TYPE_CHECKING:
    from torchyard_core.booking.launch_booking import LaunchBooking
    from torchyard_core.launch.launch import Launch, Started, StartUnknown


class LaunchJob(QObject):
    """One launch, from `start` to one of `started`, `failed` and `cancelled`."""

    checked = Signal(object)
    """A Check."""
    progressed = Signal(str, object, object)
    """(`reaching`, `looking`, `sending`, `preparing` or `starting`; how far; of how much)."""
    asked = Signal(object)
    """A launch.question.Question: the launch waits for `answer`, or for `cancel`."""
    started = Signal(str)
    """The run's ID: it is on its way, and noted in this computer's history."""
    failed = Signal(object)
    """A TorchyardError. Nothing is left on the hosts, unless its code is `start_unknown`: then the run may have begun,
    and is noted in this computer's history."""
    cancelled = Signal()
    """Nothing is left on the hosts."""

    def __init__(
        self,
        source: TopologyFile,
        fleet_model: FleetModel,
        name: str = "",
        parent: QObject | None = None,
        *,
        planned: PlannedTime | None = None,
    ):
        """`name`: the run's; the topology's by default. `planned`: for when; a later one books, and the run starts by
        itself then."""
        super().__init__(parent)
        self._planned = planned or PlannedTime()
        self.source = source
        self.run_id = ""
        self.is_over = False
        self.is_cancelled = False
        self._model = fleet_model
        self._name = name
        self._launch: Launch | None = None
        self._booking: LaunchBooking | None = None
        self._answered = threading.Event()
        self._answer = False

    def start(self) -> None:
        """Begins, on a thread."""
        model, tell = self._model, self._tell
        model.questions.begin()
        model.jobs.run(lambda: self._run(tell), self._ended, lambda error: self._ended(error), owner=self)

    def answer(self, yes: bool) -> None:
        """To what it asked."""
        self._answer = yes
        self._answered.set()

    def cancel(self) -> None:
        """Takes the launch back; `cancelled` follows once nothing is left of it, `failed` where that is not known."""
        self.is_cancelled = True
        self.answer(False)
        if self._launch is not None:
            self._launch.cancel()
        self._model.questions.hush()

    def close(self) -> None:
        """As `cancel`, for a window that closes: nothing is told any more."""
        self.cancel()
        self.is_over = True

    # On the thread

    def _tell(self, kind: str, *details: Any) -> None:
        self._model.jobs.tell(self._told, kind, details)

    def _ask(self, question: Question) -> bool:
        """Waits until somebody has answered, or has cancelled the launch."""
        if not self.is_cancelled:
            self._answered.clear()
            self._tell("asked", question)
            if self.is_cancelled:  # meanwhile, on the other thread
                self._answered.set()
            self._answered.wait()
        return self._answer and not self.is_cancelled

    def _run(self, tell: Callable[..., None]) -> Started | TorchyardError | None:
        """The run that is on its way; what stopped the launch; None where it was cancelled."""
        from torchyard_core.launch.launch import StartUnknown
        from torchyard_core.launch.progress import Cancelled

        try:
            launch = self._launch = self._made(tell)
        except TorchyardError as error:
            return error
        if self.is_cancelled:
            launch.cancel()
        try:
            return launch.run()
        except Cancelled:
            return None
        except StartUnknown as unknown:
            return self._noted(unknown)
        except Exception as error:  # the outer edge of a thread: logged, and told
            # What was cancelled may break off with an error of its own on the way out.
            return None if self.is_cancelled else explain(error)

    def _noted(self, unknown: StartUnknown) -> StartUnknown:
        """The error, once the run that may have begun is in this computer's history: also for a window that closes."""
        if not self._save(unknown.started, is_confirmed=False):
            self._tell("check", _UNNOTED)
        return unknown

    def _made(self, tell: Callable[..., None]) -> Launch:
        """The launch of the topology. Raises TorchyardError for what stops it before it begins."""
        from torchyard_core.launch.launch import Launch
        from torchyard_core.launch.secrets import secret_values

        fleet, source = self._model.fleet, self.source
        topology = source.topology
        problems = source.check(fleet.known())
        if topology is None or has_errors(problems):
            first = next(problem for problem in problems if problem.severity == "error")
            raise RunFailed(first.message, code="topology_problems", hint="")
        tell("check", Check("topology", "", True, topology.name))
        return Launch(
            source,
            topology,
            self._name or topology.name,
            fleet,
            secret_values(topology.program.secrets),
            lambda event: None,
            lambda check: tell("check", self._with_remark(check)),
            lambda step, done, total: tell("progress", step, done, total),
            ask=self._ask,
            caches=self._model.home.caches,
            reserving=self._reserving(self._name or topology.name),
            own=History(self._model.home.history).records(),
        )

    def _reserving(self, name: str) -> LaunchBooking:
        """The calendar's part in the launch. Raises what is wrong with the settings."""
        from torchyard_core.booking.calendar_factory import calendar_of, zone_for
        from torchyard_core.booking.launch_availability import proposed_length
        from torchyard_core.booking.launch_booking import LaunchBooking, Wanted
        from torchyard_core.user_settings import read_user_settings

        home = self._model.home
        chosen = read_user_settings(home.settings_file)
        planned = self._planned.at(datetime.now(UTC))
        if planned.is_later:
            wanted = Wanted(planned.length, planned.start)
        elif planned != PlannedTime():
            wanted = Wanted(proposed=planned.length)  # somebody has said how long
        else:
            wanted = Wanted(proposed=proposed_length(History(home.history).records(), name))
        self._booking = LaunchBooking(calendar_of(home, chosen), zone_for(chosen), wanted, file=self.source.source)
        return self._booking

    def _with_remark(self, check: Check) -> Check:
        """A host's line says too where its agent is not this desktop's (what the command line says beside it)."""
        link = self._model.fleet.open_link(check.host) if check.name == "host" and check.ok else None
        if link is None or not link.remark:
            return check
        return replace(check, message=f"{check.message}. {link.remark}", warning=True)

    # In the GUI thread

    def _told(self, kind: str, details: tuple[Any, ...]) -> None:
        if self.is_over:
            return
        if kind == "check":
            self.checked.emit(*details)
        elif kind == "asked":
            self.asked.emit(*details)
        else:
            self.progressed.emit(*details)

    def _ended(self, outcome: Started | TorchyardError | None) -> None:
        if self.is_over:
            return
        if outcome is None or isinstance(outcome, TorchyardError):
            self.is_over = True
            self._let_go_of_calendar()
            if outcome is None:
                self.cancelled.emit()
            else:
                self.failed.emit(outcome)
        elif self.is_cancelled:
            self._take_back(outcome)
        else:
            self._note(outcome)
            self.is_over = True
            self._let_go_of_calendar()
            self.run_id = outcome.run_id
            self.started.emit(outcome.run_id)

    def _take_back(self, started: Started) -> None:
        """Somebody cancelled while the news that it has started were on their way here: it is ended all the same."""
        from torchyard_core.launch.launch import StartUnknown

        assert self._launch is not None
        launch = self._launch

        def undo() -> TorchyardError | None:
            try:
                launch.undo(started)
            except StartUnknown as unknown:
                return self._noted(unknown)
            return None

        self._model.jobs.run(undo, self._ended, lambda error: self._ended(error), owner=self)

    def _let_go_of_calendar(self) -> None:
        if self._booking is not None:
            in_background(self._booking.close)
            self._booking = None

    def _note(self, started: Started) -> None:
        """In this computer's history: a small file, written at once so that it is there when the run is shown."""
        if not self._save(started):
            self.checked.emit(_UNNOTED)

    def _save(self, started: Started, *, is_confirmed: bool = True) -> bool:
        """Whether this computer's disk takes it; on any thread."""
        assert self._launch is not None
        source = self.source.source
        record = self._launch.record(started, source if Path(source).is_file() else "", is_confirmed=is_confirmed)
        try:
            History(self._model.home.history).save(record)
        except OSError:
            return False
        return True


_UNNOTED = Check("history", "", True, "", warning=True)
