"""The dialog for exports, with the format, options, a preview with remarks, and the target file."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QFileDialog, QLineEdit, QListWidget, QPlainTextEdit, QWidget

from torchyard_core.atomic_write import write_atomically
from torchyard_core.errors import TorchyardError
from torchyard_core.interop.document_writer import IMAGE, Exported, ExportOptions, file_name
from torchyard_core.interop.format_registry import FORMATS, WRITTEN, write_foreign
from torchyard_core.topology.model import Topology
from torchyard_core.topology.replicas import replicas_of
from torchyard_gui.theme.fonts import monospaced
from torchyard_gui.topology.files.conversion_report import ConversionReport
from torchyard_gui.topology.files.file_actions import FileActions
from torchyard_gui.topology.inspector.fields import ChoiceField
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.dialogs import ask_to_replace, dialog_layout
from torchyard_gui.widgets.form_row import FormRow
from torchyard_gui.widgets.next_steps import error_text
from torchyard_gui.widgets.text_labels import SectionLabel, label, set_ink

SIZE = (760, 640)
REMARKS_HEIGHT = 104


class ExportDialog(QDialog):
    """Dialog whose preview is exactly the text that is written.

    `written` is emitted with a ConversionReport and the name of the format.
    """

    written = Signal(object, str)

    def __init__(self, topology: Topology, files: FileActions, name: str, parent: QWidget) -> None:
        """Creates the dialog. The format `name` or, without a name, the first format is selected."""
        super().__init__(parent)
        self._topology = topology
        self._files = files
        self._exported: Exported | None = None
        self.setObjectName("export")
        self.setWindowTitle(self.tr("Export {name}").format(name=topology.name))
        self.resize(*SIZE)
        self._make_fields()
        self.preview = QPlainTextEdit(readOnly=True, lineWrapMode=QPlainTextEdit.LineWrapMode.NoWrap)
        self.preview.setFont(monospaced())
        self.preview.setAccessibleName(self.tr("The document"))
        self.preview.setTabChangesFocus(True)
        self.message = label(wrap=True)
        self.beside = SectionLabel(self.tr("Remarks"))
        self.remarks = QListWidget()
        self.remarks.setAccessibleName(self.tr("Remarks"))
        self.remarks.setWordWrap(True)
        self.remarks.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.remarks.setFixedHeight(REMARKS_HEIGHT)
        self._lay_out()
        self.format.set_values([name if name in WRITTEN else WRITTEN[0]])
        self._take_format()

    def _make_fields(self) -> None:
        self.format = ChoiceField([(name, FORMATS[name].title) for name in WRITTEN])
        self.form = ChoiceField([])
        self.image = QLineEdit(placeholderText=IMAGE)
        self._replicas = [None, *(replica.name for replica in replicas_of(self._topology))]
        self.replica = ChoiceField([(name, name or self.tr("automatic")) for name in self._replicas])
        self.replica.set_values([None])
        whose = self.tr(
            "The replica whose document is written; each has its own. Automatic: the chief, or the last worker if the "
            "document is sparse."
        )
        self.rows = {
            "format": FormRow(self.tr("Format"), self.format),
            "form": FormRow(self.tr("Written as"), self.form),
            "image": FormRow(self.tr("Image"), self.image, self.tr("The container image with the program in it.")),
            "replica": FormRow(self.tr("Replica"), self.replica, whose),
        }
        self.format.committed.connect(self._take_format)
        self.form.committed.connect(self._take_form)
        self.replica.committed.connect(self._show)
        self.image.textChanged.connect(self._show)

    def _lay_out(self) -> None:
        self.save = push_button(self.tr("Export …"), self.ask_path, "primary")
        self.save.setDefault(True)
        self.copy = push_button(self.tr("Copy"), self._copy, tip=self.tr("Copy the document"))
        self.copy.setAutoDefault(False)
        buttons = QDialogButtonBox()
        buttons.addButton(self.copy, QDialogButtonBox.ButtonRole.ActionRole)
        buttons.addButton(self.save, QDialogButtonBox.ButtonRole.ActionRole)
        buttons.addButton(self.tr("Cancel"), QDialogButtonBox.ButtonRole.RejectRole)
        buttons.rejected.connect(self.reject)
        below = (self.message, self.beside, self.remarks, 4, buttons)
        dialog_layout(self, *self.rows.values(), (self.preview, 1), *below, spacing=8)

    @property
    def name(self) -> str:
        return WRITTEN[max(0, self.format.currentIndex())]

    @property
    def wishes(self) -> ExportOptions:
        one = FORMATS[self.name]
        form = one.forms[max(0, self.form.currentIndex())] if one.forms else None
        image = self.image.text().strip() or None
        replica = self._replicas[max(0, self.replica.currentIndex())]
        return ExportOptions(form, image if one.takes_image else None, replica if self._is_one_replicas(form) else None)

    def _is_one_replicas(self, form: str | None) -> bool:
        one = FORMATS[self.name]
        return one.takes_replica and (not one.replica_forms or form in one.replica_forms)

    def _take_format(self) -> None:
        one = FORMATS[self.name]
        self.form.set_choices([(form, form) for form in one.forms])
        self.rows["form"].setVisible(len(one.forms) > 1)
        self.rows["image"].setVisible(one.takes_image)
        self._take_form()

    def _take_form(self) -> None:
        self.rows["replica"].setVisible(self._is_one_replicas(self.wishes.form))
        self._show()

    def _show(self) -> None:
        try:
            self._exported = write_foreign(self.name, self._topology, self.wishes)
        except TorchyardError as problem:
            self._exported = None
            self._say(error_text(problem))
        else:
            self._say("")
        self.preview.setPlainText(self._exported.text if self._exported is not None else "")
        sentences = self._report("").sentences()
        self.remarks.clear()
        self.remarks.addItems(sentences)
        for part in (self.beside, self.remarks):
            part.setVisible(bool(sentences))
        for button in (self.save, self.copy):
            button.setEnabled(self._exported is not None)

    def _say(self, sentence: str) -> None:
        """Shows why the selected format cannot be exported or why the file cannot be written. "" hides the message."""
        self.message.setText(sentence)
        set_ink(self.message, "fail")
        self.message.setVisible(bool(sentence))

    def _report(self, document: str) -> ConversionReport:
        done = self._exported
        text, remarks = (done.text, done.remarks) if done is not None else ("", ())
        return ConversionReport(document, text, remarks)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._report("").text)

    def ask_path(self) -> None:
        suffix = FORMATS[self.name].suffix_of(self.wishes.form)
        dialog = self._files.dialog(self.windowTitle(), self.tr("Any file (*)"), self)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(suffix.removeprefix("."))
        dialog.setOption(QFileDialog.Option.DontConfirmOverwrite)
        dialog.selectFile(file_name(self._topology.name) + suffix)
        dialog.fileSelected.connect(lambda chosen: self.write_to(Path(chosen)))
        dialog.open()

    def write_to(self, path: Path) -> None:
        """Writes to a file. If the file exists, asks the user before replacing it."""
        if path.exists():
            ask_to_replace(path, lambda: self._write(path), self.ask_path, self)
        else:
            self._write(path)

    def _write(self, path: Path) -> None:
        report = self._report(path.name)
        try:
            write_atomically(path, report.text)
        except TorchyardError as problem:
            self._say(error_text(problem))
            return
        self.written.emit(report, self.name)
        self.accept()
