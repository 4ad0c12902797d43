"""The use case "launch a topology": check it, book GPUs, start the run and record it in the desktop's history."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchyard_core.app.desktop import Desktop
from torchyard_core.booking.launch_booking import LaunchBooking
from torchyard_core.booking.proposed_length import proposed_length
from torchyard_core.engines.engine import Engine, LaunchRequest
from torchyard_core.errors import HostError, InvalidFile, RunFailed, TorchyardError
from torchyard_core.launch.calendar_interface import BookingOptions
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.confirmations import Ask, no_answer
from torchyard_core.launch.launch import Launch, StartedRun, StartUnknown
from torchyard_core.launch.restart import EndedRun
from torchyard_core.launch.secrets import secret_values
from torchyard_core.next_steps import AddHost, Advice
from torchyard_core.problems import Problem, has_errors
from torchyard_core.sweeps.search_checks import uses_parameters
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.model import Topology

if TYPE_CHECKING:
    from torchyard_core.launch.sweeps.sweep_launch import SweepRequest


class InvalidTopology(InvalidFile):
    """Raised when a topology cannot be launched on the fleet. `problems` holds errors and warnings."""

    def __init__(self, problems: Iterable[Problem], source: str):
        self.problems = tuple(problems)
        hint: Advice = "Correct the file, then run it again."
        if any(problem.code == "unknown-host" for problem in self.problems):
            hint = ("Correct the file, or add the host.", AddHost())
        lines = [problem.printed(source) for problem in self.problems]
        super().__init__("\n".join(lines), code="topology_problems", hint=hint)

    @property
    def first_error(self) -> Problem:
        return next(problem for problem in self.problems if problem.severity == "error")


@dataclass(frozen=True)
class LaunchCallbacks:
    """Callbacks of a launch for reports and questions. They are called on the thread of the launch."""

    on_event: Callable[[dict[str, Any]], None] = lambda event: None
    """Called with each event that `run --json` prints."""
    on_check: Callable[[Check], None] = lambda check: None
    """Called with each line of the checklist, before `on_event` is called with the event of that line."""
    on_progress: Callable[[str, int, int], None] = lambda step, done, total: None
    """Called with (step, done, total); see `Launch.on_progress`."""
    on_host_error: Callable[[HostError], None] = lambda error: None
    """Called with the error of each host of an existing run that cannot be reached."""
    on_calendar_error: Callable[[TorchyardError], None] = lambda error: None
    """Called with an error of the calendar that occurs after the run has started or after its launch was undone."""
    on_unrecorded: Callable[[OSError], None] = lambda error: None
    """Called if the run cannot be written to the history. The run continues."""
    ask: Ask = no_answer


class LaunchUseCase(ABC):
    """A launch of a topology or of an ended run.

    `run` performs the launch. `cancel` undoes it, and may be called on any thread.
    """

    def __init__(self, desktop: Desktop, callbacks: LaunchCallbacks | None, booking: BookingOptions | None):
        self.desktop = desktop
        self.callbacks = callbacks or LaunchCallbacks()
        self.is_cancelled = False
        self._booking = booking or BookingOptions()
        self._launch: Launch | None = None
        self._engine: Engine | None = None

    @abstractmethod
    def prepare(self) -> None:
        """Performs the steps that precede the host checks. Raises TorchyardError if one of them fails."""

    @property
    @abstractmethod
    def topology_file(self) -> str:
        """The path of the topology file for the run's record, or an empty string if there is no file."""

    def run(self) -> StartedRun:
        """Launches the run and records it. Calls `prepare` if the caller has not called it.

        Raises:
            StartUnknown: The run may have started, and is recorded as unconfirmed.
            Cancelled, TorchyardError: The launch was undone.
        """
        if self._launch is None:
            self.prepare()
        launch = self._prepared()
        if self.is_cancelled:
            launch.cancel()
        try:
            started = launch.run()
        except StartUnknown as unknown:
            self._record(unknown.started, is_confirmed=False)
            raise
        self._record(started)
        return started

    def cancel(self) -> None:
        """Asks `run()` to stop after the current operation and to undo the launch."""
        self.is_cancelled = True
        if self._launch is not None:
            self._launch.cancel()

    def undo(self, started: StartedRun) -> None:
        """Ends a run that has just started, and removes its record.

        Raises StartUnknown if the run may still be running.
        """
        try:
            self._prepared().undo(started)
        except StartUnknown as unknown:
            self._record(unknown.started, is_confirmed=False)
            raise
        self.desktop.history.remove(started.run_id)

    def _make_launch(
        self,
        source: TopologyFile,
        name: str,
        secrets: Sequence[str],
        arguments: Sequence[str],
        again: EndedRun | None = None,
        sweep: SweepRequest | None = None,
        verb: str = "run",
    ) -> None:
        """Creates the launch.

        Args:
            arguments: Arguments of the command line, which are repeated in hints.
            sweep: The sweep to launch; None for a run.
            verb: The command that is named in hints, such as `run`.

        Raises:
            RunFailed: An argument contains a placeholder for a sweep parameter, but no sweep is launched.
        """
        topology = source.topology
        assert topology is not None
        placeholder = uses_parameters(topology)
        if placeholder is not None and sweep is None:
            # Only sweeps replace placeholders. The program of a run would receive the placeholder unchanged.
            message = f"an argument of {topology.name} contains {placeholder}, which only a sweep replaces."
            hint = "Start it as a sweep, with a search file, or write a value."
            raise RunFailed(message, code="needs_sweep", hint=hint)
        desktop, callbacks, booking = self.desktop, self.callbacks, self._booking
        records = desktop.history.records()
        if booking.usual_length is None:
            booking = replace(booking, usual_length=proposed_length(records, name))
        calendar = LaunchBooking(
            desktop.calendar,
            desktop.zone,
            booking,
            arguments=arguments,
            verb=verb,
            on_trouble=callbacks.on_calendar_error,
        )
        request = LaunchRequest(
            source,
            topology,
            name,
            secret_values(tuple(secrets)),
            callbacks.on_event,
            callbacks.on_check,
            callbacks.on_progress,
            ask=callbacks.ask,
            caches=desktop.home.caches,
            again=again,
            calendar=calendar,
            booking=booking,
            zone=desktop.zone,
            sweep=sweep,
            own=records,
        )
        self._launch = self._engine_of(topology).submit(request)

    def _engine_of(self, topology: Topology) -> Engine:
        """Returns the topology's engine, which is created only once because it reads facts about hosts.

        Raises UsageError if the pools need different engines.
        """
        if self._engine is None:
            from torchyard_core.engines.registry import engine_of  # Deferred, since it loads paramiko (0.25 s).

            self._engine = engine_of(topology, self.desktop.fleet)
        return self._engine

    def _prepared(self) -> Launch:
        assert self._launch is not None, "prepare() comes first"
        return self._launch

    def _record(self, started: StartedRun, *, is_confirmed: bool = True) -> None:
        record = self._prepared().record(started, self.topology_file, is_confirmed=is_confirmed)
        try:
            self.desktop.history.save(record)
        except OSError as error:
            self.callbacks.on_unrecorded(error)


class LaunchRun(LaunchUseCase):
    """Launches a topology as a new run."""

    def __init__(
        self,
        desktop: Desktop,
        source: TopologyFile,
        callbacks: LaunchCallbacks | None = None,
        *,
        name: str = "",
        on: str | None = None,
        booking: BookingOptions | None = None,
        arguments: Sequence[str] = (),
    ):
        """Creates the use case.

        Args:
            name: The run's name. Defaults to the topology's name.
            on: The cluster of the fleet on which the whole run takes place. By default, the topology determines the
                hosts.
            arguments: Arguments of a `torchyard run` command that repeats the launch, for hints. Defaults to the path
                of the file.
        """
        super().__init__(desktop, callbacks, booking)
        self.problems: tuple[Problem, ...] = ()
        """Problems of the topology, which `prepare` sets: only warnings unless it has raised InvalidTopology."""
        self._source = source
        self._on = on
        self._name = name
        self._arguments = arguments

    def prepare(self) -> None:
        """Checks the topology.

        Raises InvalidTopology, RunFailed for a secret without a value, UsageError for an unknown cluster, and HostError
        if a cluster does not answer.
        """
        topology = self._check_topology()
        self.callbacks.on_check(Check("topology", "", True, topology.name))
        arguments = self._arguments or (self._source.source,)
        self._make_launch(self._source, self._name or topology.name, topology.program.secrets, arguments)

    def _check_topology(self) -> Topology:
        """Moves the topology to the chosen cluster, if any, and checks the topology. Raises the errors of `prepare`."""
        if self._on is not None:
            from torchyard_core.engines.registry import on_place  # Deferred, since it loads paramiko (0.25 s).

            self._source = on_place(self._source, self._on, self.desktop.fleet)
        source = self._source
        if source.topology is None:
            self.problems = tuple(source.check(self.desktop.fleet.known()))
        else:
            engine = self._engine_of(source.topology)
            in_plan = replace(source, topology=engine.planned(source.topology))
            self.problems = tuple(in_plan.check(engine.describe()))
        if source.topology is None or has_errors(self.problems):
            raise InvalidTopology(self.problems, source.source)
        return source.topology

    @property
    def first_secrets(self) -> tuple[str, ...]:
        """Names of the secrets to send. Empty if this desktop has launched the same topology before."""
        launch = self._prepared()
        return () if launch.was_launched_here else tuple(launch.topology.program.secrets)

    @property
    def topology_file(self) -> str:
        return self._source.source if Path(self._source.source).is_file() else ""
