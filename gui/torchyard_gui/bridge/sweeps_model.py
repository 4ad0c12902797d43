"""The window's model of the sweeps that hosts know or this computer has recorded, with a table of trials for each
sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.app.run_links import find_trial, link_to_primary
from torchyard_core.app.team_studies import TeamStudies
from torchyard_core.errors import AgentRefused, HostError, RunFailed, TorchyardError
from torchyard_core.launch.runs.known_runs import KnownRun, ask_run, stop_run
from torchyard_core.launch.runs.sweep_copies import SweepCopies
from torchyard_core.sweeps.trial_table import SweepTable, Trial, topology_of_trial
from torchyard_core.topology.file import dump, topology_from_text
from torchyard_gui.bridge.background_jobs import Job
from torchyard_gui.bridge.runs_model import RunsModel

Failed = Callable[[TorchyardError], None]
ENDED = ("finished", "stopped")
"""States of a sweep in which its coordinator no longer changes the table of trials."""
SHARE_EVERY_MS = 30_000
"""Interval in milliseconds between updates of live sweeps whose studies are copied to the team's database. Live sweeps
are updated whichever page is visible.
"""


class SweepsModel(QObject):
    """Model of the sweeps, used on the GUI thread. Slow operations run on background threads."""

    sweeps_changed = Signal()
    """Emitted when the list of sweeps or the state of a sweep has changed."""
    table_changed = Signal(str)
    """Emitted with the ID of a sweep when its table, or the error of the last attempt to read the table, has changed.
    """
    shared = Signal()
    """Emitted when a sweep's study has been copied to the team's database, and also if there is no such database."""
    not_shared = Signal(str, object)
    """Emitted with the ID of a sweep, and the error that prevented copying its study to the team's database."""

    def __init__(self, runs: RunsModel, parent: QObject | None = None):
        super().__init__(parent)
        self.runs = runs
        self.fleet_model = runs.fleet_model
        self._copies = SweepCopies(self.fleet_model.home.sweeps)
        self._tables: dict[str, SweepTable] = {}
        self._errors: dict[str, TorchyardError] = {}
        self._final: set[str] = set()
        """IDs of the sweeps whose trials were read after the sweep had ended."""
        self._updating: dict[str, Job] = {}
        self._studies = TeamStudies(self.fleet_model.home)
        self._sharing: dict[str, Job] = {}
        self._shared: dict[str, str] = {}
        """The hash of the study that was shared last, by sweep."""
        self._share_timer = QTimer(self, interval=SHARE_EVERY_MS)
        self._share_timer.timeout.connect(self._update_shared)
        self._share_timer.start()
        runs.runs_changed.connect(self.sweeps_changed)

    @property
    def sweeps(self) -> tuple[KnownRun, ...]:
        """All sweeps, the newest first."""
        return tuple(self._as_running(run) for run in self.runs.runs if run.is_sweep)

    def sweep(self, run_id: str) -> KnownRun | None:
        return next((run for run in self.sweeps if run.run_id == run_id), None)

    def table(self, run_id: str) -> SweepTable | None:
        """Returns the last known trials of a sweep, or None if no trials are known yet."""
        return self._tables.get(run_id)

    def error(self, run_id: str) -> TorchyardError | None:
        """Returns the error of the last attempt to read the trials of a sweep from its primary, or None if the attempt
        succeeded.
        """
        return self._errors.get(run_id)

    def study_file(self, run_id: str) -> str:
        """Returns the path of the copy of a sweep's study on this computer, or "" if there is none."""
        file = self._copies.study_file(run_id)
        return str(file) if file.exists() else ""

    def update(self, run: KnownRun) -> None:
        """Reads the trials of a sweep from its primary or, if the primary does not answer, from the copy on this
        computer.

        Does nothing if the trials are already being read. The trials of an ended sweep are read from the copy if the
        copy is complete.
        """
        if run.run_id in self._updating:
            return
        model, copies, is_known = self.fleet_model, self._copies, run.run_id in self._tables

        def read() -> tuple[SweepTable | None, TorchyardError | None]:
            known = None if is_known else copies.table(run.run_id)
            if run.has_ended and known is not None and known.state in ENDED:
                return known, None
            try:
                return copies.update(run.run_id, link_to_primary(model.fleet, run)), None
            except (HostError, AgentRefused) as error:
                return known, error

        def done(found: tuple[SweepTable | None, TorchyardError | None]) -> None:
            self._updating.pop(run.run_id, None)
            self._take(run, *found)

        def failed(error: TorchyardError) -> None:
            done((None, error))

        self._updating[run.run_id] = model.jobs.run(read, done, failed, owner=self)

    def update_all(self) -> None:
        """Reads the trials of all sweeps whose trials are not known or may have changed."""
        for run in self.sweeps:
            if not self.is_final(run):
                self.update(run)

    def is_final(self, run: KnownRun) -> bool:
        """Returns whether the trials of a sweep are known and will not change any more."""
        return run.run_id in self._final

    def stop(self, run: KnownRun, failed: Failed, *, force: bool = False, owner: QObject | None = None) -> Job:
        """Requests that a sweep be stopped with all its trials."""
        return self.runs.stop(run, failed, force=force, owner=owner)

    def stop_trial(
        self, run: KnownRun, trial: Trial, failed: Failed, *, force: bool = False, owner: QObject | None = None
    ) -> Job:
        """Requests that a running trial of a sweep be stopped; it then counts as failed."""
        model = self.fleet_model

        def ask() -> None:
            found = find_trial(model.fleet, run, trial, self.runs.history)
            stop_run(found, link_to_primary(model.fleet, found), force=force)

        return model.jobs.run(ask, None, failed, owner=owner)

    def trial_topology(
        self, run: KnownRun, trial: Trial, done: Callable[[str], None], failed: Failed, *, owner: QObject | None = None
    ) -> Job:
        """Passes the sweep's topology as text to `done`, with the parameters of a trial inserted into the arguments."""
        model, history = self.fleet_model, self.runs.history

        def make() -> str:
            record = history.load(run.run_id)
            text = record.topology if record is not None else ""
            if not text:
                about = ask_run(run, link_to_primary(model.fleet, run))["record"].get("record", {})
                text = str(about.get("topology", ""))
            topology = topology_from_text(text, run.name).topology
            if topology is None:
                message = f"the topology of sweep {run.run_id} cannot be read by this version."
                raise RunFailed(message, code="no_topology")
            return dump(topology_of_trial(topology, trial))

        return model.jobs.run(make, done, failed, owner=owner)

    def close(self) -> None:
        self._share_timer.stop()
        for job in (*self._updating.values(), *self._sharing.values()):
            job.cancel()
        self._updating.clear()
        self._sharing.clear()

    def _update_shared(self) -> None:
        """Updates all sweeps that may have changed, if studies are copied to a team's database."""
        if self._studies.url:
            self.update_all()

    def _share(self, run_id: str, table: SweepTable) -> None:
        """Copies the study of a sweep to the team's database, if there is one. Does nothing if a copy is already in
        progress.
        """
        if run_id in self._sharing or self._shared.get(run_id) == table.study:
            return

        def done(is_shared: bool) -> None:
            self._sharing.pop(run_id, None)
            if is_shared:
                self._shared[run_id] = table.study
                self.shared.emit()

        def failed(error: TorchyardError) -> None:
            self._sharing.pop(run_id, None)
            self.not_shared.emit(run_id, error)

        self._sharing[run_id] = self.fleet_model.jobs.run(lambda: self._studies.copy(table), done, failed, owner=self)

    def _as_running(self, run: KnownRun) -> KnownRun:
        """Returns a sweep in the state `running` if it is listed as waiting but one of its trials is running."""
        table = self._tables.get(run.run_id)
        is_late = run.state == "waiting" and table is not None and table.count("running") > 0
        return replace(run, state="running", reason="") if is_late and run.run_id not in self._errors else run

    def _take(self, run: KnownRun, table: SweepTable | None, error: TorchyardError | None) -> None:
        before = self._tables.get(run.run_id), str(self._errors.get(run.run_id, ""))
        if table is not None:
            self._tables[run.run_id] = table
            self._share(run.run_id, table)
        if error is not None:
            self._errors[run.run_id] = error
        else:
            self._errors.pop(run.run_id, None)
            if run.has_ended and table is not None:
                self._final.add(run.run_id)
        if before != (self._tables.get(run.run_id), str(error or "")):
            self.table_changed.emit(run.run_id)
        if table is not None and table.state in ENDED and not run.has_ended:
            self.runs.refresh()
