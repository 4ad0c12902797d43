"""Reports the result of converting a document from another system, and shows the document in a window."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtWidgets import QDialog, QWidget

from torchyard_core.interop.remarks import Remark
from torchyard_core.problems import Problem
from torchyard_gui.widgets.layouts import FLUSH, vbox
from torchyard_gui.widgets.next_steps import quoted
from torchyard_gui.widgets.yaml_editor import YamlEditor


@dataclass(frozen=True)
class ConversionReport:
    """File name and text of a converted document, with remarks about losses and decisions during the conversion."""

    document: str
    text: str
    remarks: tuple[Remark, ...]

    def sentences(self) -> list[str]:
        """Returns the remarks as sentences for the window."""
        return [quoted(remark.message) for remark in self.remarks]


SIZE = (720, 520)


class DocumentWindow(QDialog):
    """Window that shows a document and marks the lines that have remarks. It is not modal."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setModal(False)
        self.resize(*SIZE)
        self.view = YamlEditor()
        vbox(self.view, parent=self, margins=FLUSH)

    def show_remark(self, report: ConversionReport, remark: Remark) -> None:
        """Shows the document, scrolled to the line of a remark."""
        self.setWindowTitle(report.document)
        self.view.setAccessibleName(report.document)
        self.view.show_text(report.text)
        marked = [(one.line, text) for one, text in zip(report.remarks, report.sentences(), strict=True)]
        self.view.show_problems({line: Problem("warning", "", text, line) for line, text in marked if line})
        self.view.show_lines(remark.line or 0, remark.line or 0)
        self.show()
        self.raise_()
        self.activateWindow()
