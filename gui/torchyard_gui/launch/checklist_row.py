"""Widget for a row of the checklist: mark, title, result and progress. A click shows the results of each host."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtGui import QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QWidget

from torchyard_core.formatting import size
from torchyard_core.launch.checks.check import CHECKLIST, Check
from torchyard_core.next_steps import steps_of
from torchyard_gui.launch.checklist_model import Row, where
from torchyard_gui.theme.icons import icon
from torchyard_gui.widgets import ElidedLabel, StateMark, clear_layout, label
from torchyard_gui.widgets.buttons import tool_button
from torchyard_gui.widgets.indicators import MeterBar
from torchyard_gui.widgets.layouts import vbox
from torchyard_gui.widgets.next_steps import StepButtons, as_sentence

translate = QCoreApplication.translate

TITLES = {spec.name: spec.title for spec in CHECKLIST}
TROUBLES = 6
"""Maximum number of failures shown in a row, and of warnings shown in a row that is not open. Any others are only
counted.
"""


class ChecklistRow(QWidget):
    """Shows one Row of the checklist."""

    def __init__(self, row: Row, parent: QWidget | None = None):
        super().__init__(parent)
        self._row = row
        self._is_open = False
        self._shown: list[tuple[str, str]] = []
        self.mark = StateMark("idle")
        self.title = label(title_of(row.name))
        self.title.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Preferred)
        self.found = ElidedLabel(role="small", ink="2")
        self.found.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.more = tool_button("chevron-right", self.tr("Show each host"), self.toggle)
        self.more.setAutoRaise(True)
        self.more.setFixedSize(22, 22)
        self.bar = MeterBar(0.0, "accent")
        self._lines = vbox(spacing=2)
        self.steps = StepButtons()
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 3, 0, 3)
        layout.setHorizontalSpacing(10)
        layout.setVerticalSpacing(3)
        layout.addWidget(self.mark, 0, 0)
        layout.addWidget(self.title, 0, 1)
        layout.addWidget(self.found, 0, 2)
        layout.addWidget(self.more, 0, 3)
        layout.addWidget(self.bar, 1, 1, 1, 3)
        layout.addLayout(self._lines, 2, 1, 1, 3)
        layout.addWidget(self.steps, 3, 1, 1, 3)
        layout.setColumnStretch(2, 1)
        self.refresh()

    @property
    def row(self) -> Row:
        return self._row

    @property
    def texts(self) -> list[str]:
        """The lines of text below the title."""
        return [text for text, _ in self._shown]

    def toggle(self) -> None:
        """Shows or hides the results of each host."""
        self._is_open = not self._is_open
        self.more.setIcon(icon("chevron-down" if self._is_open else "chevron-right"))
        self.refresh()

    def refresh(self) -> None:
        row = self._row
        self.mark.set_state({"pending": "planned"}.get(row.state, row.state))
        self.found.setText(found_in(row))
        self.bar.setVisible(row.is_running)
        if row.is_running:
            self.bar.set_value((row.done or 0) / max(1, row.total))
        self.more.setEnabled(bool(row.fine or row.warnings))
        policy = self.more.sizePolicy()
        policy.setRetainSizeWhenHidden(True)
        self.more.setSizePolicy(policy)
        self.more.setVisible(self.more.isEnabled() and row.name != "topology")
        self._show_lines(self._lines_now())
        checks = (*row.failed[:TROUBLES], *row.warnings[:TROUBLES])
        # The next steps of `key_unknown` and `booked` are left out, because the panel has buttons for them above the
        # list.
        self.steps.show_steps(
            step for check in checks if check.code not in ("key_unknown", "booked") for step in steps_of(check.advice)
        )
        self.setAccessibleName(f"{self.title.text()}: {state_word(row.state)}. {self.found.text()}")

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton and not self.more.isHidden():
            self.toggle()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Right, Qt.Key.Key_Left) and not self.more.isHidden():
            if (event.key() == Qt.Key.Key_Right) != self._is_open:
                self.toggle()
            return
        super().keyPressEvent(event)

    def _lines_now(self) -> list[tuple[str, str]]:
        row = self._row
        lines = [(_sentence(check), "fail") for check in row.failed[:TROUBLES]]
        if len(row.failed) > TROUBLES:
            rest = len(row.failed) - TROUBLES
            lines.append((self.tr("… and {count} more").format(count=rest), "fail"))
        lines += [(_sentence(check), "wait") for check in row.warnings[:TROUBLES]]
        if self._is_open:
            lines += [(_with_hosts(message, hosts, in_full=True), "2") for message, hosts in row.fine.items()]
            lines += [(_sentence(check), "wait") for check in row.warnings[TROUBLES:]]
        return lines

    def _show_lines(self, lines: list[tuple[str, str]]) -> None:
        if lines == self._shown:
            return
        self._shown = lines
        clear_layout(self._lines)
        for text, ink in lines:
            line = label(text, role="small", ink=ink, wrap=True)
            line.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            self._lines.addWidget(line)


def title_of(name: str) -> str:
    """Returns the title of a row."""
    return translate("Launch", TITLES[name]) if name in TITLES else name


def state_word(state: str) -> str:
    """Returns the name of a row's state, which is shown in addition to the mark."""
    return {
        "pending": translate("Launch", "pending"),
        "running": translate("Launch", "in progress"),
        "passed": translate("Launch", "passed"),
        "warning": translate("Launch", "passed with a warning"),
        "failed": translate("Launch", "failed"),
    }[state]


def found_in(row: Row) -> str:
    """Returns a summary of the results in a row."""
    if row.is_running:
        if row.name == "sending":
            return translate("Launch", "{done} of {total}").format(done=size(row.done or 0), total=size(row.total))
        one, several = translate("Launch", "{done} of 1 host"), translate("Launch", "{done} of {total} hosts")
        return (one if row.total == 1 else several).format(done=row.done, total=row.total)
    if row.failed:
        count = len(row.failed)
        return translate("Launch", "{count} hosts").format(count=count) if count > 1 else row.failed[0].host
    if row.name == "sending" and row.done is not None:
        return size(row.total) if row.total else translate("Launch", "nothing new to send")
    if row.name in ("preparing", "starting", "looking") and row.done is not None:
        return _hosts(row.total) if row.total else ""
    if len(row.fine) == 1:
        message, hosts = next(iter(row.fine.items()))
        return _with_hosts(message, hosts)
    return _hosts(row.hosts) if row.fine or row.hosts else ""


def _hosts(count: int) -> str:
    return translate("Launch", "1 host") if count == 1 else translate("Launch", "{count} hosts").format(count=count)


def _with_hosts(message: str, hosts: list[str], *, in_full: bool = False) -> str:
    if not hosts:
        return message
    names, count = where(hosts)
    if in_full:
        return f"{names or ', '.join(hosts)}: {message}"
    return f"{message} · {hosts[0] if count == 1 else _hosts(count)}"


def _sentence(check: Check) -> str:
    """Returns a failure or warning as a sentence, which begins with the host's name if the message lacks it."""
    message = check.message
    if check.host and check.host not in message:
        message = f"{check.host}: {message}"
    return as_sentence(message, check.advice, host=check.host, has_buttons=True)
