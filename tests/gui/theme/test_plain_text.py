"""Tests that labels and tool tips show text from hosts and users without interpreting markup in it."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication, QLabel, QToolTip, QWidget
from pytestqt.qtbot import QtBot

from torchyard_gui.theme.theme import theme

MARKUP = '<h1>owned</h1><img src="file:///etc/hostname">'


def test_labels_and_tooltips_are_plain_text(qtbot: QtBot, qapp: QApplication) -> None:
    theme().install(qapp)
    page = QWidget()
    qtbot.addWidget(page)
    label = QLabel(MARKUP, page)
    page.show()
    QToolTip.showText(QPoint(5, 5), MARKUP, page)
    tips = [widget for widget in QApplication.topLevelWidgets() if widget.inherits("QTipLabel")]

    assert label.textFormat() == Qt.TextFormat.PlainText
    assert [tip.textFormat() for tip in tips if isinstance(tip, QLabel)] == [Qt.TextFormat.PlainText]
    QToolTip.hideText()
    tips[0].close()
