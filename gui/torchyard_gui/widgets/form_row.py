"""A row of a form: its name, its field, and below them a note or what is wrong with the field."""

from __future__ import annotations

from functools import cached_property

from PySide6.QtWidgets import QGridLayout, QLabel, QWidget

from torchyard_gui.widgets.text_labels import label, set_ink


class FormRow(QWidget):
    """The name to the left in a column of `name_width`, so that rows line up."""

    def __init__(
        self, name: str, field: QWidget, note: str = "", *, name_width: int = 112, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.field = field
        self.name = label(name, ink="2")
        self.name.setFixedWidth(name_width)
        self.name.setWordWrap(True)
        self.name.setBuddy(field)
        self._plain_note = note
        self._plain_description = field.accessibleDescription()
        self.problem = ""
        """What is wrong with the field; "" for nothing."""
        if not field.accessibleName():
            field.setAccessibleName(name)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(0)
        self._grid.setVerticalSpacing(3)
        self._grid.addWidget(self.name, 0, 0)
        self._grid.addWidget(field, 0, 1)
        self._grid.setColumnStretch(1, 1)
        if note:
            self.note.setText(note)

    @cached_property
    def note(self) -> QLabel:
        """The words below the field. Most rows never have any: made when there are some."""
        made = label(role="small", ink="3", wrap=True)
        self._grid.addWidget(made, 1, 0, 1, 2)
        return made

    def set_note(self, note: str) -> None:
        """Say something below the field."""
        self._plain_note = note
        self.set_problem("")

    def set_problem(self, problem: str) -> None:
        """Say what is wrong with the field, and outline it; "" takes that back. Who comes to it with a screen reader is
        told."""
        self.problem = problem
        description = problem or self._plain_description
        if description != self.field.accessibleDescription():
            self.field.setAccessibleDescription(description)
        text = problem or self._plain_note
        if text or "note" in self.__dict__:
            self.note.setText(text)
            self.note.setVisible(bool(text))
            set_ink(self.note, "fail" if problem else "3")
        if bool(self.field.property("invalid")) != bool(problem):
            self.field.setProperty("invalid", bool(problem))
            self.field.style().unpolish(self.field)
            self.field.style().polish(self.field)
