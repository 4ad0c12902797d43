"""A row of a form: a name, a field, and a note or a problem below the field."""

from __future__ import annotations

from functools import cached_property

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QLabel, QPlainTextEdit, QWidget

from torchyard_gui.widgets.text_labels import label, set_ink, set_style_property


class FormRow(QWidget):
    """A row of a form. The name takes `name_width` pixels, so that the fields of all rows are aligned."""

    def __init__(self, name: str, field: QWidget, note: str = "", *, name_width: int = 112) -> None:
        super().__init__()
        self.field = field
        self.name = label(name, ink="2")
        self.name.setFixedWidth(name_width)
        self.name.setWordWrap(True)
        self.name.setBuddy(field)
        self._plain_note = note
        self._plain_description = field.accessibleDescription()
        self.problem = ""
        """The problem of the field, or ""."""
        if not field.accessibleName():
            field.setAccessibleName(name)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(0)
        self._grid.setVerticalSpacing(3)
        self._grid.addWidget(self.name, 0, 0)
        self._grid.addWidget(field, 0, 1)
        self._grid.setColumnStretch(1, 1)
        if isinstance(field, QPlainTextEdit):
            # The name is aligned with the first line of the text, not with the middle of the field.
            self._grid.setAlignment(self.name, Qt.AlignmentFlag.AlignTop)
            self.name.setContentsMargins(0, 6, 0, 0)
        if note:
            self.note.setText(note)

    @cached_property
    def note(self) -> QLabel:
        """The label below the field. It is created on first use, because most rows have no note."""
        made = label(role="small", ink="3", wrap=True)
        self._grid.addWidget(made, 1, 0, 1, 2)
        return made

    def set_note(self, note: str) -> None:
        self._plain_note = note
        self.set_problem("")

    def set_problem(self, problem: str) -> None:
        """Sets the problem of the field; "" removes it.

        While there is a problem, the field is outlined, and the problem is the accessible description of the field.
        """
        self.problem = problem
        description = problem or self._plain_description
        if description != self.field.accessibleDescription():
            self.field.setAccessibleDescription(description)
        text = problem or self._plain_note
        if text or "note" in self.__dict__:
            self.note.setText(text)
            self.note.setVisible(bool(text))
            set_ink(self.note, "fail" if problem else "3")
        set_style_property(self.field, "invalid", bool(problem))
