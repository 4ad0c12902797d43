"""Tests that a small plot shows its name, note and value in full, on two lines in a narrow panel."""

from __future__ import annotations

import numpy as np
import pytest
from pytestqt.qtbot import QtBot

from tests.gui.geometry.painted_text import painted_texts
from torchyard_gui.runs.plots.mini_plot import NOTE, MiniPlot

VALUES = np.arange(10, dtype=np.float32)
NARROW, WIDE = 208, 320
"""Widths in pixels of the plots in the narrowest side panel, and in a wider one."""


@pytest.fixture
def plot(qtbot: QtBot) -> MiniPlot:
    made = MiniPlot("Throughput", "run")
    qtbot.addWidget(made)
    made.show()
    return made


def texts(plot: MiniPlot) -> set[str]:
    return {text.text for text in painted_texts(plot)}


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_name_note_and_value_are_whole(plot: MiniPlot, width: int) -> None:
    plot.resize(width, 90)
    plot.set_values(VALUES, "18,240 samples/s", "20 trainers")
    title = {"Throughput", "20 trainers"} if width == NARROW else {"Throughput, 20 trainers"}
    assert texts(plot) == title | {"18,240 samples/s"}
    assert plot.accessibleName() == "Throughput, 20 trainers: 18,240 samples/s"


def test_the_plot_keeps_its_height_below_a_note(plot: MiniPlot) -> None:
    plot.resize(NARROW, 90)
    plot.set_values(VALUES, "18,240 samples/s")
    without = plot.sizeHint().height()
    plot.set_values(VALUES, "18,240 samples/s", "20 trainers")
    assert plot.sizeHint().height() == without + NOTE


def test_a_note_returns_beside_the_name_only_for_another_note_or_width(plot: MiniPlot) -> None:
    plot.resize(NARROW, 90)
    plot.set_values(VALUES, "18,240 samples/s", "20 trainers")
    plot.set_values(VALUES, "9", "20 trainers")
    assert "Throughput" in texts(plot), "a shorter value does not move the plot"
    plot.set_values(VALUES, "9", "ps-1")
    assert "Throughput, ps-1" in texts(plot)
    plot.set_values(VALUES, "18,240 samples/s", "20 trainers")
    plot.resize(WIDE, 90)
    assert "Throughput, 20 trainers" in texts(plot)
