"""Asks before a file that is written takes another one's place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QWidget

from torchyard_gui.widgets.dialogs import Question


def tr(text: str) -> str:
    return QCoreApplication.translate("replacing", text)


def ask_to_replace(
    path: Path, replace: Callable[[], object], another: Callable[[], object], parent: QWidget
) -> None:  # fmt: skip
    """Goes on with `replace`, or with `another` name, as somebody says."""
    box = Question(
        tr("Replace {file}?").format(file=path.name),
        tr("There is a file of that name in {folder}. What is in it will be lost.").format(folder=path.parent),
        tr("Replace"),
        tr("Another name …"),
        parent,
    )
    box.setObjectName("replace")
    box.accepted.connect(lambda: replace())
    box.rejected.connect(lambda: another())
    box.finished.connect(box.deleteLater)
    box.open()
