"""The launch panel: a dialog beside the window with the checklist and the progress of a launch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from PySide6.QtCore import QEvent, QTimer, Signal
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QApplication, QDialog, QWidget

from torchyard_core.booking.planned_time import PlannedTime
from torchyard_core.booking.search.conflict import Conflict
from torchyard_core.booking.time_parser import local_zone
from torchyard_core.errors import AgentRefused, HostError, TorchyardError
from torchyard_core.formatting import span, until
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.confirmations import Confirmation
from torchyard_core.next_steps import NextStep
from torchyard_core.sweeps.search_file import SearchFile
from torchyard_core.topology.file import TopologyFile
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.launch_job import LaunchJob, SweepJob
from torchyard_gui.launch.checklist_model import STEPS, Checklist
from torchyard_gui.launch.checklist_row import ChecklistRow
from torchyard_gui.launch.question_block import QuestionBlock
from torchyard_gui.widgets import Divider, NoticeBar, clear_layout, label, scroll_area
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox
from torchyard_gui.widgets.next_steps import advice_text
from torchyard_gui.widgets.screen_reader import announce

WIDTH, HEIGHT = 560, 500
MARGIN = 20
"""Left and right margin of all parts of the panel, so that their marks and texts are aligned."""


class LaunchPanel(QDialog):
    """Panel for one launch at a time. It is not modal, and the launch can be cancelled at any time."""

    run_started = Signal(str)
    """Emitted with the ID of a run that has started."""
    sweep_started = Signal(str)
    """Emitted with the ID of a sweep that has started."""
    trust_requested = Signal(str)
    """Emitted with a host whose key is unknown. Once the key has been recorded, the receiver must call `trusted`."""
    launch_over = Signal(bool)
    """Emitted when the launch has ended, with True if the run has started or may have started."""

    def __init__(self, fleet_model: FleetModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.setModal(False)
        self._model = fleet_model
        self._source: TopologyFile | None = None
        self._search: SearchFile | None = None
        """The search file of a sweep; None for the launch of a run."""
        self.job: LaunchJob | None = None
        self.checklist = Checklist()
        self._rows: dict[str, ChecklistRow] = {}
        self._planned = PlannedTime()
        self._place = ""
        self._free: PlannedTime | None = None
        """The next time at which GPUs that other users have booked are free, or None."""
        self._untrusted: list[str] = []
        self._close_when_over = False

        self.heading = label(role="title", wrap=True)
        self.about = label(role="small", ink="2")
        self._list = vbox(spacing=2)
        inside = QWidget()
        vbox(self._list, None, parent=inside, margins=(MARGIN, 10, MARGIN, 10))
        self._area = scroll_area(inside, self.tr("Checklist"))
        self.notice = NoticeBar(margin=MARGIN)
        self.notice.action_triggered.connect(self._way_out)
        self.question = QuestionBlock()
        self.question.answered.connect(self._answered)
        self.again = push_button(self.tr("Try again"), self.try_again)
        tip = self.tr("Cancel the launch; nothing is left on the hosts (Esc)")
        self.cancel_button = push_button(self.tr("Cancel"), self._cancel_pressed, tip=tip)
        head = vbox(self.heading, self.about, margins=(MARGIN, 16, MARGIN, 12), spacing=2)
        foot = hbox(None, self.again, self.cancel_button, margins=(MARGIN, 10, MARGIN, 14), spacing=8)
        parts = (head, Divider(), self.notice, self.question, (self._area, 1), Divider(), foot)
        vbox(*parts, parent=self, margins=FLUSH, spacing=0)
        self.resize(WIDTH, HEIGHT)

    @property
    def is_launching(self) -> bool:
        return self.job is not None and not self.job.is_over

    @property
    def run_name(self) -> str:
        """The name of the current or last launch."""
        if self._search is not None and self._search.search is not None and self._search.search.name:
            return self._search.search.name
        topology = self._source.topology if self._source is not None else None
        return topology.name if topology is not None else ""

    def launch(
        self,
        source: TopologyFile,
        planned: PlannedTime | None = None,
        search: SearchFile | None = None,
        place: str = "",
    ) -> None:
        """Shows the panel and starts a launch. If another launch is in progress, only shows the panel with that launch.

        Args:
            search: A valid search file to launch a sweep, or None to launch a run.
            planned: Planned time. If it is later than now, GPUs are booked, and the hosts start the run at that time.
            place: The chosen cluster, or "" for the hosts of the fleet file.
        """
        self.bring_to_front()
        self.activateWindow()
        if self.is_launching:
            return
        self._source, self._planned = source, planned or PlannedTime()
        self._search, self._place = search, place
        self._begin()

    def bring_to_front(self) -> None:
        self.show()
        self.raise_()

    def try_again(self) -> None:
        if self._source is not None and not self.is_launching:
            self._begin()

    def trusted(self, host: str) -> None:
        """Marks a host's key as trusted. When all keys are trusted, starts the launch again."""
        if host in self._untrusted:
            self._untrusted.remove(host)
            if not self._untrusted:
                self.try_again()
            else:
                self._offer_trust()

    def cancel(self) -> None:
        """Cancels the launch, and reverts what it has done."""
        if self.job is not None and self.is_launching:
            self.job.cancel()
            self.question.hide()
            self.cancel_button.setEnabled(False)
            self.about.setText(self.tr("Cancelling …"))

    def close_launch(self) -> None:
        """Cancels the launch and hides the panel; called when the window closes."""
        if self.job is not None:
            self.job.close()
        self.hide()

    def reject(self) -> None:
        """Handles Esc and the close button.

        If a launch is in progress, cancels it; the panel closes when the launch has been reverted.
        """
        if self.is_launching:
            self._close_when_over = True
            self.cancel()
        else:
            super().reject()

    def closeEvent(self, event: QCloseEvent) -> None:
        if self.is_launching:
            event.ignore()
            self.reject()
        else:
            super().closeEvent(event)

    def _begin(self) -> None:
        assert self._source is not None
        if self.job is not None:
            self.job.deleteLater()
        self._untrusted, self._free = [], None
        self._close_when_over = False
        if self._search is not None:
            job: LaunchJob = SweepJob(
                self._source, self._search, self._model, self, planned=self._planned, place=self._place
            )
        else:
            job = LaunchJob(self._source, self._model, parent=self, planned=self._planned, place=self._place)
        self.checklist = Checklist(on_cluster=bool(job.cluster))
        self._rows.clear()
        clear_layout(self._list)
        self._show_rows()
        topology = self._source.topology
        self.setWindowTitle(self.tr("Launch {name}").format(name=self.run_name))
        self.heading.setText(self.windowTitle())
        count = sum(pool.replicas for pool in topology.pools) if topology is not None else 0
        replicas = self.tr("1 replica") if count == 1 else self.tr("{count} replicas").format(count=count)
        if self._search is not None and self._search.search is not None:
            trials = self._search.search.number_of_trials
            of_sweep = self.tr("1 trial") if trials == 1 else self.tr("{count} trials").format(count=trials)
            replicas = self.tr("{trials}, each of {replicas}").format(trials=of_sweep, replicas=replicas)
        self.about.setText(self._about(replicas, job.cluster))
        self.notice.clear()
        self.question.hide()
        self.again.hide()
        self.cancel_button.setText(self.tr("Cancel"))
        self.cancel_button.setEnabled(True)
        self.cancel_button.setFocus()
        job.checked.connect(self._checked)
        job.progressed.connect(self._progressed)
        job.asked.connect(self._asked)
        job.started.connect(self._started)
        job.failed.connect(self._failed)
        job.cancelled.connect(self._cancelled)
        for end in (job.failed, job.cancelled):
            end.connect(self._over)
        self.job = job
        job.start()

    def _checked(self, check: Check) -> None:
        row = self.checklist.take(check)
        if row.name in self._rows:
            self._rows[row.name].refresh()
        else:
            self._show_rows()

    def _progressed(self, step: str, done: int, total: int) -> None:
        row = self.checklist.progress(step, done, total)
        self._rows[row.name].refresh()
        if step in STEPS and self.is_launching and self.job is not None and not self.job.is_cancelled:
            self.about.setText(_step_text(self, step))

    def _asked(self, question: Confirmation) -> None:
        if self.job is not None and not self.job.is_cancelled:
            self.about.setText(self.tr("Waiting for your answer …"))
            self.question.ask(question)
            announce(self, self.question.accessibleName(), urgent=True)
            self.raise_()

    def _answered(self, yes: bool) -> None:
        if self.job is not None and self.is_launching:
            self.about.setText(self.tr("Continuing …") if yes else self.tr("Cancelling …"))
            self.job.answer(yes)

    def _started(self, run_id: str) -> None:
        self._end(started=True)
        self.hide()
        (self.run_started if self._search is None else self.sweep_started).emit(run_id)
        self.launch_over.emit(True)

    def _failed(self, error: TorchyardError) -> None:
        if error.code in ("large_files", "needs_booking"):
            self._declined(error)
            return
        if not self.checklist.has_failed:
            host = error.host if isinstance(error, HostError | AgentRefused) else ""
            self.checklist.fail(host, error.message, error.advice, error.code)
            self._show_rows()
        self._end(started=False)
        may_run = error.code == "start_unknown"
        if self._close_when_over and not may_run:
            self.hide()
            return
        if may_run:  # A second launch could start the run twice.
            self.about.setText(self.tr("It is unknown whether the run has started."))
            self.cancel_button.setFocus()
        else:
            self.about.setText(self.tr("The run did not start. Nothing is left on the hosts."))
            self.again.show()
            self.again.setFocus()
        red = next(row for row in self._rows.values() if row.row.failed)
        announce(self, f"{self.about.text()} {red.texts[0]}", urgent=True)
        QTimer.singleShot(0, red, lambda: self._show_whole(red))
        self._untrusted = list(dict.fromkeys(self.checklist.unknown_keys))
        if self._untrusted:
            self._offer_trust()
        elif (conflict := getattr(error, "conflict", None)) is not None:
            self._offer_free(conflict)

    def _show_whole(self, row: ChecklistRow) -> None:
        """Scrolls until a row is completely visible.

        The layout is activated first, because the row's height has changed.
        """
        inside = self._area.widget()
        if inside is not None and (layout := inside.layout()) is not None:
            layout.invalidate()
            layout.activate()
            inside.updateGeometry()
            QApplication.sendPostedEvents(inside, QEvent.Type.LayoutRequest.value)
        self._area.ensureWidgetVisible(row)

    def _cancelled(self) -> None:
        self._taken_back(self.tr("The launch was cancelled. Nothing is left on the hosts."))

    def _declined(self, error: TorchyardError) -> None:
        """Shows that the user declined the launch, for example because of a large upload. This is not shown as a
        failure.
        """
        advice = self.tr("Nothing was launched or sent. {advice}")
        text = advice.format(advice=advice_text(error.advice, has_buttons=True))
        self._taken_back(text, error.next)

    def _taken_back(self, sentence: str, steps: Sequence[NextStep] = ()) -> None:
        self._end(started=False)
        if self._close_when_over:
            self.hide()
            return
        self.about.setText("")
        self.notice.show_notice("info", sentence, closable=False, steps=steps)
        self.again.show()

    def _over(self, error: TorchyardError | None = None) -> None:
        self.launch_over.emit(error is not None and error.code == "start_unknown")

    def _end(self, *, started: bool) -> None:
        self.question.hide()
        self.checklist.end(started=started)
        for row in self._rows.values():
            row.refresh()
        self.cancel_button.setText(self.tr("Close"))
        self.cancel_button.setEnabled(True)

    def _cancel_pressed(self) -> None:
        if self.is_launching:
            self.cancel()
        else:
            self.hide()

    def _offer_trust(self) -> None:
        host, more = self._untrusted[0], len(self._untrusted) - 1
        text = self.tr("The host key of {host} is not trusted yet. Compare its fingerprint, then trust it.")
        text = text.format(host=host)
        if more:
            one, many = (
                self.tr("1 more host is not trusted either."),
                self.tr("{count} more hosts are not trusted either."),
            )
            text += " " + (one if more == 1 else many).format(count=more)
        self.notice.show_notice("fail", text, self.tr("Trust {host} …").format(host=host), closable=False)
        self.notice.buttons[0].setFocus()  # The user must trust the key before launching again.

    def _offer_free(self, conflict: Conflict) -> None:
        """Offers to launch at the next time at which the GPUs that other users have booked are free."""
        text = self.tr("Other users have booked GPUs that this run needs.")
        if not conflict.nearest:
            self.notice.show_notice("warn", text, closable=False)
            return
        fit, zone = conflict.nearest[0], conflict.wanted.zone
        self._free = PlannedTime(fit.start, fit.end - fit.start)
        now = datetime.now(UTC)
        way = self.tr("Book and launch at {when}").format(when=until(now, fit.start, zone))
        text += " " + self.tr("They are free {when} ({zone}).").format(when=span(fit.start, fit.end, zone), zone=zone)
        self.notice.show_notice("warn", text, way, closable=False)
        self.notice.buttons[0].setFocus()

    def _way_out(self, number: int) -> None:
        if self._untrusted:
            self.trust_requested.emit(self._untrusted[0])
        elif self._free is not None and not self.is_launching:
            self._planned = self._free
            self._begin()

    def _about(self, replicas: str, cluster: str) -> str:
        """Returns a description of the launch: the replicas or trials, the cluster, and the planned time if it is later
        than now.
        """
        now = datetime.now(UTC)
        if cluster:
            start = self._planned.at(now).start
            if start is None:
                return self.tr("{replicas} on the Slurm cluster {cluster}").format(replicas=replicas, cluster=cluster)
            text = self.tr("{replicas} on the Slurm cluster {cluster}; its job starts {when} at the earliest")
            return text.format(replicas=replicas, cluster=cluster, when=until(now, start, local_zone()))
        if not self._planned.at(now).is_later:
            return replicas
        when = self._planned.words(now, local_zone())
        return self.tr("{replicas} · booked for {when}; starts automatically").format(replicas=replicas, when=when)

    def _show_rows(self) -> None:
        """Creates the widgets of new rows, in the order of the checklist."""
        for place, (name, row) in enumerate(self.checklist.rows.items()):
            if name not in self._rows:
                self._rows[name] = ChecklistRow(row)
                self._list.insertWidget(place, self._rows[name])

    def row(self, name: str) -> ChecklistRow:
        """Returns the widget of the row with the given name, a key of `checklist_model.ORDER`."""
        return self._rows[name]


def _step_text(panel: LaunchPanel, step: str) -> str:
    return {
        "reaching": panel.tr("Connecting to hosts …"),
        "looking": panel.tr("Checking hosts …"),
        "sending": panel.tr("Sending the code …"),
        "preparing": panel.tr("Locking GPUs and reserving ports …"),
        "starting": panel.tr("Starting …"),
    }[step]
