"""Dialog with the team's rules. Only admins can change the rules."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QDialog, QDialogButtonBox, QLineEdit, QPlainTextEdit, QWidget

from torchyard_core.booking.rules.team_rules import FORM, form_problems, form_texts, read_form
from torchyard_core.errors import TorchyardError
from torchyard_gui.bookings import labels
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.widgets import FormRow, label
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.dialogs import dialog_layout, grow_to_fit

NAMES = 176


class RulesDialog(QDialog):
    """Dialog with a field for each entry of `team_rules.FORM`. The dialog closes once the store has saved the rules."""

    def __init__(self, model: BookingsModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.model = model
        self.setWindowTitle(self.tr("Rules"))
        self.setMinimumWidth(560)
        self.fields: dict[str, QLineEdit | QPlainTextEdit] = {}
        self.rows: dict[str, FormRow] = {}
        self.flags: dict[str, QCheckBox] = {}
        hint = label(self.tr("An empty field means no limit."), role="small", ink="2")
        rows = dialog_layout(self, hint, spacing=8)
        texts = form_texts(model.seen.rules)
        for one in FORM:
            if one.is_flag:
                flag = QCheckBox(self.tr(one.title))
                flag.setChecked(bool(texts[one.setting]))
                flag.setEnabled(model.seen.is_admin)
                self.flags[one.setting] = flag
                rows.addWidget(flag)
                continue
            field: QLineEdit | QPlainTextEdit
            if one.is_multiline:
                field = QPlainTextEdit(texts[one.setting])
                field.setFixedHeight(58)
                field.setTabChangesFocus(True)
            else:
                field = QLineEdit(texts[one.setting])
            field.setReadOnly(not model.seen.is_admin)
            self.fields[one.setting] = field
            note = self.tr("Such as {example}").format(example=one.example) if one.example else ""
            row = self.rows[one.setting] = FormRow(self.tr(one.title), field, note, name_width=NAMES)
            field.textChanged.connect(lambda *_, row=row: row.set_problem(""))
            rows.addWidget(row)
        self.problem = label(ink="fail", wrap=True)
        self.problem.hide()
        rows.addWidget(self.problem)
        buttons = QDialogButtonBox()
        self.ok = push_button(self.tr("Save"), look="primary")
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
        texts |= {name: "yes" if flag.isChecked() else "" for name, flag in self.flags.items()}
        current = self.model.seen.rules
        self.problem.hide()
        wrong = form_problems(texts, current)
        self._show_problems(wrong)
        if wrong:
            self.fields[next(iter(wrong))].setFocus(Qt.FocusReason.OtherFocusReason)
            return
        rules = read_form(texts, current)
        self.ok.setEnabled(False)
        self.model.act(lambda store: store.set_rules(rules), lambda _: QDialog.accept(self), self._failed, self)

    def _show_problems(self, wrong: Mapping[str, TorchyardError]) -> None:
        for one in FORM:
            if one.setting in self.rows:
                text = labels.error_text(wrong[one.setting]) if one.setting in wrong else ""
                # Problem texts begin with the title of the field, which the row already shows.
                text = text.removeprefix(f"{one.title}: ")
                self.rows[one.setting].set_problem(text[:1].upper() + text[1:])
        grow_to_fit(self)

    def _failed(self, error: TorchyardError) -> None:
        self.ok.setEnabled(True)
        self.problem.setText(labels.error_text(error))
        self.problem.show()
