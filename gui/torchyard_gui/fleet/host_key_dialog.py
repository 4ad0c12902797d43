"""Dialog that shows the key of a host and records the key once the user confirms it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QFrame, QLabel, QProgressBar, QPushButton, QWidget

from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.host_key_trust import ShownKey
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.fleet.fingerprint import Fingerprint
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import Card, NoticeBar, SectionLabel, label
from torchyard_gui.widgets.layouts import vbox

WIDTH = 520
COMPARE = "ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"


class HostKeyDialog(QDialog):
    """Dialog that requests the key in the background. The user may close it at any time."""

    trusted = Signal(str)
    """The host whose key was recorded."""

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
        self.cancel_button.setDefault(True)  # Enter must not trust a key by accident.
        self.cancel_button.setFocus()
        self._ask()

    def _ask(self) -> None:
        self.notice.clear()
        self._show_parts(asking=True)
        self._job = self._model.ask_key(self._name, self._show_key, self._failed, owner=self)

    def _show_key(self, key: ShownKey) -> None:
        self._describe(key)
        layout = self.layout()
        assert layout is not None
        # The size hint does not account for the additional lines of wrapped text.
        self.resize(self.width(), max(self.height(), layout.totalHeightForWidth(self.width())))

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
    """A key type with its fingerprint, for comparison."""

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
