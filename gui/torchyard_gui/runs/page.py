"""The Runs page: the list of runs, and the selected run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import QItemSelectionModel, QModelIndex, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QHideEvent, QShowEvent
from PySide6.QtWidgets import (
    QApplication,
    QCheckBox,
    QDialog,
    QDialogButtonBox,
    QFileDialog,
    QListView,
    QStackedWidget,
    QWidget,
)

from torchyard_core.errors import TorchyardError
from torchyard_core.formatting import size
from torchyard_core.launch.runs.annotations import Annotation
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.launch.runs.model_download import SavedModel
from torchyard_gui.bridge.background_jobs import Job
from torchyard_gui.bridge.run_feed import RunFeed
from torchyard_gui.bridge.run_state_types import RunChanges
from torchyard_gui.bridge.runs_model import RunsModel
from torchyard_gui.runs.growth import AddWorkersDialog, GrowthFlow, can_grow
from torchyard_gui.runs.labels import duration
from torchyard_gui.runs.menu_actions import RunsActions
from torchyard_gui.runs.notes import NotesDialog
from torchyard_gui.runs.plots.comparison import MOST_RUNS, Comparison
from torchyard_gui.runs.restart import RestartDialog, RestartFlow
from torchyard_gui.runs.run_bar import RunBar
from torchyard_gui.runs.run_list import RunDelegate, RunListModel
from torchyard_gui.runs.run_titles import title_of
from torchyard_gui.runs.run_view import RunView
from torchyard_gui.widgets import EmptyState, SearchField, label
from torchyard_gui.widgets.dialogs import dialog_layout
from torchyard_gui.widgets.empty_state import EmptyListMessage
from torchyard_gui.widgets.layouts import FLUSH, hbox, splitter, vbox
from torchyard_gui.widgets.next_steps import error_text
from torchyard_gui.widgets.run_rows import RUN, run_list_view

BAR_EVERY_MS = 1000
REFRESH_EVERY_MS = 30_000


class RunsPage(QWidget):
    """The Runs page. When the page is shown, and at intervals while it is visible, all hosts are asked for their
    runs.
    """

    edit_copy = Signal(str)
    """Emitted with the text of a run's topology when the user wants to edit a copy of it."""
    booking_wanted = Signal(str)
    """Emitted with the ID of a booking to show."""
    launch_wanted = Signal()
    """Emitted when a user without runs presses the button that leads to the Topology page."""
    status_changed = Signal()

    def __init__(self, model: RunsModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.title = self.tr("Runs")
        self.icon_name = "runs"
        self.model = model
        self.actions_ = RunsActions(self)
        self.feed: RunFeed | None = None
        self.fetching: Job | None = None
        self._stop_dialog: StopDialog | None = None
        self._restart_dialog: RestartDialog | None = None
        self._wanted = ""
        """The ID of a run to show once it is known."""

        self.list_model = RunListModel(self)
        self.list = run_list_view(self.list_model, RunDelegate(), self.tr("Runs"))
        self.list.setSelectionMode(QListView.SelectionMode.ExtendedSelection)
        self.search = SearchField(self.tr("Find run …"))
        self.search.textChanged.connect(self._filter)
        self._nothing = EmptyListMessage(self.list, lambda: self._empty_text(self.search.text()))
        self.search.textChanged.connect(self._nothing.look)
        left = QWidget(minimumWidth=180)
        search_box = hbox(self.search, margins=(12, 0, 12, 0))
        vbox(search_box, (self.list, 1), parent=left, margins=(0, 12, 0, 8), spacing=8)
        self._left = left

        acts = self.actions_
        self.bar = RunBar(acts.stop, acts.restart, acts.fetch, acts.copy, acts.booking)
        self.run_view = RunView(model)
        self.restarting = RestartFlow(model.fleet_model, self.run_view.work, self)
        self.restarting.run_started.connect(self.show_run)
        self.growing = GrowthFlow(model, self.run_view.work, self)
        topology = QAction(self.tr("Go to the topology"), self)
        topology.setToolTip(self.tr("Draw a cluster and press Launch there"))
        topology.triggered.connect(self.launch_wanted)
        self.empty = EmptyState(
            self.tr("No runs yet"),
            self.tr("Draw a cluster on the Topology page and press Launch: its run is shown here, live."),
            topology,
            icon_name="runs",
        )
        self._made_comparison: Comparison | None = None
        self.shown = QStackedWidget()
        self.shown.addWidget(self.run_view)
        self.across = splitter(Qt.Orientation.Horizontal, left, self.shown, grows=1, sizes=[216, 1000])
        self._pages = QStackedWidget()
        self._pages.addWidget(self.empty)
        self._pages.addWidget(self.across)
        vbox(self._pages, parent=self, margins=FLUSH)

        self._bar_timer = self._timer(BAR_EVERY_MS, self._tick)
        self._refresh_timer = self._timer(REFRESH_EVERY_MS, model.refresh)
        model.runs_changed.connect(self._runs_changed)
        self.list.selectionModel().currentChanged.connect(self._current_changed)
        self.bar.views.changed.connect(self.run_view.set_view)
        self.run_view.work.action_triggered.connect(self._cancel_work)
        acts.stop.triggered.connect(self.ask_to_stop)
        acts.restart.triggered.connect(self.ask_to_restart)
        acts.grow.triggered.connect(self.ask_to_add_workers)
        acts.fetch.triggered.connect(self.ask_to_fetch)
        acts.fetch_model.triggered.connect(self.ask_to_fetch_model)
        acts.copy.triggered.connect(self._copy)
        acts.booking.triggered.connect(self.show_booking)
        acts.notes.triggered.connect(self.ask_for_notes)
        acts.compare.triggered.connect(self.compare)
        self.run_view.side.notes.edit_wanted.connect(acts.notes.trigger)
        self.list.selectionModel().selectionChanged.connect(self._selection_changed)
        acts.refresh.triggered.connect(model.refresh)
        acts.hosts.triggered.connect(lambda: self.bar.views.set_value("canvas"))
        acts.table.triggered.connect(lambda: self.bar.views.set_value("table"))
        acts.plots.triggered.connect(lambda: self.bar.views.set_value("plots"))
        acts.log.triggered.connect(lambda: self.run_view.log.set_open(not self.run_view.log.is_open))
        acts.find.triggered.connect(self.run_view.log.start_search)
        self.addActions(acts.all())
        self._runs_changed()
        self._enable()

    def page_actions(self) -> list[QAction]:
        return self.actions_.all()

    def panes(self) -> list[QWidget]:
        if self.is_comparing:
            return [self._left, self.comparison]
        return [self._left, self.run_view.stack, self.run_view.side, self.run_view.log]

    def status_texts(self) -> list[str | tuple[str, str]]:
        live = [run for run in self.model.runs if run.state in ("starting", "running", "stopping", "restarting")]
        texts: list[str | tuple[str, str]] = []
        if live:
            count = self.tr("1 live run") if len(live) == 1 else self.tr("{count} live runs").format(count=len(live))
            texts.append(("running", count))
        waiting = sum(run.state == "waiting" for run in self.model.runs)
        if waiting:
            count = self.tr("1 waiting run") if waiting == 1 else self.tr("{count} waiting runs").format(count=waiting)
            texts.append(("waiting", count))
        return texts

    def show_run(self, run_id: str) -> None:
        """Selects a run. The history is read first, because a run that was just launched is in the history before the
        hosts report it.
        """
        self.search.clear()
        self._wanted = run_id
        self.model.read_history()

    def show_logs(self, run_id: str) -> None:
        """Selects a run and opens its logs."""
        self.show_run(run_id)
        self.run_view.log.set_open(True)

    def stop_run(self, run_id: str) -> None:
        """Selects a run and asks the user how to stop it. Does not ask if the run is not known yet."""
        self.show_run(run_id)
        if self.feed is not None and self.feed.run.run_id == run_id:
            self.ask_to_stop()

    def ask_to_stop(self) -> None:
        """Asks how to stop the selected run, and stops it. Does nothing if the run has ended."""
        feed = self.feed
        if feed is None or feed.picture.is_over or self._stop_dialog is not None:
            return
        picture = feed.picture
        grace = picture.plan.topology.program.stop_grace_s if picture.plan else 30.0
        lasted = duration(picture.elapsed(time.time()) or 0.0)
        stopping = picture.state == "stopping"
        dialog = StopDialog(picture.name, lasted, grace, is_stopping=stopping, parent=self)
        dialog.confirmed.connect(lambda force: self._stop(feed.run, force=force))
        dialog.finished.connect(self._dialog_gone)
        self._stop_dialog = dialog
        dialog.open()

    def ask_to_restart(self) -> None:
        """Asks from which checkpoint the selected run restarts, then launches the new run and shows it.

        The selected run must have ended.
        """
        feed = self.feed
        if feed is None or not feed.picture.is_over or self._restart_dialog is not None:
            return
        program = feed.picture.plan.topology.program if feed.picture.plan else None
        shared = str(program.checkpoint_dir or "") if program else ""
        dialog = RestartDialog(feed.picture.name, shared, self)
        dialog.confirmed.connect(lambda from_beginning: self._restart(feed, from_beginning=from_beginning))
        dialog.finished.connect(self._dialog_gone)
        self._restart_dialog = dialog
        if not shared:
            self.model.find_checkpoint(feed.run, dialog.show_checkpoint, dialog.show_problem, owner=dialog)
        dialog.open()

    def _restart(self, feed: RunFeed, *, from_beginning: bool) -> None:
        picture = feed.picture
        self.restarting.launch(feed.run, picture.topology_text, picture.topology_file, from_beginning=from_beginning)

    def ask_to_add_workers(self) -> None:
        """Asks for a host and a number of workers, and adds them to the selected run, which must be live."""
        feed = self.feed
        if feed is None or feed.picture.plan is None or self._is_working:
            return
        name = title_of(feed.run, self.model.runs)
        hosts = list(self.model.fleet_model.fleet.hosts)
        dialog = AddWorkersDialog(name, hosts, feed.picture.plan.topology, self)
        dialog.confirmed.connect(lambda host, count, pool: self.growing.add(feed.run, name, host, count, pool))
        dialog.open()

    def ask_to_fetch(self) -> None:
        """Asks for a folder, then downloads the files of the run to it."""
        if self.feed is None:
            return
        dialog = QFileDialog(self, self.tr("Fetch into folder"), str(Path.home()))
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        run = self.feed.run
        dialog.fileSelected.connect(lambda folder: self.fetch(run, Path(folder) / run.run_id))
        dialog.open()

    def fetch(self, run: KnownRun, target: Path) -> None:
        """Downloads the files of a run, unless another download is in progress. The page shows the progress."""
        if self.fetching is not None and not self.fetching.is_finished:
            return
        notice = self.run_view.work
        name = title_of(run, self.model.runs)
        notice.show_notice("info", self.tr("Fetching {run} …").format(run=name), self.tr("Cancel"), closable=False)

        def progress(done: int, total: int) -> None:
            text = self.tr("Fetching {run}: {done} of {total}")
            notice.reword(text.format(run=name, done=size(done), total=size(total)))

        def ended(written: list[Path], problems: list[TorchyardError]) -> None:
            if problems:
                text = " ".join(error_text(problem, has_buttons=True) for problem in problems)
                notice.show_notice("fail", text, steps=[step for problem in problems for step in problem.next])
            elif written:
                count = len(written)
                one, many = (
                    self.tr("{run}: 1 file fetched to {folder}"),
                    self.tr("{run}: {count} files fetched to {folder}"),
                )
                notice.show_notice("info", (one if count == 1 else many).format(run=name, count=count, folder=target))
            else:
                notice.show_notice("info", self.tr("{run} has no files to fetch").format(run=name))

        def failed(error: TorchyardError) -> None:
            notice.show_error(error)

        self.fetching = self.model.fetch(run, target, progress, ended, failed, owner=self)

    def ask_to_fetch_model(self) -> None:
        """Asks for a file, then downloads the model of the run's newest checkpoint to it."""
        if self.feed is None:
            return
        run = self.feed.run
        dialog = QFileDialog(self, self.tr("Fetch model into file"), str(Path.home()))
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix("pt")
        dialog.selectFile(f"{run.run_id}.pt")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(lambda file: self.fetch_model(run, Path(file)))
        dialog.open()

    def fetch_model(self, run: KnownRun, file: Path) -> None:
        """Downloads the model of the run's newest checkpoint, unless another download is in progress. The page shows
        the progress.
        """
        if self.fetching is not None and not self.fetching.is_finished:
            return
        notice = self.run_view.work
        name = title_of(run, self.model.runs)
        beginning = self.tr("Fetching the model of {run} …").format(run=name)
        notice.show_notice("info", beginning, self.tr("Cancel"), closable=False)

        def progress(done: int, total: int) -> None:
            text = self.tr("Fetching the model of {run}: {done} of {total}")
            notice.reword(text.format(run=name, done=size(done), total=size(total)))

        def ended(model: SavedModel) -> None:
            text = self.tr("{run}: the model of step {step} fetched to {file}")
            text = text.format(run=name, step=model.step, file=file)
            notice.show_notice("warn" if model.newer_incomplete else "info", f"{model.newer_incomplete} {text}".strip())

        def failed(error: TorchyardError) -> None:
            notice.show_error(error)

        self.fetching = self.model.fetch_model(run, file, progress, ended, failed, owner=self)

    def show_booking(self) -> None:
        if self._booking:
            self.booking_wanted.emit(self._booking)

    @property
    def _booking(self) -> str:
        """The ID of the booking of the current run, or "" if the run has no booking."""
        if self.feed is None:
            return ""
        known = self.model.run(self.feed.run.run_id)
        return known.booking if known is not None else self.feed.run.booking

    def ask_for_notes(self) -> None:
        """Opens the dialog with the note and tags of the selected run."""
        if self.feed is None:
            return
        run = self.feed.run
        about = self.model.annotations.get(run.run_id, Annotation())
        dialog = NotesDialog(title_of(run, self.model.runs), about, self)

        def save(annotation: Annotation) -> None:
            try:
                self.model.annotate(run.run_id, annotation)
            except TorchyardError as error:
                dialog.show_problem(error_text(error))
            else:
                dialog.accept()

        dialog.saved.connect(save)
        dialog.open()

    @property
    def chosen_runs(self) -> list[KnownRun]:
        """The selected runs, in the order of the list."""
        rows = sorted(index.row() for index in self.list.selectedIndexes())
        found = (self.list_model.index(row).data(RUN) for row in rows)
        return [run for run in found if run is not None]

    @property
    def comparison(self) -> Comparison:
        """The comparison of runs. It is created on first use."""
        if self._made_comparison is None:
            self._made_comparison = Comparison(self.model)
            self._made_comparison.closed.connect(self.end_comparison)
            self.shown.addWidget(self._made_comparison)
        return self._made_comparison

    @property
    def is_comparing(self) -> bool:
        return self.shown.currentWidget() is not self.run_view

    def compare(self) -> None:
        """Compares the current run with the newest other run of the same name or, if there is no such run, with the
        newest other run.

        If runs are already being compared, ends the comparison.
        """
        if self.is_comparing:
            self.end_comparison()
            return
        chosen = self.chosen_runs
        if len(chosen) < 2 and self.feed is not None:
            run = self.feed.run
            others = [one for one in self.list_model.runs if one.run_id != run.run_id]
            other = next((one for one in others if one.name == run.name), next(iter(others), None))
            if other is not None:
                self._choose([other.run_id])

    def _choose(self, run_ids: Sequence[str]) -> None:
        """Adds runs to the selection."""
        for row in map(self.list_model.row_of, run_ids):
            if row >= 0:
                flag = QItemSelectionModel.SelectionFlag.Select
                self.list.selectionModel().select(self.list_model.index(row), flag)

    def end_comparison(self) -> None:
        """Shows the current run alone."""
        self.list.selectionModel().select(self.list.currentIndex(), QItemSelectionModel.SelectionFlag.ClearAndSelect)
        self.list.setFocus(Qt.FocusReason.OtherFocusReason)

    def _selection_changed(self) -> None:
        chosen = self.chosen_runs
        if len(chosen) > 1:
            self.comparison.show_runs(chosen)
            self.shown.setCurrentWidget(self.comparison)
        else:
            if self._made_comparison is not None:
                self._made_comparison.show_runs([])
            self.shown.setCurrentWidget(self.run_view)
        self.bar.set_compared(min(len(chosen), MOST_RUNS) if len(chosen) > 1 else 0)
        self._enable()

    def _show_notes(self) -> None:
        if self.feed is not None:
            about = self.model.annotations.get(self.feed.run.run_id, Annotation())
            self.run_view.side.notes.show_annotation(about)

    def close_feeds(self) -> None:
        self.restarting.close_launch()
        self.growing.cancel()
        self.run_view.log.close_log()
        self._bar_timer.stop()
        self._refresh_timer.stop()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self.model.runs and not self.isAncestorOf(QApplication.focusWidget() or self):
            self.list.setFocus(Qt.FocusReason.OtherFocusReason)
        self._bar_timer.start()
        self._refresh_timer.start()
        self.model.read_history()
        self.model.refresh()

    def focus_body(self) -> None:
        (self.list if self.model.runs else self).setFocus(Qt.FocusReason.OtherFocusReason)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._bar_timer.stop()
        self._refresh_timer.stop()

    def _timer(self, interval: int, slot: Callable[[], object]) -> QTimer:
        timer = QTimer(self, interval=interval)
        timer.timeout.connect(slot)
        return timer

    def _empty_text(self, letters: str) -> str:
        return self.tr("No run matches “{letters}”.").format(letters=letters.strip()) if letters.strip() else ""

    def _filter(self, text: str) -> None:
        self.list_model.set_filter(text)
        self._select(self.feed.run.run_id if self.feed else "")

    def _runs_changed(self) -> None:
        runs = self.model.runs
        self._pages.setCurrentWidget(self.across if runs else self.empty)
        compared = [run.run_id for run in self.chosen_runs] if self.is_comparing else []
        self.list_model.set_runs(runs, self.model.annotations)
        self._show_notes()
        if self._wanted and self.model.run(self._wanted) is not None:
            wanted, self._wanted = self._wanted, ""
            compared = []
            self._select(wanted)
        elif self.feed is not None:
            self._select(self.feed.run.run_id)
        else:
            first = self.list_model.first_run()
            if first is not None:
                self._select(first.run_id)
        self._choose(compared)
        self._enable()
        self.status_changed.emit()

    def _select(self, run_id: str) -> None:
        row = self.list_model.row_of(run_id)
        current = self.list.currentIndex().data(RUN) if self.list.currentIndex().isValid() else None
        if row >= 0 and (current is None or current.run_id != run_id or self.feed is None):
            self.list.setCurrentIndex(self.list_model.index(row))
        if row >= 0 and (self.feed is None or self.feed.run.run_id != run_id):
            run = self.model.run(run_id)
            if run is not None:
                self._open(run)

    def _current_changed(self, current: QModelIndex, before: QModelIndex) -> None:
        run = current.data(RUN) if current.isValid() else None
        if run is not None and (self.feed is None or self.feed.run.run_id != run.run_id):
            self._open(run)

    def _open(self, run: KnownRun) -> None:
        if self.feed is not None:
            self.feed.changed.disconnect(self._changed)
        if not self._is_working:
            self.run_view.work.clear()  # The notice that is still shown is about the previously selected run.
        self.feed = self.model.feed(run)
        self.feed.changed.connect(self._changed)
        self.run_view.set_feed(self.feed)
        self.bar.set_feed(self.feed, title_of(run, self.model.runs))
        self._show_notes()
        self._enable()

    @property
    def _is_working(self) -> bool:
        """Whether a download, a restart or an addition of workers is in progress."""
        fetches = self.fetching is not None and not self.fetching.is_finished
        return self.restarting.is_launching or self.growing.is_adding or fetches

    def _changed(self, changes: RunChanges) -> None:
        if changes.samples or changes.run:
            self.bar.take_throughput()
            self.bar.refresh()
        if changes.run or changes.shown:
            self.bar.refresh()
            self._enable()

    def _tick(self) -> None:
        if self.feed is not None and not self.feed.picture.is_over:
            self.bar.refresh()

    def _enable(self) -> None:
        acts, picture = self.actions_, self.feed.picture if self.feed else None
        if self.is_comparing:  # While runs are compared, the actions for a single run are disabled.
            picture = None
        acts.stop.setEnabled(picture is not None and not picture.is_over)
        acts.restart.setEnabled(picture is not None and picture.is_over and bool(picture.topology_text))
        plan = picture.plan if picture is not None and not picture.is_over else None
        acts.grow.setEnabled(plan is not None and can_grow(plan.topology))
        acts.notes.setEnabled(picture is not None)
        acts.compare.setEnabled(len(self.list_model.runs) > 1)
        acts.fetch.setEnabled(picture is not None)
        acts.fetch_model.setEnabled(picture is not None)
        acts.copy.setEnabled(picture is not None and bool(picture.topology_text))
        acts.booking.setEnabled(picture is not None and bool(self._booking))
        for action in (acts.hosts, acts.table, acts.plots, acts.log, acts.find):
            action.setEnabled(picture is not None)

    def _stop(self, run: KnownRun, *, force: bool) -> None:
        if not self._is_working:
            self.run_view.work.clear()

        def failed(error: TorchyardError) -> None:
            self.run_view.work.show_error(error)

        self.model.stop(run, failed, force=force, owner=self)

    def _dialog_gone(self) -> None:
        self._stop_dialog = self._restart_dialog = None

    def _copy(self) -> None:
        if self.feed is not None:
            self.edit_copy.emit(self.feed.picture.topology_text)

    def _cancel_work(self, number: int) -> None:
        self.restarting.cancel()
        self.growing.cancel()
        if self.fetching is not None and not self.fetching.is_finished:
            self.fetching.cancel()
            self.run_view.work.clear()


class StopDialog(QDialog):
    """Dialog that asks how to stop a run; show it with `open()`.

    `confirmed` is emitted with True if the run must be killed immediately.
    """

    confirmed = Signal(bool)

    def __init__(self, name: str, lasted: str, grace_s: float, *, is_stopping: bool, parent: QWidget | None = None):
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Stop {name}?").format(name=name))
        sentence = self.tr(
            "It has been running for {time}. A program that saves checkpoints saves one when it is stopped; other"
            " unsaved work is lost."
        ).format(time=lasted)
        if is_stopping:
            sentence = self.tr("It is already stopping, within its grace period.")
        self.force = QCheckBox(self.tr("Kill now (skip the {seconds} s grace period)").format(seconds=f"{grace_s:.0f}"))
        self.force.setChecked(is_stopping)
        buttons = QDialogButtonBox()
        self.stop = buttons.addButton(self.tr("Stop the run"), QDialogButtonBox.ButtonRole.AcceptRole)
        self.stop.setProperty("danger", True)
        self.keep = buttons.addButton(self.tr("Keep running"), QDialogButtonBox.ButtonRole.RejectRole)
        self.keep.setDefault(True)
        buttons.accepted.connect(self._confirm)
        buttons.rejected.connect(self.reject)
        dialog_layout(self, label(sentence, ink="2", wrap=True), self.force, 4, buttons, spacing=12)
        self.keep.setFocus()

    def _confirm(self) -> None:
        self.confirmed.emit(self.force.isChecked())
        self.accept()
