"""Tests of comparing several selected runs: each has a curve, with the step or the time on the x-axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.core.examples import host
from tests.gui.runs.conftest import MakePage
from tests.gui.runs.fake_hosts import BEGAN, Acting
from torchyard_core.home import Home
from torchyard_gui.bridge.run_state import RunState
from torchyard_gui.runs.page import RunsPage
from torchyard_gui.runs.plots.comparison import by_step, by_time

LEFT, CTRL = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.ControlModifier
CHIEF = "{name: chief, role: chief, replicas: 1, gpus: 1}"


def ended(name: str, run_id: str, host_name: str, slope: float) -> Acting:
    """Returns a run that has ended after ten reports of its chief."""
    run = Acting((host(host_name, 1),), CHIEF, name=name, run_id=run_id)
    run.start()
    for number in range(1, 11):
        values = {"step": 10 * number, "loss": 5.0 - slope * number, "throughput": 100.0, "custom": {"accuracy": 0.1}}
        run.play("report", 5.0 * number, replica="chief-0", **values)
    run.end("succeeded", "")
    return run


@pytest.fixture
def compared(qtbot: Any, home: Home, make_page: MakePage) -> RunsPage:
    """Returns a page with two runs of the same name that have ended."""
    page = make_page(ended("digits", "20251009-a", "gpu-a", 0.1), ended("digits", "20251009-b", "gpu-b", 0.2))
    page.resize(1200, 800)
    qtbot.waitUntil(lambda: page.list_model.rowCount() == 3)
    return page


def click(page: RunsPage, row: int, how: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
    QTest.mouseClick(page.list.viewport(), LEFT, how, page.list.visualRect(page.list_model.index(row)).center())


def test_runs_selected_together_are_compared_by_step(qtbot: Any, compared: RunsPage) -> None:
    page, view = compared, compared.comparison
    click(page, 1)
    assert not page.is_comparing
    click(page, 2, CTRL)
    assert page.is_comparing
    assert page.bar.name.text() == "2 runs compared"
    assert not page.actions_.restart.isEnabled()  # *Restart* is disabled while several runs are selected.
    qtbot.waitUntil(lambda: view.curve("loss", 0).xData is not None and len(view.curve("loss", 1).xData) == 10)
    xs, ys = view.curve("loss", 1).getData()
    assert (xs[0], xs[-1]) == (10, 100)
    assert ys[-1] == pytest.approx(5.0 - 0.1 * 10)  # This is the last loss of the run in row 2.
    assert [plot.isVisible() for plot in view.plots.values()] == [True, True, True, False]
    assert view.plots["own.0"].accessibleName() == "accuracy"
    view.crosshair.move_to(50)
    assert view.crosshair.readouts["loss"].text == "step 50 4 4.5"
    QTest.mouseClick(view.axis.button("time"), LEFT)
    assert view.curve("loss", 0).getData()[0][-1] == pytest.approx(48.5)
    QTest.keyClick(view.axis.button("time"), Qt.Key.Key_Escape)
    assert not page.is_comparing
    assert page.actions_.restart.isEnabled()


def test_one_run_is_compared_with_the_other_of_its_name(qtbot: Any, compared: RunsPage) -> None:
    page = compared
    click(page, 2)
    page.actions_.compare.trigger()
    assert [run.run_id for run in page.chosen_runs] == ["20251009-b", "20251009-a"]
    # A change of the order rebuilds the list, but the same runs must stay selected.
    page.model._runs = page.model._runs[::-1]
    page.model.runs_changed.emit()
    assert [run.run_id for run in page.chosen_runs] == ["20251009-a", "20251009-b"]
    assert page.is_comparing
    page.actions_.compare.trigger()
    assert not page.is_comparing


def test_repeated_steps_count_once_with_their_last_value() -> None:
    picture = RunState("a", "digits", "gpu-a", ("gpu-a",))
    picture.started = BEGAN
    for second, (step, loss) in enumerate([(1, 5.0), (2, 4.0), (3, 3.0), (2, 3.9), (3, 2.9), (3, 2.8), (4, None)]):
        picture.totals.append(BEGAN + second, {"step": float(step), "loss": loss})
    steps, losses = by_step(picture, "loss")
    assert steps.tolist() == [1, 2, 3]
    assert losses.tolist() == pytest.approx([5.0, 3.9, 2.8])
    times, values = by_time(picture, "loss")
    assert times.tolist() == [0, 1, 2, 3, 4, 5]
    assert not np.isnan(values).any()
    assert len(by_step(picture, "own.accuracy")[0]) == 0
