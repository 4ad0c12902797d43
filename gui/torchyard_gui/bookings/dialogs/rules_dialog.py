"""The team's rules: shown to all, changed by admins."""

from __future__ import annotations

from PySide6.QtWidgets import (
    QCheckBox,
    QDialog,
    QDialogButtonBox,
    QLineEdit,
    QPlainTextEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from torchyard_core.errors import TorchyardError
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.rules_form import as_fields, read_rules
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.widgets import FormRow, label

NAMES = 176


class RulesDialog(QDialog):
    """Closes once the store has the new rules."""

    def __init__(self, model: BookingsModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.model = model
        self.setWindowTitle(self.tr("Rules"))
        self.setMinimumWidth(560)
        rules = model.seen.rules
        texts = as_fields(rules)
        titles = {
            "shortest_min": self.tr("Shortest booking, min"),
            "longest_h": self.tr("Longest booking, h"),
            "furthest_days": self.tr("Furthest ahead, days"),
            "quota_gpu_hours": self.tr("GPU-hours a person and week"),
            "quotas": self.tr("Other quotas"),
            "idle_release_min": self.tr("Idle bookings free after, min"),
            "zone": self.tr("Time zone of weeks"),
            "groups": self.tr("Groups"),
            "windows": self.tr("Open times"),
        }
        notes = {
            "quotas": "kim=200, lee=50",
            "groups": "students: kim, lee",
            "windows": "gpu-a:* gpu-b:0 | students | Mon,Tue | 09:00-18:00 | Europe/Berlin",
        }
        self.fields: dict[str, QLineEdit | QPlainTextEdit] = {}
        self.same_day = QCheckBox(self.tr("What is booked for the same day needs no quota"))
        self.same_day.setChecked(rules.same_day_is_free)
        rows = QVBoxLayout(self)
        rows.setContentsMargins(20, 18, 20, 16)
        rows.setSpacing(8)
        rows.addWidget(label(self.windowTitle(), role="title"))
        rows.addWidget(label(self.tr("An empty field is no limit."), role="small", ink="2"))
        for name, title in titles.items():
            field: QLineEdit | QPlainTextEdit
            if name in ("groups", "windows"):
                field = QPlainTextEdit(texts[name])
                field.setFixedHeight(58)
                field.setTabChangesFocus(True)
            else:
                field = QLineEdit(texts[name])
            field.setReadOnly(not model.seen.is_admin)
            self.fields[name] = field
            note = self.tr("Such as {example}").format(example=notes[name]) if name in notes else ""
            rows.addWidget(FormRow(title, field, note, name_width=NAMES))
            if name == "quotas":
                rows.addWidget(self.same_day)
        self.same_day.setEnabled(model.seen.is_admin)
        self.problem = label(ink="fail", wrap=True)
        self.problem.hide()
        rows.addWidget(self.problem)
        buttons = QDialogButtonBox()
        self.ok = QPushButton(self.tr("Save"))
        self.ok.setProperty("primary", True)
        if model.seen.is_admin:
            buttons.addButton(self.ok, QDialogButtonBox.ButtonRole.AcceptRole)
        else:
            self.ok.hide()
            rows.insertWidget(1, label(self.tr("Only an admin can change them."), ink="2"))
        buttons.addButton(self.tr("Close"), QDialogButtonBox.ButtonRole.RejectRole)
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        rows.addWidget(buttons)

    def accept(self) -> None:
        texts = {
            name: field.text() if isinstance(field, QLineEdit) else field.toPlainText()
            for name, field in self.fields.items()
        }
        try:
            rules = read_rules(texts, same_day_is_free=self.same_day.isChecked())
        except TorchyardError as error:
            self._failed(error)
            return
        self.ok.setEnabled(False)
        self.model.act(lambda store: store.set_rules(rules), lambda _: QDialog.accept(self), self._failed, self)

    def _failed(self, error: TorchyardError) -> None:
        self.ok.setEnabled(True)
        self.problem.setText(labels.said(error))
        self.problem.show()
