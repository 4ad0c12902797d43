"""Amounts in three digits at most, with their units."""

from __future__ import annotations

import pytest

from torchyard_core.formatting import count, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (0.00004, "0 s"), (0.0041, "4.1 ms"), (0.312, "312 ms"), (0.99961, "1.00 s"), (1.25, "1.25 s"),
     (12.34, "12.3 s"), (123.4, "123 s")],
)  # fmt: skip
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (2.5, "2.5"), (3.01, "3"), (1204, "1,204")])
def test_counts(value: float, text: str) -> None:
    assert count(value) == text
