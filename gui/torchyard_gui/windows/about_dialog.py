"""The About dialog with the version."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QLabel, QWidget

from torchyard_agent import __version__
from torchyard_gui.theme.icons import pixmap
from torchyard_gui.widgets.layouts import vbox
from torchyard_gui.widgets.text_labels import label


def show_about(parent: QWidget) -> QDialog:
    """Opens the dialog without blocking the window."""
    box = QDialog(parent)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.setWindowTitle(_tr("About Torchyard"))
    picture = QLabel()
    picture.setPixmap(pixmap("torchyard", 48, "accent", parent.devicePixelRatioF()))
    close = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
    close.rejected.connect(box.close)
    title = label(_tr("Torchyard {version}").format(version=__version__), role="title")
    sentence = _tr("Draw a training cluster, press Launch, and it runs on your own GPU hosts over plain SSH.")
    words = label(sentence, ink="2", wrap=True)
    words.setMinimumWidth(360)
    license_ = label(_tr("Apache License 2.0"), role="small", ink="3")
    vbox(picture, title, words, license_, close, parent=box, margins=(24, 20, 24, 16), spacing=8)
    box.open()
    return box


def _tr(text: str) -> str:
    return QCoreApplication.translate("About", text)
