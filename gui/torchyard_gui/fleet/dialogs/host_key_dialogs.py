"""Dialogs that show the host keys of one or several hosts, and record the keys that the user trusts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QDialog,
    QDialogButtonBox,
    QFrame,
    QLabel,
    QProgressBar,
    QPushButton,
    QWidget,
)

from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.host_key_trust import ShownKey
from torchyard_gui.bridge.background_jobs import Job
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.fleet.fingerprint import Fingerprint
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import Card, NoticeBar, SectionLabel, label, scroll_area, set_ink
from torchyard_gui.widgets.dialogs import grow_to_fit
from torchyard_gui.widgets.layouts import vbox
from torchyard_gui.widgets.next_steps import error_text

WIDTH = 520
LIST_WIDTH = 560
MOST_LIST_HEIGHT = 440
COMPARE = "ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"


class HostKeyDialog(QDialog):
    """Dialog that shows one host's key, and records the key when the user confirms it.

    The key is requested in the background, and the user may close the dialog at any time.
    """

    trusted = Signal(str)
    """Emitted with the host's name when its key has been recorded."""

    def __init__(self, model: FleetModel, name: str, parent: QWidget | None = None):
        super().__init__(parent)
        self._model = model
        self._name = name
        self._key: ShownKey | None = None
        self.setWindowTitle(self.tr("Trust the host key of {host}").format(host=name))
        self.setMinimumWidth(WIDTH)
        self.heading = label(self.tr("Asking {host} for its key …").format(host=name), role="title", wrap=True)
        self.notice = NoticeBar()
        self.progress = QProgressBar()
        self.progress.setRange(0, 0)
        self.shown = _KeyCard(self.tr("Shown by the host"))
        self.on_record = _KeyCard(self.tr("On record"))
        self.advice = label(wrap=True)
        self.command = _selectable(label())
        self.command.setFont(theme().font("mono"))
        self.trust_button = QPushButton(self.tr("Trust this key"), autoDefault=False)
        buttons = QDialogButtonBox()
        buttons.addButton(self.trust_button, QDialogButtonBox.ButtonRole.AcceptRole)
        self.cancel_button = buttons.addButton(self.tr("Cancel"), QDialogButtonBox.ButtonRole.RejectRole)
        buttons.accepted.connect(self._trust)
        buttons.rejected.connect(self.reject)
        self.notice.action_triggered.connect(lambda number: self._ask())
        head = self.heading, self.progress, self.notice
        key = self.shown, self.on_record, self.advice, self.command
        vbox(*head, *key, 6, buttons, parent=self, margins=(20, 18, 20, 16), spacing=10)
        self.cancel_button.setDefault(True)  # Pressing Enter must not trust a key by accident.
        self.cancel_button.setFocus()
        self._ask()

    def _ask(self) -> None:
        self.notice.clear()
        self._show_parts(asking=True)
        self._job = self._model.ask_key(self._name, self._show_key, self._failed, owner=self)

    def _show_key(self, key: ShownKey) -> None:
        self._describe(key)
        grow_to_fit(self)

    def _describe(self, key: ShownKey) -> None:
        self._key = key
        self._show_parts(asking=False, key=key)
        place = {"host": self._name}
        self.shown.show_key(key.kind, key.fingerprint)
        self.on_record.show_key(key.kind, key.on_record or "")
        self.command.setText(COMPARE.format(kind=key.kind.removeprefix("ssh-").split("-")[0]))
        if key.is_trusted:
            self.heading.setText(self.tr("The host key of {host} is already trusted").format(**place))
            self.cancel_button.setText(self.tr("Close"))
            return
        self.advice.setText(self.tr("Compare the fingerprint with that of the host. This command prints it there:"))
        if key.has_changed:
            self.heading.setText(self.tr("The host key of {host} has changed").format(**place))
            self.notice.show_notice(
                "fail",
                self.tr(
                    "The host was reinstalled, or an attacker intercepts the connection. Trust the new key only if the "
                    "owner of the host confirms it."
                ),
                closable=False,
            )
        else:
            self.heading.setText(self.tr("The host key of {host} is not known yet").format(**place))

    def _trust(self) -> None:
        if self._key is not None:
            self.trust_button.setEnabled(False)
            self._model.trust(self._key, self._recorded, self._failed, owner=self)

    def _recorded(self) -> None:
        self.trusted.emit(self._name)
        self.accept()

    def _failed(self, error: TorchyardError) -> None:
        self._show_parts(asking=False)
        self.heading.setText(self.tr("The key of {host} could not be trusted").format(host=self._name))
        self.notice.show_error(error, self.tr("Try again"), closable=False)
        grow_to_fit(self)

    def _show_parts(self, *, asking: bool, key: ShownKey | None = None) -> None:
        new = key is not None and not key.is_trusted
        self.progress.setVisible(asking)
        self.shown.setVisible(key is not None)
        self.on_record.setVisible(key is not None and key.has_changed)
        self.advice.setVisible(new)
        self.command.setVisible(new)
        self.trust_button.setVisible(new)
        self.trust_button.setEnabled(new)

    def done(self, result: int) -> None:
        self._job.cancel()
        super().done(result)


class _KeyCard(Card):
    """Shows the type of a key, and its fingerprint for the user to compare."""

    def __init__(self, heading: str):
        super().__init__()
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.kind = label(role="small", ink="3")
        self.fingerprint = Fingerprint(heading)
        for widget in (SectionLabel(heading), self.fingerprint, self.kind):
            self.body.addWidget(widget)

    def show_key(self, kind: str, fingerprint: str) -> None:
        self.kind.setText(kind)
        self.fingerprint.setText(fingerprint)


def _selectable(widget: QLabel) -> QLabel:
    widget.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return widget


class HostKeyListDialog(QDialog):
    """Dialog that shows the keys of several hosts and records those that the user selects.

    The keys are requested in the background. At first, no key is selected, because the user must compare each one.
    """

    trusted = Signal(str)
    """Emitted with each host whose key was recorded."""

    def __init__(self, model: FleetModel, names: Sequence[str], parent: QWidget | None = None):
        super().__init__(parent)
        self._model = model
        self._jobs: list[Job] = []
        self.setWindowTitle(self.tr("Trust the host keys of {count} hosts").format(count=len(names)))
        self.setMinimumWidth(LIST_WIDTH)
        heading = label(self.windowTitle(), role="title", wrap=True)
        text = self.tr("Compare each fingerprint with that of the host, and select the keys that are right.")
        self.notice = NoticeBar()
        self.rows = {name: HostKeyRow(name) for name in names}
        body = QWidget()
        vbox(*self.rows.values(), None, parent=body, margins=(0, 0, 8, 0), spacing=12)
        self._scroll = scroll_area(body)
        self.trust_button = QPushButton(autoDefault=False)
        buttons = QDialogButtonBox()
        buttons.addButton(self.trust_button, QDialogButtonBox.ButtonRole.ActionRole)
        self.cancel_button = buttons.addButton(self.tr("Cancel"), QDialogButtonBox.ButtonRole.RejectRole)
        self.trust_button.clicked.connect(self._trust)
        buttons.rejected.connect(self.reject)
        parts = heading, label(text, ink="2", wrap=True), self.notice, (self._scroll, 1), 6, buttons
        vbox(*parts, parent=self, margins=(20, 18, 20, 16), spacing=10)
        self._body = body
        self.cancel_button.setDefault(True)  # Pressing Enter must never trust a host key.
        self._ask()
        for row in self.rows.values():
            row.box.toggled.connect(self._count)
        self._count()

    def _ask(self) -> None:
        for name, row in self.rows.items():
            answered, failed = partial(self._answered, row), partial(self._unanswered, row)
            self._jobs.append(self._model.ask_key(name, answered, failed, owner=self))

    def _answered(self, row: HostKeyRow, key: ShownKey) -> None:
        row.show_key(key)
        self._fit()

    def _unanswered(self, row: HostKeyRow, error: TorchyardError) -> None:
        row.show_problem(error_text(error))
        self._fit()

    def _fit(self) -> None:
        layout = self._body.layout()
        assert layout is not None
        layout.activate()
        self._scroll.setMinimumHeight(min(self._body.sizeHint().height() + 4, MOST_LIST_HEIGHT))
        self.adjustSize()

    def _checked(self) -> list[HostKeyRow]:
        return [row for row in self.rows.values() if row.box.isChecked()]

    def _count(self) -> None:
        count = len(self._checked())
        several = self.tr("Trust {count} keys").format(count=count) if count else self.tr("Trust keys")
        self.trust_button.setText(self.tr("Trust 1 key") if count == 1 else several)
        self.trust_button.setEnabled(bool(count))

    def _trust(self) -> None:
        self.trust_button.setEnabled(False)
        self._record(self._checked())

    def _record(self, rows: list[HostKeyRow]) -> None:
        """Records the keys one after the other, because all are written to the same file."""
        if not rows:
            self.accept()
            return
        row, *others = rows
        assert row.key is not None

        def recorded() -> None:
            self.trusted.emit(row.name)
            self._record(others)

        self._jobs.append(self._model.trust(row.key, recorded, self._failed, owner=self))

    def _failed(self, error: TorchyardError) -> None:
        self.notice.show_error(error, closable=False)
        self._count()

    def done(self, result: int) -> None:
        for job in self._jobs:
            job.cancel()
        super().done(result)


class HostKeyRow(QWidget):
    """A host with the key that it sent and the key that is recorded."""

    def __init__(self, name: str):
        super().__init__()
        self.name = name
        self.key: ShownKey | None = None
        self.box = QCheckBox(name)
        self.box.setEnabled(False)
        self.state = label(self.tr("Asking for the key …"), role="small", ink="2", wrap=True)
        self.shown = Fingerprint(self.tr("Shown by {host}").format(host=name))
        self._before = label(self.tr("On record:"), role="small", ink="2")
        self.on_record = Fingerprint(self.tr("On record for {host}").format(host=name))
        rows = self.box, self.state, self.shown, self._before, self.on_record
        vbox(*rows, parent=self, margins=(0, 0, 0, 0), spacing=4)
        for widget in rows[2:]:
            widget.hide()

    def show_key(self, key: ShownKey) -> None:
        self.key = key
        self.shown.setText(key.fingerprint)
        self.shown.show()
        self.box.setEnabled(not key.is_trusted)
        if key.is_trusted:
            self.state.setText(self.tr("Already trusted ({kind})").format(kind=key.kind))
        elif key.has_changed:
            changed = self.tr("Changed: reinstalled, or intercepted by an attacker. Shown now ({kind}):")
            self.state.setText(changed.format(kind=key.kind))
            set_ink(self.state, "fail")
            self.on_record.setText(key.on_record or "")
            self._before.show()
            self.on_record.show()
        else:
            self.state.setText(self.tr("Not known yet ({kind}):").format(kind=key.kind))

    def show_problem(self, text: str) -> None:
        self.state.setText(text)
        set_ink(self.state, "fail")
