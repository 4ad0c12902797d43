"""Alerts about a run: failure, a wait for lost hosts, failed or slow replicas, silent hosts, and missing telemetry."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication, Qt, Signal
from PySide6.QtGui import QFocusEvent, QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QWidget

from torchyard_gui.bridge.run_state import RunState
from torchyard_gui.runs.labels import clock
from torchyard_gui.widgets import Card, StateMark, clear_layout, label
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox
from torchyard_gui.widgets.screen_reader import announce

translate = QCoreApplication.translate

MOST_EACH = 3
"""Maximum number of cards for failed replicas, and also of cards for slow replicas. A further card counts the remaining
failed replicas. Silent hosts have at most twice as many cards.
"""


@dataclass(frozen=True)
class Alert:
    """An alert with a mark, a title and details. If the log of a replica explains the problem, the alert names the
    replica.
    """

    state: str
    title: str
    detail: str
    replica: str = ""


def alerts_of(picture: RunState) -> list[Alert]:
    """Returns the current alerts: the wait for lost hosts, failed replicas, slow replicas, silent hosts, and missing
    telemetry, in this order.

    If there is no such alert and the run has failed, returns an alert about the failure.
    """
    found = [*_waiting(picture), *_failures(picture), *_slow(picture), *_unknown(picture), *_without_telemetry(picture)]
    return found or _failed_run(picture)


def _waiting(picture: RunState) -> list[Alert]:
    """Returns an alert if the run waits for lost hosts."""
    waiting = None if picture.is_stale else picture.waiting
    if waiting is None:
        return []
    what = translate(
        "Runs", "The run restarts once it is back. After {time} it continues with fewer replicas, or fails."
    ).format(time=clock(waiting.until, exact=True))
    return [Alert("waiting", translate("Runs", "Waiting for {hosts}").format(hosts=waiting.hosts), what)]


def _failed_run(picture: RunState) -> list[Alert]:
    """Returns an alert that the run has failed. It is shown if no replica explains the failure, for example because the
    keeper crashed or the launch failed.
    """
    if not picture.is_over or picture.state != "failed":
        return []
    why = picture.reason or translate("Runs", "No reason is known.")
    return [Alert("failed", translate("Runs", "The run failed"), why, picture.chief or "")]


def _failures(picture: RunState) -> list[Alert]:
    # Lost replicas get no alert while the run waits, because the alert about the wait names their hosts.
    waits = picture.waiting is not None
    failed = [track for track in picture.failures() if not (waits and track.state == "lost")]
    needs = []
    for track in failed[:MOST_EACH]:
        title = (
            translate("Runs", "{replica} was lost") if track.state == "lost" else translate("Runs", "{replica} failed")
        )
        what = picture.cause_of(track) or (
            translate("Runs", "exit code {code}").format(code=track.exit_code) if track.exit_code else ""
        )
        at = (
            translate("Runs", "on {host} at {time}").format(host=picture.with_node(track.host), time=clock(track.since))
            if track.since
            else translate("Runs", "on {host}").format(host=picture.with_node(track.host))
        )
        mark = "unknown" if track.state == "lost" else "failed"
        needs.append(Alert(mark, title.format(replica=track.name), f"{what}\n{at}".strip(), track.name))
    if len(failed) > MOST_EACH:
        count = len(failed) - MOST_EACH
        one, several = translate("Runs", "1 more replica failed"), translate("Runs", "{count} more replicas failed")
        more = (one if count == 1 else several).format(count=count)
        needs.append(Alert("failed", more, translate("Runs", "See the table."), failed[MOST_EACH].name))
    return needs


def _slow(picture: RunState) -> list[Alert]:
    if picture.is_over:
        return []
    heard = {name: factor for name, factor in picture.slow.items() if picture.stale_since(picture.tracks[name]) is None}
    worst = sorted(heard.items(), key=lambda item: -item[1])
    return [
        Alert(
            "warning",
            translate("Runs", "{replica} is slow").format(replica=name),
            translate(
                "Runs",
                "Its compute time is {factor} times the median. Trainers that average with it wait in every step.",
            ).format(factor=f"{factor:.1f}"),
            name,
        )
        for name, factor in worst[:MOST_EACH]
    ]


def _unknown(picture: RunState) -> list[Alert]:
    if picture.is_over or not picture.is_followed:
        return []
    needs = []
    for host, since in list(picture.lost.items())[: 2 * MOST_EACH]:
        there = [track for track in picture.tracks.values() if track.host == host]
        title = translate("Runs", "{host} unknown").format(host=picture.with_node(host))
        what = translate("Runs", "{count} replicas on it.").format(count=len(there))
        if len(there) == 1:
            what = translate("Runs", "{replica} is on it.").format(replica=there[0].name)
        when = translate("Runs", "No answer since {time}.").format(time=clock(since))
        if since is None:
            when = translate("Runs", "No answer.")
        rest = translate("Runs", "Its replicas keep running. Reconnecting …")
        needs.append(Alert("unknown", title, f"{what} {when} {rest}"))
    return needs


def _without_telemetry(picture: RunState) -> list[Alert]:
    """Returns an alert if the state of a run on a cluster can only be read from the run's files."""
    if picture.is_over or not picture.telemetry_problem:
        return []
    rest = translate("Runs", "States, steps and logs are read from the run's files.")
    title = translate("Runs", "Live telemetry is missing")
    return [Alert("warning", title, f"{picture.telemetry_problem}. {rest}")]


class AlertsPanel(QWidget):
    """A panel with one card per alert. A click on a card that names a replica emits `opened` with this name."""

    opened = Signal(str)

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self._needs: list[Alert] = []
        self._count = label(ink="2")
        head = hbox(label(self.tr("Needs you"), role="title"), None, self._count)
        self._cards = vbox(spacing=8)
        vbox(head, self._cards, parent=self, margins=FLUSH, spacing=8)
        self.hide()

    @property
    def needs(self) -> list[Alert]:
        return list(self._needs)

    def show_needs(self, needs: list[Alert], *, is_known: bool = False) -> None:
        """Shows alerts, and announces the first new one to screen readers.

        Args:
            is_known: If True, nothing is announced, for example because another run has been selected.
        """
        if needs == self._needs:
            return
        before = {need.title for need in self._needs}
        fresh = next((need for need in needs if need.title not in before), None)
        self._needs = needs
        clear_layout(self._cards)
        for need in needs:
            card = _NeedCard(need)
            card.opened.connect(self.opened)
            self._cards.addWidget(card)
        self._count.setText(str(len(needs)))
        self.setVisible(bool(needs))
        if fresh is not None and not is_known and self.isVisible():
            announce(self, f"{fresh.title}. {fresh.detail}", urgent=fresh.state == "failed")


class _NeedCard(Card):
    """A card that shows one alert. If the alert names a replica, a click opens the replica's log."""

    opened = Signal(str)

    def __init__(self, need: Alert):
        super().__init__()
        self._replica = need.replica
        self.setAccessibleName(f"{need.title}. {need.detail}")
        title = label(need.title, role="strong", wrap=True)
        detail = label(need.detail, role="small", ink="2", wrap=True)
        head = hbox(spacing=8)
        head.addWidget(StateMark(need.state), 0, Qt.AlignmentFlag.AlignTop)
        text = vbox(title, detail, spacing=2)
        head.addLayout(text, 1)
        self.body.addLayout(head)
        if need.replica:
            self.setCursor(Qt.CursorShape.PointingHandCursor)
            self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            self.setToolTip(self.tr("Open the log of {replica}").format(replica=need.replica))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self._replica and event.button() == Qt.MouseButton.LeftButton and self.rect().contains(event.pos()):
            self.opened.emit(self._replica)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.set_selected(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.set_selected(False)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self._replica and event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.opened.emit(self._replica)
            return
        super().keyPressEvent(event)
