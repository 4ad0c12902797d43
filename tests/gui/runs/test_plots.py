"""Tests of plots: they draw no more points than the screen can show, keep peaks, and react to the wheel and the
keyboard.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PySide6.QtCore import QPointF, Qt
from PySide6.QtTest import QTest

from tests.gui.runs.fake_hosts import Acting
from torchyard_gui.runs.labels import clock
from torchyard_gui.runs.page import RunsPage
from torchyard_gui.runs.plots.crosshair import EVERY_MS
from torchyard_gui.runs.plots.downsampling import calmed, extremes
from torchyard_gui.runs.plots.run_plots import Plots

HOUR = 3600


@pytest.fixture
def plots(qtbot: Any, page: RunsPage, run: Acting) -> Plots:
    """Returns the plots of a run with four replicas and one hour of samples from each."""
    assert page.feed is not None
    for track in page.feed.picture.tracks.values():
        for second in range(HOUR):
            use = 1.0 if second == 1234 else 60.0 + second % 7
            values = {"gpu": use, "loss": 5.0 - second / HOUR, "throughput": 70.0, "gpu_memory_mb": 3000.0}
            track.ring.append(1_000_000.0 + second, values)
    page.actions_.plots.trigger()
    made = page.run_view.plots
    made.refresh()
    return made


def seconds_shown(plots: Plots) -> float:
    low, high = plots.time_range
    return high - low


def test_an_hour_is_drawn_in_as_many_points_as_there_are_pixels(plots: Plots) -> None:
    times, values = plots.curve("use", "worker-0").getData()
    assert len(values) < HOUR / 4
    assert values.min() == 1.0  # A minimum that lasts only one of the 3,600 seconds must remain visible.
    assert (times[0], times[-1]) == (1_000_000.0, 1_000_000.0 + HOUR - 1)
    assert seconds_shown(plots) >= HOUR - 1
    # The vertical and horizontal gaps between plots are equal.
    first, beside, below = (plots._plots[kind].geometry() for kind in ("throughput", "loss", "use"))
    assert beside.left() - first.right() == below.top() - first.bottom() > 8


def test_keys_zoom_and_move_and_show_all_again(qtbot: Any, plots: Plots) -> None:
    pane = plots._plots["loss"]
    pane.setFocus()
    QTest.keyClick(pane, Qt.Key.Key_Plus)
    QTest.keyClick(pane, Qt.Key.Key_Plus)
    assert seconds_shown(plots) == pytest.approx(HOUR / 1.5**2, rel=0.05)
    times, _ = plots.curve("loss", "worker-0").getData()
    assert times[0] > 1_000_000.0 + 600  # Only the visible samples are drawn.
    assert plots.time_range == pytest.approx(plots._plots["use"].getPlotItem().getViewBox().viewRange()[0])
    before = plots.time_range
    QTest.keyClick(pane, Qt.Key.Key_Right)
    assert plots.time_range[0] > before[0]
    for _ in range(12):
        QTest.keyClick(pane, Qt.Key.Key_Plus)
    times, _ = plots.curve("loss", "worker-0").getData()
    assert len(times) <= seconds_shown(plots) + 3  # At this zoom level, each sample is drawn.
    QTest.keyClick(pane, Qt.Key.Key_0)
    assert seconds_shown(plots) >= HOUR - 1


def test_a_curve_without_news_is_not_made_again(plots: Plots, page: RunsPage) -> None:
    page.run_view.plots.refresh()
    same, grown = plots.curve("loss", "worker-0").yData, plots.curve("loss", "worker-1").yData
    assert page.feed is not None
    page.feed.picture.tracks["worker-1"].ring.append(1_000_000.0 + HOUR - 0.5, {"loss": 4.0})
    plots.refresh()
    assert plots.curve("loss", "worker-0").yData is same
    assert plots.curve("loss", "worker-1").yData is not grown


def test_before_the_first_samples_it_says_so(page: RunsPage) -> None:
    page.actions_.plots.trigger()
    assert page.run_view.plots.nothing.isVisible()
    assert page.run_view.plots.nothing.title.text() == "No curves yet"


def test_gaps_stay_gaps() -> None:
    times = np.arange(10_000.0)
    values = np.ones(10_000, np.float32)
    values[4000:6000] = np.nan
    thin_times, thin_values = extremes(times, values, 0, 10_000, 400)
    assert len(thin_times) <= 500
    inside = (thin_times > 4100) & (thin_times < 5900)
    assert np.isnan(thin_values[inside]).all()
    assert not np.isnan(thin_values[~inside & ((thin_times < 3900) | (thin_times > 6100))]).any()


def test_points_do_not_tremble_as_a_curve_grows() -> None:
    values = np.random.default_rng(3).random(9000).astype(np.float32)
    times = np.arange(9000.0)
    before = extremes(times[:8000], values[:8000], 0, 9000, 400)
    after = extremes(times[:8010], values[:8010], 0, 9000, 400)
    same = len(before[0]) - 4
    assert (before[0][:same] == after[0][:same]).all()
    assert (before[1][:same] == after[1][:same]).all()


def test_a_tremble_is_no_storm(plots: Plots, page: RunsPage) -> None:
    assert page.feed is not None
    for track in page.feed.picture.tracks.values():
        for second in range(HOUR, HOUR + 60):
            values = {"gpu": 60.0, "loss": 0.40, "throughput": 71.0 + second % 7, "gpu_memory_mb": 3000.0}
            track.ring.append(1_000_000.0 + second, values)
    plots.refresh()

    def shown(kind: str) -> tuple[float, float]:
        low, high = plots._plots[kind].getPlotItem().getViewBox().viewRange()[1]
        return low, high

    assert shown("throughput")[0] == 0.0
    assert shown("throughput")[1] == pytest.approx(77, rel=0.1)
    assert shown("memory")[0] == 0.0
    assert calmed(0.41, 0.43) == pytest.approx((0.334, 0.506))
    assert calmed(0.4, 5.0) == (0.4, 5.0)


def test_what_the_script_reports_by_names_of_its_own_is_plotted(qtbot: Any, plots: Plots, page: RunsPage) -> None:
    assert page.feed is not None
    button = plots.choice.button("own")
    assert not button.isEnabled()
    tracks = page.feed.picture.tracks
    for second in range(100):
        values = {"own.accuracy": second / 100, "own.gpu": -1.0, "gpu": 50.0}
        tracks["worker-0"].ring.append(1_000_000.0 + HOUR + second, values)
    plots.refresh()
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)
    assert plots.reported.isVisible()
    assert [plots.reported.itemText(row) for row in range(plots.reported.count())] == ["accuracy", "gpu"]
    values = plots.curve("own", "worker-0").getData()[1]
    assert values[~np.isnan(values)].tolist()[-1] == pytest.approx(0.99)
    low, high = plots._plots["own"].getPlotItem().getViewBox().viewRange()[1]
    assert low <= 0 < 0.99 <= high
    plots.reported.setCurrentText("gpu")  # The curve shows the reported value, not the measured value.
    values = plots.curve("own", "worker-0").getData()[1]
    assert set(values[~np.isnan(values)].tolist()) == {-1.0}
    assert plots._plots["own"].accessibleName() == "gpu"
    QTest.mouseClick(plots.choice.button("progress"), Qt.MouseButton.LeftButton)
    assert not plots.reported.isVisible()
    assert plots.curve("use", "worker-0").getData()[1][-1] == 50.0


def test_a_part_of_the_step_that_the_strategy_lacks_has_no_plot(qtbot: Any, plots: Plots, page: RunsPage) -> None:
    assert page.feed is not None
    track = page.feed.picture.tracks["worker-0"]

    def visible() -> list[str]:
        return [kind for kind, plot in plots._plots.items() if plot.isVisible()]

    for second in range(5):
        track.ring.append(1_000_000.0 + HOUR + second, {"compute_s": 0.5, "exchange_s": 0.1, "wait_s": 0.0})
    plots.set_names(["worker-0"])
    QTest.mouseClick(plots.choice.button("step"), Qt.MouseButton.LeftButton)
    assert visible() == ["compute_s", "exchange_s", "wait_s"]
    qtbot.waitUntil(lambda: plots._plots["wait_s"].width() > 1.8 * plots._plots["compute_s"].width())
    wide, narrow = (plots._plots[kind].getPlotItem().getViewBox().viewRange()[0] for kind in ("wait_s", "compute_s"))
    assert wide == pytest.approx(narrow)
    track.ring.append(1_000_000.0 + HOUR + 9, {"staleness": 2.0})
    plots.refresh()
    assert visible() == ["compute_s", "exchange_s", "wait_s", "staleness"]
    QTest.mouseClick(plots.choice.button("progress"), Qt.MouseButton.LeftButton)
    assert visible() == ["throughput", "loss", "use", "memory"]


def test_a_time_range_follows_the_newest_samples(qtbot: Any, plots: Plots, page: RunsPage) -> None:
    assert page.feed is not None
    assert plots.range.currentText() == "Whole run"
    plots.range.setFocus()
    QTest.keyClick(plots.range, Qt.Key.Key_Down)
    assert plots.range.currentText() == "Last 5 min"
    assert seconds_shown(plots) == 300
    end = plots.time_range[1]
    for track in page.feed.picture.tracks.values():
        track.ring.append(1_000_000.0 + HOUR + 600, {"loss": 4.0})
    plots.refresh()
    assert seconds_shown(plots) == 300
    assert plots.time_range[1] >= end + 540
    plots._plots["loss"].setFocus()
    QTest.keyClick(plots._plots["loss"], Qt.Key.Key_Plus)
    assert plots.range.currentText() == "Zoomed"
    QTest.keyClick(plots._plots["loss"], Qt.Key.Key_0)
    assert plots.range.currentText() == "Whole run"
    assert seconds_shown(plots) > HOUR


def test_one_crosshair_reads_all_plots(qtbot: Any, plots: Plots) -> None:
    pane, other = plots._plots["loss"], plots._plots["use"]
    view, crosshair = pane.getPlotItem().getViewBox(), plots.crosshair
    at = 1_000_000.0 + 1800

    def points_at() -> bool:
        QTest.mouseMove(pane.viewport(), pane.mapFromScene(view.mapViewToScene(QPointF(at, 4.5))))
        QTest.qWait(2 * EVERY_MS)  # The crosshair moves at most once per EVERY_MS.
        return crosshair.position == pytest.approx(at, abs=HOUR / 100)

    qtbot.waitUntil(points_at)  # The pointer is moved again until the plots have their final size.
    assert all(line.isVisible() for line in crosshair._lines.values())
    time = clock(crosshair.position, exact=True)
    assert crosshair.readouts["loss"].text.startswith((f"{time} 4.4", f"{time} 4.5"))
    assert crosshair.readouts["use"].isVisible()
    assert crosshair.readouts["use"].text.startswith(f"{time} 6")
    assert other.accessibleDescription() == crosshair.readouts["use"].text
    # An arrow key moves the crosshair by a hundredth of the visible range, and Esc hides it.
    pane.setFocus()
    before = crosshair.position
    QTest.keyClick(pane, Qt.Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    assert crosshair.position == pytest.approx(before + seconds_shown(plots) / 100)
    QTest.keyClick(pane, Qt.Key.Key_Escape)
    assert crosshair.position is None
    assert not crosshair.readouts["loss"].isVisible()


def test_the_crosshair_shows_the_range_of_many_curves(plots: Plots, page: RunsPage) -> None:
    assert page.feed is not None
    plots.set_names([*page.feed.picture.tracks, "worker-0"])
    plots.crosshair.move_to(1_000_000.0 + 10)
    assert plots.crosshair.readouts["throughput"].text.endswith("70 – 70")
