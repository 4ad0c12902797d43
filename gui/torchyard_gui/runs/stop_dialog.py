"""Asks whether and how to stop a run."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QCheckBox, QDialog, QDialogButtonBox, QWidget

from torchyard_gui.widgets import label
from torchyard_gui.widgets.dialogs import dialog_layout


class StopDialog(QDialog):
    """Shown with `open()`, not modal. `confirmed` carries whether to kill the run at once."""

    confirmed = Signal(bool)

    def __init__(self, name: str, lasted: str, grace_s: float, *, is_stopping: bool, parent: QWidget | None = None):
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Stop {name}?").format(name=name))
        sentence = self.tr("It has run for {time}. What it did not save is lost.").format(time=lasted)
        if is_stopping:
            sentence = self.tr("It is being stopped already, and has its time to end well.")
        self.force = QCheckBox(self.tr("Kill now (skip the {seconds} s grace period)").format(seconds=f"{grace_s:.0f}"))
        self.force.setChecked(is_stopping)
        buttons = QDialogButtonBox()
        self.stop = buttons.addButton(self.tr("Stop the run"), QDialogButtonBox.ButtonRole.AcceptRole)
        self.stop.setProperty("danger", True)
        self.keep = buttons.addButton(self.tr("Let it run"), QDialogButtonBox.ButtonRole.RejectRole)
        self.keep.setDefault(True)
        buttons.accepted.connect(self._confirm)
        buttons.rejected.connect(self.reject)
        dialog_layout(self, label(sentence, ink="2", wrap=True), self.force, 4, buttons, spacing=12)
        self.keep.setFocus()

    def _confirm(self) -> None:
        self.confirmed.emit(self.force.isChecked())
        self.accept()
