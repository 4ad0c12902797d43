"""Tests that the buttons of a launch's questions name their actions."""

from __future__ import annotations

from typing import Any

from torchyard_core.launch.confirmations import Confirmation
from torchyard_gui.launch.question_block import QuestionBlock


def test_a_launch_that_needs_a_booking_offers_to_book_and_launch(qtbot: Any) -> None:
    block = QuestionBlock()
    qtbot.addWidget(block)
    answers: list[bool] = []
    block.answered.connect(answers.append)
    question = Confirmation(
        "needs_booking", "GPUs of 2 hosts.", "Book them until 18:00 (8 h)?", "Add --book 8h.", "book"
    )
    block.ask(question)
    assert block.yes.text() == "Book and launch"
    assert "until 18:00" in block.question.text()
    block.yes.click()
    assert answers == [True]

    block.ask(Confirmation("large_files", "The folder is large.", "Send it to 2 hosts?", "Exclude some."))
    assert block.yes.text() == "Send them"
    block.no.click()
    assert answers == [True, False]
