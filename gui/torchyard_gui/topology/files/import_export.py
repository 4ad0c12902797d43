"""Import of documents from other systems as new topologies, and export of the topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QSize, Qt, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QDialog, QFileDialog, QListWidget, QListWidgetItem, QWidget

from torchyard_core.errors import FileProblem
from torchyard_core.yaml_io.file_reader import read_text
from torchyard_gui.theme.theme import theme
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.files.conversion_report import ConversionReport
from torchyard_gui.topology.files.file_actions import FileActions
from torchyard_gui.topology.notice_queue import NoticeButton, NoticeQueue
from torchyard_gui.topology.problems_dock import ProblemsDock
from torchyard_gui.widgets.dialogs import DialogButtons, dialog_layout
from torchyard_gui.widgets.page_actions import action
from torchyard_gui.widgets.text_labels import label

if TYPE_CHECKING:
    from torchyard_core.interop.document_reader import Imported
    from torchyard_core.interop.remarks import Remark
    from torchyard_gui.topology.files.conversion_report import DocumentWindow


class ImportExport(QObject):
    """Actions for import and export. The open document is replaced only after an imported document has been read
    completely.
    """

    def __init__(
        self,
        editor: Editor,
        files: FileActions,
        notices: NoticeQueue,
        problems: ProblemsDock,
        say: Callable[[str], None],
        window: QWidget,
    ) -> None:
        """Creates the actions. `say` is called with short messages for the user."""
        super().__init__(window)
        self._editor = editor
        self._document = editor.document
        self._files = files
        self._notices = notices
        self._problems = problems
        self._say = say
        self._window = window
        self._shown: DocumentWindow | None = None
        self._last_format = ""
        make = partial(action, self, "file")
        tip = self.tr("Read a document of CloudML, Vertex AI, TensorFlow or SINGA as a new topology")
        self.import_action = make(self.tr("&Import …"), self.ask_import, "Ctrl+Shift+I", "download", tip)
        tip = self.tr("Write this topology for CloudML, Vertex AI, TensorFlow, SINGA, TorchX, Kubernetes or Slurm")
        self.export_action = make(self.tr("&Export …"), self.ask_export, "Ctrl+Shift+E", "upload", tip)
        files.opened.connect(self._opened)
        problems.remark_chosen.connect(self.show_remark)
        editor.changed.connect(self._follow)
        self._follow()

    def actions(self) -> list[QAction]:
        return [self.import_action, self.export_action]

    def ask_import(self) -> None:
        """Opens a dialog that asks for the document to import.

        If the user does not choose a format in the dialog, the format is detected.
        """
        from torchyard_core.interop.format_registry import FORMATS, READ

        filters = {self.tr("Any of these formats (*)"): ""} | {f"{FORMATS[name].title} (*)": name for name in READ}
        dialog = self._files.dialog(self.tr("Import another system's document"), ";;".join(filters))
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(
            lambda chosen: self.import_file(Path(chosen), filters.get(dialog.selectedNameFilter(), ""))
        )
        dialog.open()

    def import_file(self, path: Path, name: str = "") -> None:
        """Imports a document as a new topology. The user is asked first if there are unsaved changes.

        Args:
            name: The format, or "" to detect it.
        """
        from torchyard_core.interop.format_detection import detect_format

        try:
            text = read_text(path, path.name)
        except FileProblem as problem:
            self._notices.show_error("file", problem)
            return
        name = name or detect_format(text) or ""
        if name:
            self._read(path, text, name)
        else:
            self._ask_format(path)

    def _ask_format(self, path: Path) -> None:
        from torchyard_core.interop.format_registry import FORMATS, READ

        box = FormatChoice(path.name, [(name, FORMATS[name].title) for name in READ], self._window)
        box.chosen.connect(lambda name: self.import_file(path, name))
        box.finished.connect(box.deleteLater)
        box.open()

    def _read(self, path: Path, text: str, name: str) -> None:
        from torchyard_core.interop.format_detection import TITLES, detect_format
        from torchyard_core.interop.format_registry import FORMATS, READ, read_foreign

        if name not in READ:
            self._report_not_read(path, name)
            return
        try:
            imported = read_foreign(name, text, path.name)
        except FileProblem as problem:
            other = detect_format(text)
            if other is None or other == name:
                self._notices.show_error("file", problem)
            elif other not in READ:
                self._report_not_read(path, other)
            else:
                way = self.tr("Import it as {format}").format(format=FORMATS[other].title)
                self._notices.show(
                    "file", "fail", problem.message, NoticeButton(way, lambda: self.import_file(path, other))
                )
            return
        self._files.guard(
            lambda: self._begin(imported, ConversionReport(path.name, text, imported.remarks), TITLES[name])
        )

    def _report_not_read(self, path: Path, name: str) -> None:
        """Shows that a document cannot be imported, because it is a topology or its format can only be exported."""
        from torchyard_core.interop.format_detection import TITLES
        from torchyard_core.interop.format_registry import FORMATS, READ

        text = self.tr("{file} looks like {what}.").format(file=path.name, what=TITLES[name])
        if name == "topology":
            self._notices.show("file", "info", text, NoticeButton(self.tr("Open it"), lambda: self._files.open(path)))
            return
        readable = ", ".join(FORMATS[one].title for one in READ)
        text += " " + self.tr("This format can only be exported. These can be imported: {formats}.").format(
            formats=readable
        )
        self._notices.show("file", "fail", text)

    def _begin(self, imported: Imported, report: ConversionReport, what: str) -> None:
        self._files.begin(imported.topology)
        self._problems.show_remarks(report)
        self._say(self.tr("{file} was read as {what}.").format(file=report.document, what=what))

    def _opened(self) -> None:
        """Offers an import if a file that was opened as a topology is a document from another system."""
        self._problems.show_remarks(None)
        path = self._document.path
        if not self._document.problems or path is None:
            return
        from torchyard_core.interop.format_detection import TITLES, detect_format
        from torchyard_core.interop.format_registry import READ

        name = detect_format(self._document.text)
        if name in READ:
            assert name is not None
            text = self.tr("{file} looks like {what}, not a topology.").format(file=path.name, what=TITLES[name])
            self._notices.show("file", "info", text, NoticeButton(self.tr("Import it"), lambda: self.import_file(path)))

    def ask_export(self) -> None:
        """Opens the export dialog or, if errors of the topology prevent an export, shows the errors."""
        from torchyard_core.interop.format_registry import problems_of_export
        from torchyard_gui.topology.files.export_dialog import ExportDialog

        self._editor.settle()
        found = self._document.problems or problems_of_export(self._document.as_file())
        errors = sum(problem.severity == "error" for problem in found)
        if errors:
            self._report_errors(errors)
            return
        self._notices.clear("export")
        box = ExportDialog(self._document.value, self._files, self._last_format, self._window)
        box.written.connect(self._written)
        box.finished.connect(box.deleteLater)
        box.open()

    def _report_errors(self, count: int) -> None:
        self._problems.set_open(True)
        if count == 1:
            text, way = self.tr("1 error prevents the export."), self.tr("Show it")
        else:
            text, way = self.tr("{count} errors prevent the export."), self.tr("Show the first")
        show = NoticeButton(way, self._problems.next_problem)
        self._notices.show("export", "fail", text.format(count=count), show)

    def _written(self, report: ConversionReport, name: str) -> None:
        self._last_format = name
        self._problems.show_remarks(report)
        self._say(self.tr("{file} was written.").format(file=report.document))

    def _follow(self) -> None:
        self.export_action.setEnabled(bool(self._document.value.pools))

    def show_remark(self, report: ConversionReport, remark: Remark) -> None:
        """Shows the document at the line of a remark."""
        from torchyard_gui.topology.files.conversion_report import DocumentWindow

        if self._shown is None:
            self._shown = DocumentWindow(self._window)
        self._shown.show_remark(report, remark)


WIDTH = 420


class FormatChoice(QDialog):
    """Dialog that asks for one of several formats. Open it with `open()`."""

    chosen = Signal(str)
    """Emitted with the name of the chosen format."""

    def __init__(self, document: str, formats: Sequence[tuple[str, str]], parent: QWidget) -> None:
        """Lists `formats`, given as (name, title)."""
        super().__init__(parent)
        self.setObjectName("format")
        self.setWindowTitle(self.tr("What is {file}?").format(file=document))
        self.setMinimumWidth(WIDTH)
        self.list = QListWidget()
        self.list.setAccessibleName(self.tr("Formats"))
        for name, title in formats:
            item = QListWidgetItem(title, self.list)
            item.setData(Qt.ItemDataRole.UserRole, name)
            item.setSizeHint(QSize(0, theme().metrics.row))
        self.list.setCurrentRow(0)
        self.list.setFixedHeight(len(formats) * theme().metrics.row + 8)
        self.list.itemActivated.connect(lambda _: self.accept())
        buttons = DialogButtons(self, self.tr("Import"))
        self.ok = buttons.agree
        self.ok.setDefault(True)
        sentence = self.tr("Its format cannot be detected. Choose one to see what it lacks.")
        dialog_layout(self, label(sentence, wrap=True), self.list, 6, buttons, wrap_title=True)
        self.accepted.connect(lambda: self.chosen.emit(self.list.currentItem().data(Qt.ItemDataRole.UserRole)))
