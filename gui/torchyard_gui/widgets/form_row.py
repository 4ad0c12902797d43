"""A row of a form: its name, its field, and below them a note or what is wrong with the field."""

from __future__ import annotations

from PySide6.QtWidgets import QGridLayout, QWidget

from torchyard_gui.widgets.labels import label, set_ink


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
        self.note = label(note, role="small", ink="3", wrap=True)
        if not note:
            self.note.hide()  # to show it here, before it has a parent, would open it as a window
        self._plain_note = note
        self._plain_description = field.accessibleDescription()
        self.problem = ""
        """What is wrong with the field; "" for nothing."""
        if not field.accessibleName():
            field.setAccessibleName(name)
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setHorizontalSpacing(0)
        layout.setVerticalSpacing(3)
        layout.addWidget(self.name, 0, 0)
        layout.addWidget(field, 0, 1)
        layout.addWidget(self.note, 1, 0, 1, 2)
        layout.setColumnStretch(1, 1)

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
        self.note.setText(text)
        self.note.setVisible(bool(text))
        set_ink(self.note, "fail" if problem else "3")
        if bool(self.field.property("invalid")) != bool(problem):
            self.field.setProperty("invalid", bool(problem))
            self.field.style().unpolish(self.field)
            self.field.style().polish(self.field)
