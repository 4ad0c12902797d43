"""The table of parameters, with a row of fields for each parameter and its problem below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QCoreApplication, Qt, Signal
from PySide6.QtWidgets import QCheckBox, QLineEdit, QWidget

from torchyard_core.sweeps.search_draft import FieldName, ParameterDraft
from torchyard_gui.widgets import label, remove_widgets
from torchyard_gui.widgets.buttons import push_button, tool_button
from torchyard_gui.widgets.input_fields import ChoiceBox
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox
from torchyard_gui.widgets.next_steps import as_sentence
from torchyard_gui.widgets.text_labels import set_style_property

SPACING = 6
NAME = 100
"""Minimum width in pixels of the name column, which takes all width that the fixed columns leave."""
KIND, BOUND, STEP, LOG, REMOVE = 134, 80, 64, 40, 28
"""Widths of the other columns in pixels. The columns of the smallest and the largest value are equally wide."""
RANGE = 2 * BOUND + STEP + 2 * SPACING


def tr(text: str) -> str:
    return QCoreApplication.translate("Parameters", text)


def problem_sentence(message: str) -> str:
    """Returns a problem as a sentence to show below the field. Names such as `cma_es` are not capitalized."""
    sentence = as_sentence(message)
    return sentence if "_" in sentence.split(" ")[0] else sentence[:1].upper() + sentence[1:]


class ParameterRow(QWidget):
    """The fields of one parameter."""

    changed = Signal()
    remove_wanted = Signal()

    def __init__(self, parameter: ParameterDraft, *, is_new: bool = False):
        """Creates the row. The problems of a new row are shown only after the user has edited it."""
        super().__init__()
        self.is_new = is_new
        self.name = QLineEdit(parameter.name, placeholderText="lr")
        self.name.setAccessibleName(tr("Name of the parameter"))
        kinds = [("number", tr("Number")), ("whole", tr("Whole number")), ("choice", tr("Choice"))]
        self.kind = ChoiceBox(kinds, tr("Kind"))
        self.kind.set_value(parameter.kind)
        self.low, self.high = QLineEdit(parameter.low), QLineEdit(parameter.high)
        self.step = QLineEdit(parameter.step, placeholderText=tr("any"))
        self.values = QLineEdit(parameter.values, placeholderText="32, 64, 128")
        self.log = QCheckBox()
        self.log.setChecked(parameter.is_log)
        self.log.setToolTip(
            tr("Draw uniformly by the logarithm: as many values from 0.001 to 0.01 as from 0.01 to 0.1")
        )
        self.remove = tool_button("trash", tr("Remove the parameter"), self.remove_wanted)
        self.note = label(role="small", ink="fail", wrap=True)
        self.note.hide()
        self.fields = {
            "name": self.name,
            "kind": self.kind,
            "low": self.low,
            "high": self.high,
            "step": self.step,
            "values": self.values,
        }
        names = (
            (self.low, tr("Smallest value")),
            (self.high, tr("Largest value")),
            (self.step, tr("Step")),
            (self.values, tr("Values, separated by commas")),
            (self.log, tr("Logarithmic")),
        )
        for field, name in names:
            field.setAccessibleName(name)
        self.values.setToolTip(tr("Values, separated by commas: texts, numbers, true and false"))
        self.name.setMinimumWidth(NAME)
        self._range = QWidget()
        hbox(self.low, self.high, self.step, parent=self._range, margins=FLUSH, spacing=SPACING)
        log = QWidget()
        hbox(None, self.log, None, parent=log, margins=FLUSH, spacing=0)
        widths = ((self.kind, KIND), (self.low, BOUND), (self.high, BOUND), (self.step, STEP), (self.values, RANGE))
        for part, width in (*widths, (self._range, RANGE), (log, LOG), (self.remove, REMOVE)):
            part.setFixedWidth(width)
        cells = hbox((self.name, 1), self.kind, self._range, self.values, log, self.remove, spacing=SPACING)
        vbox(cells, self.note, parent=self, margins=FLUSH, spacing=3)
        for text in (self.name, self.low, self.high, self.step, self.values):
            text.textEdited.connect(self._edited)
        self.kind.changed.connect(self._edited)
        self.log.toggled.connect(self._edited)
        for text in (self.name, self.low, self.high, self.step, self.values):
            text.setCursorPosition(0)  # Shows the beginning of a long text.
        self._show_fields()

    @property
    def draft(self) -> ParameterDraft:
        return ParameterDraft(
            self.name.text(),
            self.kind.value,
            self.log.isChecked(),
            self.low.text(),
            self.high.text(),
            self.step.text(),
            self.values.text(),
        )

    @property
    def tab_order(self) -> list[QWidget]:
        return [self.name, self.kind, self.values, self.low, self.high, self.step, self.log, self.remove]

    def show_problems(self, problems: Mapping[str, str], *, all_of_them: bool = False) -> None:
        """Shows the problems, given by field. The problems of a new row are shown only with `all_of_them`."""
        self.is_new = self.is_new and not all_of_them
        shown = {} if self.is_new else problems
        for key, field in self.fields.items():
            set_style_property(field, "invalid", key in shown)
            field.setAccessibleDescription(problem_sentence(shown[key]) if key in shown else "")
        self.note.setText(" ".join(problem_sentence(message) for message in shown.values()))
        self.note.setVisible(bool(shown))

    def _edited(self) -> None:
        self.is_new = False
        self._show_fields()
        self.changed.emit()

    def _show_fields(self) -> None:
        """Shows the fields for the parameter's kind. The step is disabled for a logarithmic distribution."""
        is_choice = self.kind.value == "choice"
        for part in (self._range, self.log):
            part.setVisible(not is_choice)
        self.values.setVisible(is_choice)
        self.step.setEnabled(not self.log.isChecked())
        self.step.setPlaceholderText("1" if self.kind.value == "whole" else tr("any"))


class ParameterTable(QWidget):
    """The rows of all parameters, and the button that adds a row."""

    changed = Signal()
    rows_changed = Signal()
    """Emitted when a row was added or removed, before `changed`."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[ParameterRow] = []
        columns = ((tr("Kind"), KIND), (tr("From"), BOUND), (tr("To"), BOUND), (tr("Step"), STEP), (tr("Log"), LOG))
        of_columns = [label(text, role="small", ink="2") for text, _ in columns]
        for heading, (_, width) in zip(of_columns, columns, strict=True):
            heading.setFixedWidth(width)
        of_columns[-1].setAlignment(Qt.AlignmentFlag.AlignCenter)
        headings = hbox((label(tr("Name"), role="small", ink="2"), 1), *of_columns, REMOVE, spacing=SPACING)
        self._rows = vbox(spacing=6)
        self.note = label(role="small", ink="fail", wrap=True)
        self.note.hide()
        self.add = push_button(tr("Add parameter"), lambda: self.add_row())
        self.fix_parameters, self.fix_arguments = push_button(""), push_button("")
        """Buttons that add missing parameters to the form, and missing arguments to the topology.

        The owner of the table sets their texts.
        """
        fixes = self.fix_arguments, self.fix_parameters
        for button in (self.add, *fixes):
            button.setAutoDefault(False)
        buttons = hbox(self.add, None)
        parts = headings, self._rows, self.note, hbox(*fixes, None, spacing=8), buttons
        vbox(*parts, parent=self, margins=FLUSH, spacing=6)

    @property
    def drafts(self) -> tuple[ParameterDraft, ...]:
        return tuple(row.draft for row in self.rows)

    @property
    def tab_order(self) -> list[QWidget]:
        of_rows = (field for row in self.rows for field in row.tab_order)
        return [*of_rows, self.fix_arguments, self.fix_parameters, self.add]

    def set_drafts(self, parameters: Sequence[ParameterDraft]) -> None:
        """Replaces all rows without emitting `changed`."""
        remove_widgets(self._rows, self.rows)
        self.rows = []
        for parameter in parameters:
            self._append(ParameterRow(parameter))
        self.rows_changed.emit()

    def add_row(self) -> None:
        """Adds an empty row, and moves the focus to its name field."""
        row = ParameterRow(ParameterDraft(), is_new=True)
        self._append(row)
        row.show()  # A hidden field gets no focus, and the layout would show the row later.
        self.rows_changed.emit()
        self.changed.emit()
        row.name.setFocus(Qt.FocusReason.OtherFocusReason)

    def hides(self, key: FieldName) -> bool:
        """Returns whether a problem is not shown yet, because it concerns a new row that the user has not edited."""
        return len(key) > 1 and key[0] == "parameters" and self.rows[int(key[1])].is_new

    def show_problems(self, problems: Mapping[FieldName, str], *, all_of_them: bool = False) -> None:
        for number, row in enumerate(self.rows):
            of_row = {str(key[2]): text for key, text in problems.items() if key[:2] == ("parameters", number)}
            row.show_problems(of_row, all_of_them=all_of_them)
        of_table = problems.get(("parameters",), "")
        self.note.setText(problem_sentence(of_table) if of_table else "")
        self.note.setVisible(bool(of_table))

    def _append(self, row: ParameterRow) -> None:
        self.rows.append(row)
        self._rows.addWidget(row)
        row.changed.connect(self.changed)
        row.remove_wanted.connect(lambda: self._remove(row))

    def _remove(self, row: ParameterRow) -> None:
        """Removes a row. The focus moves to the next row or, if there is none, to the button that adds a row."""
        at = self.rows.index(row)
        self.rows.remove(row)
        remove_widgets(self._rows, [row])
        self.rows_changed.emit()
        self.changed.emit()
        (self.rows[min(at, len(self.rows) - 1)].name if self.rows else self.add).setFocus()
