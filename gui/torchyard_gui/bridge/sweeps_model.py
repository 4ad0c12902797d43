"""The window's model of the sweeps that hosts know or this computer has recorded, with the tables of their trials."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.app.run_links import link_to_primary
from torchyard_core.app.team_studies import TeamStudies
from torchyard_core.errors import AgentRefused, HostError, RunFailed, TorchyardError, Unreachable
from torchyard_core.launch.runs.known_runs import KnownRun, ask_run, list_runs, stop_run
from torchyard_core.launch.runs.sweep_results import SweepCopies
from torchyard_core.next_steps import AddHost
from torchyard_core.sweeps.trial_table import SweepTable, Trial, topology_of_trial
from torchyard_core.topology.file import dump, topology_from_text
from torchyard_gui.bridge.jobs import Job
from torchyard_gui.bridge.runs_model import RunsModel

Failed = Callable[[TorchyardError], None]
ENDED = ("finished", "stopped")
"""States of a table that its coordinator does not change any more."""
SHARE_EVERY_MS = 30_000
"""Time in milliseconds between two updates of live sweeps for the team's database, whichever page is visible."""


class SweepsModel(QObject):
    """Model of the sweeps, used on the GUI thread. Slow work runs on threads."""

    sweeps_changed = Signal()
    """Emitted when the list of sweeps or the state of a sweep has changed."""
    table_changed = Signal(str)
    """Emitted with the ID of a sweep when its table, or the error with which it was not read, has changed."""
    shared = Signal()
    """Emitted when the study of a sweep has been copied to the team's database, or there is none."""
    not_shared = Signal(str, object)
    """Emitted with the ID of a sweep and the error with which its study was not copied to the team's database."""

    def __init__(self, runs: RunsModel, parent: QObject | None = None):
        super().__init__(parent)
        self.runs = runs
        self.fleet_model = runs.fleet_model
        self._copies = SweepCopies(self.fleet_model.home.sweeps)
        self._tables: dict[str, SweepTable] = {}
        self._errors: dict[str, TorchyardError] = {}
        self._final: set[str] = set()
        """The sweeps whose trials were read after their end."""
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
        return tuple(run for run in self.runs.runs if run.is_sweep)

    def sweep(self, run_id: str) -> KnownRun | None:
        return next((run for run in self.sweeps if run.run_id == run_id), None)

    def table(self, run_id: str) -> SweepTable | None:
        """Returns the last known trials of a sweep; None if none are known yet."""
        return self._tables.get(run_id)

    def error(self, run_id: str) -> TorchyardError | None:
        """Returns why the trials of a sweep could not be read from its primary the last time; None if they were."""
        return self._errors.get(run_id)

    def study_file(self, run_id: str) -> str:
        """Returns the path of the copy of a sweep's study on this computer, or "" if there is none."""
        file = self._copies.study_file(run_id)
        return str(file) if file.exists() else ""

    def update(self, run: KnownRun) -> None:
        """Reads the trials of a sweep from its primary; if it does not answer, from the copy on this computer.

        Does nothing while they are being read. The trials of an ended sweep are read from the copy if it is complete.
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

    def stop_trial(self, trial: Trial, failed: Failed, *, force: bool = False, owner: QObject | None = None) -> Job:
        """Requests that a running trial be stopped; it then counts as failed."""
        model = self.fleet_model

        def ask() -> None:
            host = trial.hosts[0] if trial.hosts else ""
            if not model.fleet.knows(host):
                message = f"the host {host} of trial {trial.trial} is not in the fleet file."
                raise Unreachable(host, message, hint=("Add it by that name.", AddHost(host)))
            link = model.fleet.link(host, install=False)
            found = [run for run in list_runs({host: link}, self.runs.history) if run.run_id == trial.run_id]
            if not found:
                raise RunFailed(f"the run of trial {trial.trial} is not known on {host}.", code="no_run")
            stop_run(found[0], link, force=force)

        return model.jobs.run(ask, None, failed, owner=owner)

    def trial_topology(
        self, run: KnownRun, trial: Trial, done: Callable[[str], None], failed: Failed, *, owner: QObject | None = None
    ) -> Job:
        """Produces the text of the sweep's topology with the parameters of a trial in its arguments."""
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
        """Updates all sweeps that may have changed, if their studies are copied to a team's database."""
        if self._studies.url:
            self.update_all()

    def _share(self, run_id: str, table: SweepTable) -> None:
        """Copies the study of a sweep to the team's database, if there is one, unless it is being copied."""
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
