"""What is said beside a document of another system that was read or written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QDialog, QVBoxLayout, QWidget

from torchyard_core.interop.remarks import Remark
from torchyard_core.problems import Problem
from torchyard_gui.topology.yaml_view import YamlView
from torchyard_gui.widgets.advice import in_the_window

if TYPE_CHECKING:
    from torchyard_core.interop.remarks import Remark


@dataclass(frozen=True)
class Told:
    """A document by its file's name, with what could not be carried over or was decided."""

    document: str
    text: str
    remarks: tuple[Remark, ...]

    def sentences(self) -> list[str]:
        """The remarks, with the advice that the window has for them."""
        return [in_the_window(remark.message) for remark in self.remarks]


SIZE = (720, 520)


class DocumentWindow(QDialog):
    """The lines of all remarks are marked. It keeps nothing waiting."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setModal(False)
        self.resize(*SIZE)
        self.view = YamlView()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.view)

    def show_remark(self, told: Told, remark: Remark) -> None:
        """Shows the document at the line of one of its remarks."""
        self.setWindowTitle(told.document)
        self.view.setAccessibleName(told.document)
        self.view.show_text(told.text)
        marked = [(one.line, text) for one, text in zip(told.remarks, told.sentences(), strict=True)]
        self.view.show_problems({line: Problem("warning", "", text, line) for line, text in marked if line})
        self.view.show_lines(remark.line or 0, remark.line or 0)
        self.show()
        self.raise_()
        self.activateWindow()
