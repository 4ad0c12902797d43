"""Notes and tags of a run: a section of the side panel that shows them, and a dialog to edit them."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QDialog, QLineEdit, QPlainTextEdit, QWidget

from torchyard_core.errors import UsageError
from torchyard_core.launch.runs.annotations import MAX_NOTE, Annotation, tags_from_text
from torchyard_gui.widgets import FormRow, SectionLabel, label
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.dialogs import WIDTH, DialogButtons, dialog_layout
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox
from torchyard_gui.widgets.next_steps import error_text

NOTE_HEIGHT = 120


class NotesSection(QWidget):
    """Shows the tags and the note of a run, with a button to edit them."""

    edit_wanted = Signal()

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.tags = label(role="strong", wrap=True)
        self.note = label(role="small", ink="2", wrap=True)
        tip = self.tr("Write a note about this run, and tags to find it by")
        self.edit = push_button(self.tr("Edit …"), self.edit_wanted, "quiet", tip)
        self.edit.setAccessibleName(self.tr("Edit notes and tags"))
        head = hbox(SectionLabel(self.tr("Notes")), None, self.edit)
        vbox(head, self.tags, self.note, parent=self, margins=FLUSH, spacing=2)
        self.show_annotation(Annotation())

    def show_annotation(self, annotation: Annotation) -> None:
        self.tags.setText("  ".join(f"#{tag}" for tag in annotation.tags))
        self.note.setText(annotation.note)
        self.tags.setVisible(bool(annotation.tags))
        self.note.setVisible(bool(annotation.note))


class NotesDialog(QDialog):
    """Dialog that edits the annotation of one run. Show it with `open()`."""

    saved = Signal(object)
    """Emitted with the Annotation."""

    def __init__(self, title: str, annotation: Annotation, parent: QWidget | None = None):
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Notes on {run}").format(run=title))
        self.setMinimumWidth(WIDTH)
        self.tags = QLineEdit(" ".join(annotation.tags))
        self.tags.setPlaceholderText(self.tr("baseline lr-3"))
        self.note = QPlainTextEdit(annotation.note)
        self.note.setTabChangesFocus(True)
        self.note.setFixedHeight(NOTE_HEIGHT)
        self.rows = FormRow(self.tr("Tags"), self.tags), FormRow(self.tr("Note"), self.note)
        self.buttons = DialogButtons(self, self.tr("Save"))
        self.buttons.accepted.disconnect(self.accept)
        self.buttons.accepted.connect(self._save)
        dialog_layout(self, *self.rows, 4, self.buttons, spacing=10)
        self.tags.setFocus()

    def show_problem(self, text: str) -> None:
        """Shows why the annotation cannot be saved."""
        self.rows[1].set_problem(text)

    def _save(self) -> None:
        for row in self.rows:
            row.set_problem("")
        note = self.note.toPlainText().strip()
        if len(note) > MAX_NOTE:
            text = self.tr("The note has {count} characters; at most {most} are allowed.")
            self.show_problem(text.format(count=f"{len(note):,}", most=f"{MAX_NOTE:,}"))
            return
        try:
            tags = tags_from_text(self.tags.text())
        except UsageError as error:
            self.rows[0].set_problem(error_text(error))
            return
        self.saved.emit(Annotation(note, tags))
