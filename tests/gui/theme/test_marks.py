"""Tests that the marks of states have one colour token for each meaning."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QImage, QPainter

from torchyard_gui.bridge.host_states import HostState
from torchyard_gui.theme.marks import STATES, paint_state, trouble_token
from torchyard_gui.theme.theme import Mode, theme


def has(image: QImage, token: str) -> bool:
    """Returns whether a pixel has exactly the colour of this token."""
    wanted = QColor(theme().color(token)).rgb()
    return any(image.pixel(x, y) == wanted for x in range(image.width()) for y in range(image.height()))


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_mark_has_the_colour_of_its_text_and_no_other_mark_has_it(qapp: object, mode: Mode) -> None:
    theme().set_mode(mode)
    for state in STATES:
        image = QImage(64, 64, QImage.Format.Format_RGB32)
        image.fill(theme().color("s2"))
        painter = QPainter(image)
        paint_state(painter, QRectF(0, 0, 64, 64), state)
        painter.end()
        assert has(image, "fail") == (trouble_token(state) == "fail"), state
        # `waiting` is not a problem, but its mark, a clock, has the same colour.
        assert has(image, "wait") == (trouble_token(state) == "wait" or state == "waiting"), state


def test_each_state_of_a_host_has_a_mark() -> None:
    assert {state.mark for state in HostState} <= set(STATES)
