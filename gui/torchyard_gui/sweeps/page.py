"""The Sweeps page: the list of sweeps, and the trials of the selected sweep."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QModelIndex, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QGuiApplication, QHideEvent, QShowEvent
from PySide6.QtWidgets import QApplication, QStackedWidget, QWidget

from torchyard_core.errors import TorchyardError
from torchyard_core.formatting import counted
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.sweeps.trial_table import SweepTable, Trial
from torchyard_gui.bridge.sweeps_model import SweepsModel
from torchyard_gui.sweeps.history_plot import HistoryPlot
from torchyard_gui.sweeps.importance_plot import ImportancePlot
from torchyard_gui.sweeps.labels import about_trial
from torchyard_gui.sweeps.menu_actions import SweepsActions
from torchyard_gui.sweeps.parallel_plot import ParallelPlot
from torchyard_gui.sweeps.resume import ResumeFlow
from torchyard_gui.sweeps.sweep_bar import SweepBar
from torchyard_gui.sweeps.sweep_list import SweepDelegate, SweepListModel
from torchyard_gui.sweeps.trial_table import TrialTable
from torchyard_gui.widgets import ElidedLabel, EmptyState, NoticeBar
from torchyard_gui.widgets.dialogs import ConfirmationDialog
from torchyard_gui.widgets.empty_state import EmptyListMessage
from torchyard_gui.widgets.layouts import FLUSH, hbox, splitter, vbox
from torchyard_gui.widgets.next_steps import error_text
from torchyard_gui.widgets.run_rows import RUN, run_list_view

UPDATE_EVERY_MS = 3000
REFRESH_EVERY_MS = 30_000
NEW_SWEEP = "torchyard sweep topology.yaml search.yaml"


class SweepsPage(QWidget):
    """The Sweeps page.

    While visible, the page updates the trials of the selected sweep, and asks all hosts for their sweeps at intervals.
    """

    edit_copy = Signal(str)
    """Emitted with the text of a topology that has the parameters of a trial."""
    new_wanted = Signal()
    """Emitted when the user wants to start a sweep."""
    status_changed = Signal()

    def __init__(self, model: SweepsModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.title = self.tr("Sweeps")
        self.icon_name = "sweeps"
        self.model = model
        self.actions_ = SweepsActions(self)
        self.run_id = ""
        """The ID of the selected sweep, or ""."""
        self.dialog: ConfirmationDialog | None = None
        self._wanted = ""
        """The ID of a sweep to show once it is known."""
        self._problem_of: tuple[str, str] | None = None
        """The sweep and the trial ("" for none) whose error `notice` shows, or None if `notice` shows no such error."""

        self.list_model = SweepListModel(model, self)
        self.list = run_list_view(self.list_model, SweepDelegate(), self.tr("Sweeps"))
        left = QWidget(minimumWidth=160)
        vbox((self.list, 1), parent=left, margins=(0, 12, 0, 8), spacing=8)
        self._left = left

        acts = self.actions_
        self.bar = SweepBar(acts.new, acts.best, acts.resume, acts.stop)
        self.notice = NoticeBar()
        self.stale = NoticeBar()
        self.not_shared = NoticeBar()
        self.resuming = ResumeFlow(model.fleet_model, model.runs.history, self.notice, self)
        self.table = TrialTable()
        self._nothing = EmptyListMessage(self.table, self._nothing_text)
        self.about = ElidedLabel(ink="2")
        self.history, self.parallel, self.importance = HistoryPlot(), ParallelPlot(), ImportancePlot()
        self.plots = QWidget()
        above = hbox((self.history, 3), (self.importance, 2), spacing=8)
        vbox((above, 4), (self.parallel, 5), parent=self.plots, margins=(12, 4, 12, 12), spacing=8)
        upper = QWidget(minimumHeight=120)
        about = hbox((self.about, 1), margins=(12, 2, 12, 2))
        vbox((self.table, 1), about, parent=upper, margins=FLUSH, spacing=0)
        self.along = splitter(Qt.Orientation.Vertical, upper, self.plots, grows=0, sizes=[230, 370])
        self.along.setStretchFactor(1, 1)
        right = QWidget()
        vbox(self.notice, self.stale, self.not_shared, (self.along, 1), parent=right, margins=FLUSH, spacing=0)
        self.across = splitter(Qt.Orientation.Horizontal, left, right, grows=1, sizes=[206, 1000])
        sentence = self.tr(
            "A sweep runs a topology many times to find the best hyperparameters. Describe the search in a form, or in"
            " a file for “{command}”. Its trials are then shown here, live."
        )
        sentence = sentence.format(command=NEW_SWEEP)
        self.empty = EmptyState(self.tr("No sweeps yet"), sentence, acts.new, acts.command, icon_name="sweeps")
        self._pages = QStackedWidget()
        self._pages.addWidget(self.empty)
        self._pages.addWidget(self.across)
        vbox(self._pages, parent=self, margins=FLUSH)

        self._update_timer = QTimer(self, interval=UPDATE_EVERY_MS)
        self._update_timer.timeout.connect(self._update)
        self._refresh_timer = QTimer(self, interval=REFRESH_EVERY_MS)
        self._refresh_timer.timeout.connect(self._refresh)
        model.sweeps_changed.connect(self._sweeps_changed)
        model.table_changed.connect(self._table_changed)
        model.not_shared.connect(self._show_not_shared)
        model.shared.connect(self.not_shared.clear)
        self.list.selectionModel().currentChanged.connect(self._current_changed)
        for chooser in (self.table, self.history, self.parallel):
            chooser.chosen.connect(self.choose)
        self.notice.action_triggered.connect(self._act_on_notice)
        self.resuming.run_started.connect(self.show_sweep)
        self.resuming.launch_over.connect(self._enable)
        acts.connect_to(
            {
                acts.new: self.new_wanted.emit,
                acts.stop: self.ask_to_stop,
                acts.stop_trial: self.ask_to_stop_trial,
                acts.resume: self.resume,
                acts.best: self.open_best,
                acts.open_trial: self.open_trial,
                acts.dashboard: self.copy_dashboard,
                acts.command: lambda: QGuiApplication.clipboard().setText(NEW_SWEEP),
                acts.refresh: self._ask_again,
            }
        )
        self.addActions(acts.all())
        self._sweeps_changed()

    def page_actions(self) -> list[QAction]:
        return self.actions_.all()

    def panes(self) -> list[QWidget]:
        return [self._left, self.table, self.plots]

    def status_texts(self) -> list[str | tuple[str, str]]:
        live = [run for run in self.model.sweeps if not run.has_ended]
        if not live:
            return []
        text = self.tr("1 live sweep") if len(live) == 1 else self.tr("{count} live sweeps").format(count=len(live))
        return [("running", text)]

    @property
    def sweep(self) -> KnownRun | None:
        """The selected sweep."""
        return self.model.sweep(self.run_id)

    def show_sweep(self, run_id: str) -> None:
        """Selects a sweep as soon as it is known. The history is read because it lists a new sweep before the hosts."""
        self._wanted = run_id
        self.model.runs.read_history()
        self.model.runs.refresh()

    def choose(self, number: str) -> None:
        """Selects a trial in the table and in the plots."""
        if self.table.trial is None or self.table.trial.trial != number:
            self.table.choose(number)
        for plot in (self.history, self.parallel):
            plot.choose(number)
        self._show_about()
        self._enable()

    def ask_to_stop(self) -> None:
        """Asks whether to stop the selected sweep. If the sweep is already stopping, asks whether to kill it."""
        run, table = self.sweep, self._table
        if run is None or run.has_ended or self.dialog is not None:
            return
        running = table.count("running") if table is not None else 0
        sentence = self.tr("The sweep ends, and with it {trials}. It can be resumed: {which} are tried again.")
        which = self.tr("its parameters") if running == 1 else self.tr("their parameters")
        sentence = sentence.format(trials=counted(running, self.tr("running trial")), which=which)
        if not running:
            sentence = self.tr("The sweep ends. It can be resumed.")
        self._ask(
            self.tr("Stop {name}?").format(name=run.name),
            sentence,
            self.tr("Stop the sweep"),
            lambda force: self.model.stop(run, self._errors_of(run), force=force, owner=self),
            is_stopping=run.state == "stopping",
        )

    def ask_to_stop_trial(self) -> None:
        """Asks whether to stop the selected trial."""
        run, trial = self.sweep, self.table.trial
        if run is None or trial is None or not trial.can_be_stopped or self.dialog is not None:
            return
        self._ask(
            self.tr("Stop trial {number}?").format(number=trial.trial),
            self.tr("The trial then counts as failed, and the sweep goes on."),
            self.tr("Stop the trial"),
            lambda force: self.model.stop_trial(run, trial, self._errors_of(run, trial), force=force, owner=self),
        )

    def resume(self) -> None:
        """Resumes the selected sweep, which must have ended, as a new run, and shows the new run."""
        run = self.sweep
        if run is not None and run.has_ended:
            self._problem_of = None
            self.resuming.resume(run)
            self._enable()

    def open_best(self) -> None:
        """Opens the topology with the parameters of the best trial."""
        table = self._table
        if table is not None and table.best is not None:
            self._open(table.best)

    def open_trial(self) -> None:
        """Opens the topology with the parameters of the selected trial."""
        if self.table.trial is not None:
            self._open(self.table.trial)

    def copy_dashboard(self) -> None:
        """Copies the command that opens the study of the selected sweep in optuna-dashboard."""
        file = self.model.study_file(self.run_id)
        if file:
            command = f"optuna-dashboard sqlite:///{file}"
            QGuiApplication.clipboard().setText(command)
            self.notice.show_notice("info", self.tr("Copied: {command}").format(command=command))

    def close_page(self) -> None:
        """Cancels a resumption in progress, and stops all updates. Called when the window closes."""
        self.resuming.close_launch()
        self._update_timer.stop()
        self._refresh_timer.stop()
        self.model.close()

    def focus_body(self) -> None:
        (self.list if self.model.sweeps else self).setFocus(Qt.FocusReason.OtherFocusReason)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self.model.sweeps and not self.isAncestorOf(QApplication.focusWidget() or self):
            self.list.setFocus(Qt.FocusReason.OtherFocusReason)
        self._update_timer.start()
        self._refresh_timer.start()
        self.model.runs.read_history()
        self._refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._update_timer.stop()
        self._refresh_timer.stop()

    @property
    def _table(self) -> SweepTable | None:
        return self.model.table(self.run_id)

    def _refresh(self) -> None:
        self.model.runs.refresh()
        self.model.update_all()

    def _ask_again(self) -> None:
        """Asks all hosts for their sweeps, and reads the trials of the selected sweep again even if it has ended."""
        self._refresh()
        if self.sweep is not None:
            self.model.update(self.sweep)

    def _update(self) -> None:
        run = self.sweep
        self.table.viewport().update()  # Repaint the elapsed times of running trials.
        if run is not None and not self.model.is_final(run) and (not run.has_ended or not self.model.error(run.run_id)):
            self.model.update(run)

    def _sweeps_changed(self) -> None:
        sweeps = self.model.sweeps
        self._pages.setCurrentWidget(self.across if sweeps else self.empty)
        self.list_model.set_rows(sweeps)
        if self._wanted and self.model.sweep(self._wanted) is not None:
            self.run_id, self._wanted = self._wanted, ""
        elif self.sweep is None:
            self.run_id = sweeps[0].run_id if sweeps else ""
        row = self.list_model.row_of(self.run_id)
        if row >= 0:
            self.list.setCurrentIndex(self.list_model.index(row))
        if self.isVisible():
            for run in sweeps:
                if self.model.table(run.run_id) is None and self.model.error(run.run_id) is None:
                    self.model.update(run)
        self._show()
        self.status_changed.emit()

    def _current_changed(self, current: QModelIndex, before: QModelIndex) -> None:
        run = current.data(RUN) if current.isValid() else None
        if run is not None and run.run_id != self.run_id:
            self.run_id = run.run_id
            if not self.resuming.is_launching:
                self._clear_notice()
            if not self.model.is_final(run):
                self.model.update(run)
            self._show()

    def _table_changed(self, run_id: str) -> None:
        self.list_model.set_rows(self.model.sweeps)
        if run_id == self.run_id:
            self._show()

    def _errors_of(self, run: KnownRun, trial: Trial | None = None) -> Callable[[TorchyardError], None]:
        """Returns a callback that shows an error about a sweep or one of its trials, if the sweep is still selected.

        Before returning, removes the error of an earlier action, unless a sweep is being resumed.
        """
        if not self.resuming.is_launching:
            self._clear_notice()

        def show(error: TorchyardError) -> None:
            if self.run_id == run.run_id:
                self._problem_of = run.run_id, trial.trial if trial is not None else ""
                self.notice.show_error(error)

        return show

    def _clear_notice(self) -> None:
        self._problem_of = None
        self.notice.clear()

    def _remove_old_problem(self) -> None:
        """Removes the error about a sweep that is no longer selected, or about a trial that has ended."""
        if self._problem_of is None or self.resuming.is_launching:
            return
        sweep, number = self._problem_of
        trial = self._table.trial(number) if self._table is not None and number else None
        if sweep != self.run_id or (trial is not None and trial.state != "running"):
            self._clear_notice()

    def _show(self) -> None:
        """Shows the selected sweep and its trials."""
        run, table = self.sweep, self._table
        self._remove_old_problem()
        self.bar.show_sweep(run, table)
        self.table.show_table(table)
        for plot in (self.history, self.parallel, self.importance):
            plot.show_table(table)
        chosen = self.table.trial
        for plot in (self.history, self.parallel):
            plot.choose(chosen.trial if chosen is not None else "")
        self._nothing.look()
        error = self.model.error(self.run_id)
        if error is None:
            self.stale.clear()
        else:
            known = self.tr("The last known trials are shown.") if table is not None else ""
            text = f"{error_text(error, has_buttons=True)} {known}".strip()
            if text != self.stale.text or self.stale.isHidden():
                self.stale.show_error(error, kind="warn", text=text, closable=False)
        self._show_about()
        self._enable()

    def _show_not_shared(self, run_id: str, error: TorchyardError) -> None:
        """Shows why the study of a sweep was not copied to the team's database. The message stays until a study is
        copied.
        """
        run = self.model.sweep(run_id)
        text = self.tr(
            "The study of {name} was not copied to the team's database; the sweep is not affected. {problem}"
        )
        problem = error_text(error, has_buttons=True)
        text = text.format(name=run.name if run is not None else run_id, problem=problem)
        self.not_shared.show_error(error, kind="warn", text=text)

    def _show_about(self) -> None:
        table, trial = self._table, self.table.trial
        if table is None:
            self.about.setText("")
        elif trial is not None:
            self.about.setText(about_trial(table, trial))
        elif table.lost:
            self.about.setText(self.tr("Lost hosts: {hosts}").format(hosts=", ".join(table.lost)))
        else:
            self.about.setText(self.tr("Select a trial to see it in full and in the plots."))

    def _nothing_text(self) -> str:
        if self.model.error(self.run_id) is not None:
            return self.tr("The trials are not known on this computer.")
        return self.tr("No trial has begun yet.")

    def _enable(self) -> None:
        acts, run, table, trial = self.actions_, self.sweep, self._table, self.table.trial
        acts.stop.setEnabled(run is not None and not run.has_ended)
        acts.stop_trial.setEnabled(trial is not None and trial.can_be_stopped)
        acts.resume.setEnabled(run is not None and run.has_ended and not self._is_complete(table))
        if self.resuming.is_launching:
            acts.resume.setEnabled(False)
        acts.best.setEnabled(table is not None and table.best is not None)
        acts.open_trial.setEnabled(trial is not None)
        acts.dashboard.setEnabled(bool(self.run_id and self.model.study_file(self.run_id)))

    def _is_complete(self, table: SweepTable | None) -> bool:
        return table is not None and table.count("complete", "failed", "pruned") >= table.wanted

    def _open(self, trial: Trial) -> None:
        run = self.sweep
        if run is not None:
            self.model.trial_topology(run, trial, self.edit_copy.emit, self._errors_of(run), owner=self)

    def _ask(
        self, question: str, sentence: str, yes: str, stop: Callable[[bool], object], *, is_stopping: bool = False
    ) -> None:
        """Asks whether to stop a sweep or trial or, if `is_stopping`, whether to kill it."""
        if is_stopping:
            sentence = self.tr("It is already stopping, within its grace period.")
            yes = self.tr("Kill now")
        dialog = ConfirmationDialog(question, sentence, yes, self.tr("Keep running"), self)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.accepted.connect(lambda: stop(is_stopping))
        dialog.finished.connect(self._dialog_gone)
        self.dialog = dialog
        dialog.open()

    def _dialog_gone(self) -> None:
        self.dialog = None

    def _act_on_notice(self, number: int) -> None:
        if self.resuming.is_launching:
            self.resuming.cancel()
        else:
            self.resuming.accept_new_code()
