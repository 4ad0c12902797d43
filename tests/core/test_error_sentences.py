"""Tests of the sentence that an error is printed as."""

from __future__ import annotations

import pytest

from torchyard_core.errors import RunFailed


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("train.py failed", "train.py failed. Look."),
        ("train.py failed:\n  ValueError: row 17", "train.py failed:\n  ValueError: row 17.\nLook."),
    ],
)
def test_the_hint_follows_the_message_and_the_output_of_a_program_on_a_line_of_its_own(
    message: str, printed: str
) -> None:
    assert RunFailed(message, hint="Look.").sentence() == printed
