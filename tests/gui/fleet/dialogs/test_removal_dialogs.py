"""Tests of the questions before hosts and clusters are removed."""

from __future__ import annotations

from typing import Any

from PySide6.QtWidgets import QLabel

from torchyard_gui.fleet.dialogs.removal_dialogs import RemoveHostsDialog


def test_a_sentence_about_bookings_that_arrives_later_has_room(qtbot: Any) -> None:
    dialog = RemoveHostsDialog(["hpc"], ["hpc"])
    qtbot.addWidget(dialog)
    dialog.show()
    qtbot.waitExposed(dialog)
    dialog.show_bookings(3)
    qtbot.wait(50)
    for sentence in dialog.findChildren(QLabel):
        if sentence.wordWrap():
            assert sentence.height() >= sentence.heightForWidth(sentence.width()), sentence.text()
