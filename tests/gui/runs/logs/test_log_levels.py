"""Tests of the levels of log lines."""

from __future__ import annotations

import pytest

from torchyard_gui.runs.logs.log_levels import color_token


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("ValueError: bad", "fail"),
        ("Traceback (most recent call last):", "fail"),
        ("2024 ERROR lost", "fail"),
        ("UserWarning: old", "wait"),
        ("DEBUG: chatter", "text3"),
        ("epoch 1 loss 0.3", "text"),
        ("no errors so far", "text"),
    ],
)
def test_levels_have_their_colours(text: str, token: str) -> None:
    assert color_token(text) == token
