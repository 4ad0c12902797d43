"""Shows the keys of several hosts, and records the keys that the user has selected."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QCheckBox, QDialog, QDialogButtonBox, QPushButton, QWidget

from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.host_key_trust import ShownKey
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.jobs import Job
from torchyard_gui.fleet.fingerprint import Fingerprint
from torchyard_gui.widgets import NoticeBar, label, scroll_area, set_ink
from torchyard_gui.widgets.layouts import vbox
from torchyard_gui.widgets.next_steps import error_text

WIDTH = 560
MOST_HEIGHT = 440


class HostKeysDialog(QDialog):
    """Requests the keys in the background. No key is selected at first, because the user must compare each key."""

    trusted = Signal(str)
    """A host whose key was recorded."""

    def __init__(self, model: FleetModel, names: Sequence[str], parent: QWidget | None = None):
        super().__init__(parent)
        self._model = model
        self._jobs: list[Job] = []
        self.setWindowTitle(self.tr("Trust the host keys of {count} hosts").format(count=len(names)))
        self.setMinimumWidth(WIDTH)
        heading = label(self.windowTitle(), role="title", wrap=True)
        text = self.tr("Compare each fingerprint with that of the host, and select the keys that are right.")
        self.notice = NoticeBar()
        self.rows = {name: KeyRow(name) for name in names}
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
        self.cancel_button.setDefault(True)  # Enter alone must never trust a key
        self._ask()
        for row in self.rows.values():
            row.box.toggled.connect(self._count)
        self._count()

    def _ask(self) -> None:
        for name, row in self.rows.items():
            answered, failed = partial(self._answered, row), partial(self._unanswered, row)
            self._jobs.append(self._model.ask_key(name, answered, failed, owner=self))

    def _answered(self, row: KeyRow, key: ShownKey) -> None:
        row.show_key(key)
        self._fit()

    def _unanswered(self, row: KeyRow, error: TorchyardError) -> None:
        row.show_problem(error_text(error))
        self._fit()

    def _fit(self) -> None:
        layout = self._body.layout()
        assert layout is not None
        layout.activate()
        self._scroll.setMinimumHeight(min(self._body.sizeHint().height() + 4, MOST_HEIGHT))
        self.adjustSize()

    def _checked(self) -> list[KeyRow]:
        return [row for row in self.rows.values() if row.box.isChecked()]

    def _count(self) -> None:
        count = len(self._checked())
        several = self.tr("Trust {count} keys").format(count=count) if count else self.tr("Trust keys")
        self.trust_button.setText(self.tr("Trust 1 key") if count == 1 else several)
        self.trust_button.setEnabled(bool(count))

    def _trust(self) -> None:
        self.trust_button.setEnabled(False)
        self._record(self._checked())

    def _record(self, rows: list[KeyRow]) -> None:
        """Records the keys one after the other, because all of them are written to the same file."""
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


class KeyRow(QWidget):
    """A host with the key that it presents and the recorded key."""

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
