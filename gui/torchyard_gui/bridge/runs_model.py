"""The window's model of the runs that hosts know or this computer has recorded, with a feed for each followed run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal

from torchyard_core.app.run_links import link_to_primary
from torchyard_core.errors import HostError, TorchyardError
from torchyard_core.home import Home
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.runs.annotations import Annotation, Annotations
from torchyard_core.launch.runs.checkpoints import SavedStep, newest_checkpoint
from torchyard_core.launch.runs.history import History, RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun, free_prepared, list_runs, remember_states, stop_run
from torchyard_core.launch.runs.model_download import SavedModel, fetch_model, find_model, model_sources
from torchyard_core.launch.runs.output_download import Files, fetch_files, list_files
from torchyard_gui.bridge.background_jobs import Job
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.log_feed import LogFeed
from torchyard_gui.bridge.run_feed import RunFeed

if TYPE_CHECKING:
    from torchyard_core.advisor.run_comparison import PredictedStep
    from torchyard_core.app.grow_run import GrowRun
    from torchyard_core.launch.growth import AddedWorkers

FEEDS = 6
"""Maximum number of open feeds. If it is exceeded, the least recently requested feed is closed."""

Failed = Callable[[TorchyardError], None]


class GrowthJob:
    """A job that adds workers to a run on a background thread."""

    def __init__(self, model: FleetModel, run: KnownRun, host: str, count: int, pool: str):
        self._model = model
        self._about = run, host, count, pool or None
        self._growing: GrowRun | None = None
        self._is_cancelled = False
        self.is_finished = False

    def cancel(self) -> None:
        """Cancels the addition, unless the workers have already joined the run."""
        self._is_cancelled = True
        if self._growing is not None:
            self._growing.cancel()

    def work(self) -> AddedWorkers | None:
        """Adds the workers.

        Returns None after a cancellation. Raises TorchyardError if the workers have not joined. Called on the
        background thread.
        """
        from torchyard_core.app.desktop import Desktop
        from torchyard_core.app.grow_run import GrowRun
        from torchyard_core.launch.progress import Cancelled

        run, host, count, pool = self._about
        desktop = Desktop.open(self._model.home, self._model.fleet)
        self._growing = GrowRun(desktop, run, host, count=count, pool=pool)
        if self._is_cancelled:
            self._growing.cancel()
        try:
            return self._growing.run()
        except Cancelled:
            return None


class RunsModel(QObject):
    """Model of the runs, used on the GUI thread. Slow operations run on background threads."""

    runs_changed = Signal()
    """Emitted when the list of runs, the state of a run or an annotation has changed."""
    refreshing_changed = Signal()

    def __init__(self, home: Home, fleet_model: FleetModel, parent: QObject | None = None):
        super().__init__(parent)
        self.fleet_model = fleet_model
        self.history = History(home.history)
        self.silent: dict[str, HostError] = {}
        """The errors of hosts that did not answer the last query for runs, by host name."""
        self._runs: list[KnownRun] = list_runs({}, self.history)
        self._feeds: dict[str, RunFeed] = {}
        self._refreshing: Job | None = None
        self._notes = Annotations(home.run_notes)
        self.annotations = self._notes.load()
        """Notes and tags by run ID."""

    def annotate(self, run_id: str, annotation: Annotation) -> None:
        """Writes the note and tags of a run. Raises TorchyardError if they cannot be written."""
        self._notes.set(run_id, annotation)
        self.annotations = self._notes.load()
        self.runs_changed.emit()

    @property
    def runs(self) -> Sequence[KnownRun]:
        """All runs, the newest first."""
        return tuple(self._runs)

    def run(self, run_id: str) -> KnownRun | None:
        return next((run for run in self._runs if run.run_id == run_id), None)

    def read_history(self) -> None:
        """Reads the history on this computer immediately, without contacting a host."""
        self.annotations = self._notes.load()
        known = {run.run_id: run for run in self._runs if run.is_fresh}
        noted = list_runs({}, self.history)
        merged = {run.run_id: run for run in noted} | known
        self._take(sorted(merged.values(), key=lambda run: run.run_id, reverse=True))

    def refresh(self) -> None:
        """Asks all hosts for their runs. This changes nothing on the hosts."""
        if self._refreshing is not None:
            return
        fleet_model, history = self.fleet_model, self.history

        def ask() -> tuple[list[KnownRun], dict[str, HostError]]:
            fleet = fleet_model.fleet
            links, silent = {}, {}
            for name, link in fleet.links(fleet.listing, install=False).items():
                if isinstance(link, HostError):
                    silent[name] = link
                else:
                    links[name] = link
            runs = list_runs(links, history)
            with suppress(OSError):  # The list is shown even if the states cannot be recorded in the history.
                remember_states(runs, history)
            return runs, silent

        self._refreshing = fleet_model.jobs.run(ask, self._refreshed, self._not_refreshed, owner=self)
        self.refreshing_changed.emit()

    def feed(self, run: KnownRun) -> RunFeed:
        """Returns the feed of a run, which is opened if necessary."""
        feed = self._feeds.pop(run.run_id, None)
        if feed is not None and feed.error is not None and not feed.is_live:
            feed.close()
            feed.deleteLater()
            feed = None
        if feed is None:
            model = self.fleet_model
            cluster = model.cluster_of(run.primary)
            feed = RunFeed(
                *(run, lambda: model.fleet, self.history, model.jobs, model.facts, self, self._predictor()),
                cluster=cluster,
                cpus_of=lambda node: model.clusters.cpus_of(cluster, node),
            )
            feed.changed.connect(self._feed_changed)
        self._feeds[run.run_id] = feed
        while len(self._feeds) > FEEDS:
            oldest = self._feeds.pop(next(iter(self._feeds)))
            oldest.close()
            oldest.deleteLater()
        return feed

    def _predictor(self) -> Callable[[RunRecord], PredictedStep | None]:
        """Returns a function that predicts a step of a run. The function may be called on any thread."""
        home, inventory, facts = self.fleet_model.home, self.fleet_model.inventory, tuple(self.fleet_model.facts())

        def predict(record: RunRecord) -> PredictedStep | None:
            from torchyard_core.app.run_predictions import RunPredictor

            return RunPredictor(home, inventory, facts).predict(record)

        return predict

    def log(self, run: KnownRun, host: str, replica: str, local_rank: int = 0) -> LogFeed:
        """Returns a new feed of one rank's log, which the caller must close."""
        model = self.fleet_model
        return LogFeed(run.run_id, host, replica, local_rank, lambda: model.fleet, model.jobs, self)

    def stop(self, run: KnownRun, failed: Failed, *, force: bool = False, owner: QObject | None = None) -> Job:
        """Requests that a run be stopped. The run's feed reports the end."""
        model = self.fleet_model

        def ask() -> None:
            stop_run(run, self._primary(run), force=force)
            if run.state == "waiting":
                fleet, links = model.fleet, []
                for host in run.hosts:
                    with suppress(TorchyardError):  # A host that does not answer will release its resources by itself.
                        links.append(fleet.link(host, install=False))
                free_prepared(run, links)

        return model.jobs.run(ask, None, failed, owner=owner)

    def find_checkpoint(
        self, run: KnownRun, done: Callable[[SavedStep | None], None], failed: Failed, *, owner: QObject | None = None
    ) -> Job:
        """Looks for the newest checkpoint of a run in the run's folders on its hosts."""
        model = self.fleet_model

        def look() -> SavedStep | None:
            fleet = model.fleet
            reached = fleet.links([host for host in run.hosts if fleet.knows(host)], install=False)
            links = {host: link for host, link in reached.items() if not isinstance(link, HostError)}
            found = newest_checkpoint(run, links)
            silent = [link for link in reached.values() if isinstance(link, HostError)]
            if found is None and silent:
                raise silent[0]
            return found

        return model.jobs.run(look, done, failed, owner=owner)

    def fetch(
        self,
        run: KnownRun,
        target: Path,
        progress: Callable[[int, int], None],
        done: Callable[[list[Path], list[TorchyardError]], None],
        failed: Failed,
        *,
        pattern: str = "",
        owner: QObject | None = None,
    ) -> Job:
        """Downloads the files of a run from each of its hosts to the folder `target`/HOST.

        Args:
            progress: Called with the number of downloaded bytes and the total.
        """
        model = self.fleet_model
        job = Job()
        amounts: dict[str, tuple[int, int]] = {}

        def note(host: str, so_far: int, total: int) -> None:
            job.checkpoint()
            amounts[host] = (so_far, total)
            model.jobs.tell(_unless_cancelled, job, progress, *map(sum, zip(*amounts.values(), strict=True)))

        def bring() -> tuple[list[Path], list[TorchyardError]]:
            fleet = model.fleet
            reached = fleet.links([host for host in run.hosts if fleet.knows(host)], install=False)
            links = {host: link for host, link in reached.items() if not isinstance(link, HostError)}
            files, silent = list_files(run.run_id, pattern, run.hosts, links)
            job.checkpoint()
            found = fleet.each(files, lambda host: one(host, files[host], links[host]))
            written = [path for answer in found.values() if isinstance(answer, list) for path in answer]
            problems: list[TorchyardError] = [link for link in reached.values() if isinstance(link, HostError)]
            problems += silent.values()
            problems += [answer for answer in found.values() if isinstance(answer, TorchyardError)]
            job.checkpoint()
            return written, problems

        def one(host: str, files: Files, link: AgentLink) -> list[Path] | TorchyardError:
            try:
                return fetch_files(run.run_id, files, target, link, note)
            except TorchyardError as error:
                return error
            except OSError as error:
                place = error.filename or target
                return TorchyardError(f"{place} cannot be written: {error.strerror}.", code="unwritable")

        return model.jobs.run(bring, lambda result: done(*result), failed, owner=owner, job=job)

    def grow(
        self,
        run: KnownRun,
        host: str,
        count: int,
        pool: str,
        done: Callable[[AddedWorkers | None], None],
        failed: Failed,
        *,
        owner: QObject | None = None,
    ) -> GrowthJob:
        """Adds workers to a live run on a host. `done` is called with None after a cancellation."""
        job = GrowthJob(self.fleet_model, run, host, count, pool)

        def finish(added: AddedWorkers | None) -> None:
            job.is_finished = True
            done(added)

        def fail(error: TorchyardError) -> None:
            job.is_finished = True
            failed(error)

        self.fleet_model.jobs.run(job.work, finish, fail, owner=owner)
        return job

    def fetch_model(
        self,
        run: KnownRun,
        file: Path,
        progress: Callable[[int, int], None],
        done: Callable[[SavedModel], None],
        failed: Failed,
        *,
        owner: QObject | None = None,
    ) -> Job:
        """Downloads the model of a run's newest checkpoint to `file`, which is replaced if it exists.

        Args:
            progress: Called with the number of downloaded bytes and the total.
        """
        model = self.fleet_model
        job = Job()

        def note(host: str, so_far: int, total: int) -> None:
            job.checkpoint()
            model.jobs.tell(_unless_cancelled, job, progress, so_far, total)

        def bring() -> SavedModel:
            fleet = model.fleet
            reached = fleet.links([host for host in run.hosts if fleet.knows(host)], install=False)
            links = {host: link for host, link in reached.items() if not isinstance(link, HostError)}
            sources = model_sources(run, self.history.load(run.run_id), links, fleet.interpreters(links))
            try:
                found = find_model(run, sources, links)
            except TorchyardError as error:
                silent = next((link for link in reached.values() if isinstance(link, HostError)), None)
                raise silent or error from error
            job.checkpoint()
            try:
                fetch_model(run.run_id, found, sources[found.host], file, links[found.host], note, job.checkpoint)
            except OSError as error:
                message = f"{error.filename or file} cannot be written: {error.strerror}."
                raise TorchyardError(message, code="unwritable") from error
            return found

        return model.jobs.run(bring, done, failed, owner=owner, job=job)

    def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()

    def _primary(self, run: KnownRun) -> Any:
        return link_to_primary(self.fleet_model.fleet, run)

    def _refreshed(self, found: tuple[list[KnownRun], dict[str, HostError]]) -> None:
        self._refreshing = None
        runs, self.silent = found
        for run in runs:
            if (feed := self._feeds.get(run.run_id)) is not None:
                feed.retry(run)
        self._take(runs)
        self.refreshing_changed.emit()

    def _not_refreshed(self, error: TorchyardError) -> None:
        self._refreshing = None
        self.refreshing_changed.emit()

    def _take(self, runs: list[KnownRun]) -> None:
        # Trials of sweeps are left out, because they would hide all other runs.
        self._runs = [self._as_followed(run) for run in runs if not run.sweep_run]
        self.runs_changed.emit()

    def _as_followed(self, run: KnownRun) -> KnownRun:
        """Returns the run with the state from its feed, which is newer than the list."""
        feed = self._feeds.get(run.run_id)
        return run if feed is None else self._by_feed(run, feed)

    def _by_feed(self, run: KnownRun, feed: RunFeed) -> KnownRun:
        picture = feed.picture
        if not feed.was_heard or not picture.state:
            return run
        return replace(run, state=picture.state, reason=picture.reason, is_fresh=not picture.is_stale, reported_by="")

    def _feed_changed(self, changes: Any) -> None:
        if not changes.run:
            return
        self._runs = [self._as_followed(run) for run in self._runs]
        self.runs_changed.emit()


def _unless_cancelled(job: Job, progress: Callable[[int, int], None], done: int, total: int) -> None:
    if not job.is_finished:
        progress(done, total)
