"""Tests that no text in the window is cut off, overlapping, blank or out of its area, at several sizes and scales."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QTableWidget, QTableWidgetItem, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from tests import REPOSITORY
from tests.gui.geometry.faults import faults_of
from torchyard_gui.canvas import paint_cache
from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.legend import Legend
from torchyard_gui.canvas.level_of_detail import Level
from torchyard_gui.canvas.racks.chip_painting import meter_box
from torchyard_gui.canvas.racks.rack_content import ChipContent
from torchyard_gui.fleet.dialogs.removal_dialogs import RemoveHostsDialog
from torchyard_gui.fleet.host_card import Meter, meter_bars
from torchyard_gui.fleet.host_details import HostDetails
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M
from torchyard_gui.widgets.elided_text import host_elide_mode
from torchyard_gui.widgets.indicators import StateTitle
from torchyard_gui.widgets.text_labels import ElidedLabel
from torchyard_gui.widgets.toast import Toast

SCALES = ("1", "1.5", "2")
WITHIN_S = 170


def walk(scale: str, *arguments: str) -> None:
    """Checks scenes in a new process, because Qt reads the scale factor only once per process."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.gui.geometry.tour", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "QT_SCALE_FACTOR": scale, "QT_QPA_PLATFORM": "offscreen"},
        capture_output=True,
        text=True,
        timeout=WITHIN_S if "--states" in arguments else 3500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("scale", "parts", "size"),
    [("1", "topology,fleet,runs,bookings,sweeps,dialogs", "1024x700"), ("1.5", "topology,fleet,runs", "1280x800")],
)
def test_pages_with_long_names(scale: str, parts: str, size: str) -> None:
    walk(scale, "--parts", parts, "--states", "long", "--sizes", size)


def test_the_state_of_a_live_run_is_readable_at_the_smallest_size() -> None:
    walk("1", "--parts", "live", "--states", "one", "--sizes", "1024x700")


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scale", SCALES)
def test_every_scene_in_every_size(scale: str) -> None:
    walk(scale)


def kinds(window: QWidget) -> list[tuple[str, str]]:
    return [(fault.kind, fault.text) for fault in faults_of(window)]


@pytest.fixture
def window(qtbot: QtBot) -> QWidget:
    window = QWidget()
    qtbot.addWidget(window)
    window.resize(400, 300)
    return window


def shown(window: QWidget, qtbot: QtBot) -> QWidget:
    window.show()
    qtbot.waitExposed(window)
    return window


def test_a_label_that_is_too_narrow_is_cut(window: QWidget, qtbot: QtBot) -> None:
    text = QLabel("this text is much too long", window)
    text.setGeometry(10, 10, 60, 20)
    assert kinds(shown(window, qtbot)) == [("cut", text.text())]
    text.setGeometry(10, 10, 300, 20)
    assert kinds(window) == []
    text.setGeometry(330, 10, 300, 20)
    assert kinds(window) == [("cut", text.text())], "it leaves the window"


def test_a_painted_text_is_cut_at_its_rectangle(window: QWidget, qtbot: QtBot) -> None:
    class Painted(QWidget):
        def paintEvent(self, event: QPaintEvent) -> None:
            painter = QPainter(self)
            painter.drawText(QRect(5, 5, 30, 20), Qt.AlignmentFlag.AlignLeft, "painted text")
            painter.drawText(QRect(5, 40, 200, 20), Qt.AlignmentFlag.AlignLeft, "whole")

    painted = Painted(window)
    painted.resize(300, 100)
    assert kinds(shown(window, qtbot)) == [("cut", "painted text")]


def test_an_elided_text_needs_a_tool_tip(window: QWidget, qtbot: QtBot) -> None:
    with_tip = ElidedLabel("a text that is too long for its label")
    with_tip.setParent(window)
    with_tip.setGeometry(10, 10, 80, 20)
    table = QTableWidget(1, 1, window)
    table.setGeometry(10, 50, 300, 100)
    table.setItem(0, 0, QTableWidgetItem("a cell that is too long for its column"))
    table.setColumnWidth(0, 80)
    (fault,) = faults_of(shown(window, qtbot))
    assert fault.kind == "elided without a tool tip"
    assert fault.text.startswith("a cell")
    item = table.item(0, 0)
    assert item is not None
    item.setToolTip(item.text())
    assert kinds(window) == []


def test_the_state_of_a_run_may_not_be_elided(window: QWidget, qtbot: QtBot) -> None:
    title = StateTitle(window)
    title.name.setText("a name that is too long for its label, but has a tool tip")
    title.show_state("running", "running 12 min · step 300")
    title.setGeometry(10, 10, 80, 48)
    assert kinds(shown(window, qtbot)) == [("elided", title.state.shown_text())]
    title.resize(120, 48)
    assert (title.state.shown_text(), kinds(window)) == ("running 12 min", [])
    assert title.state.toolTip() == title.state.text()
    title.resize(220, 48)
    assert (title.state.shown_text(), kinds(window)) == (title.state.text(), [])


def test_an_ellipsis_of_the_wording_is_no_elision(window: QWidget, qtbot: QtBot) -> None:
    QVBoxLayout(window).addWidget(QPushButton("Launch …"))
    assert kinds(shown(window, qtbot)) == []


def test_overlapping_texts_and_widgets_are_found(window: QWidget, qtbot: QtBot) -> None:
    layout = QHBoxLayout(window)
    one, other = QLabel("one text"), QLabel("another text")
    layout.addWidget(one)
    layout.addWidget(other)
    assert kinds(shown(window, qtbot)) == []
    other.setGeometry(one.geometry().translated(10, 0))
    assert {kind for kind, _ in kinds(window)} == {"overlap"}


def test_a_widget_that_lies_over_the_page_hides_its_texts(window: QWidget, qtbot: QtBot) -> None:
    QLabel("below the drawer", window).move(20, 20)
    drawer = QWidget(window)
    drawer.setGeometry(0, 0, 300, 200)
    QLabel("in the drawer", drawer).move(30, 22)
    assert kinds(shown(window, qtbot)) == []


def test_a_button_without_room_for_its_text_is_blank(window: QWidget, qtbot: QtBot) -> None:
    button = QPushButton("Week", window)
    button.setGeometry(10, 10, 2, 20)
    assert kinds(shown(window, qtbot)) == [("blank", "Week")]


def test_the_legend_of_the_canvas_grows_upward_instead_of_leaving_it(window: QWidget, qtbot: QtBot) -> None:
    legend = Legend(window)
    legend.move(100, 200)
    legend.explain((("trains", "trainers"), ("line", "all-reduce, synchronous"), ("thin", "checkpoints")))
    bottom = legend.geometry().bottom()
    legend.set_limit(220)
    assert legend.geometry().bottom() == bottom
    assert legend.height() > 28
    assert legend.width() <= 220
    assert kinds(shown(window, qtbot)) == []
    legend.set_limit(1000)
    assert legend.height() == 28


def test_the_title_of_the_host_details_is_elided(qtbot: QtBot) -> None:
    details = HostDetails({})
    qtbot.addWidget(details)
    details.title.setText("rack07-gpu-a.training.seoul.example.internal")
    details.resize(details.width(), 400)
    assert kinds(shown(details, qtbot)) == []


def test_names_of_hosts_of_one_domain_stay_distinguishable(qapp: object) -> None:
    assert host_elide_mode("rack07-gpu-a.training.example") is Qt.TextElideMode.ElideRight
    assert host_elide_mode("compute-node-0117") is Qt.TextElideMode.ElideMiddle


def test_a_long_toast_wraps_within_a_narrow_window(window: QWidget, qtbot: QtBot) -> None:
    toast = Toast(window)
    shown(window, qtbot)
    toast.say("The run resnet failed: worker-5 ran out of GPU memory on rack07-gpu-a after three restarts", 100_000)
    assert kinds(window) == []
    assert window.rect().contains(toast.geometry())
    assert toast.height() > 2 * toast.fontMetrics().height()
    toast.hide()
    toast._timer.stop()


def test_a_question_about_many_hosts_lists_three(qtbot: QtBot) -> None:
    dialog = RemoveHostsDialog([f"rack07-gpu-{number}.training.seoul.example.internal" for number in range(128)])
    qtbot.addWidget(dialog)
    assert kinds(shown(dialog, qtbot)) == []
    texts = [text.text() for text in dialog.findChildren(QLabel)]
    assert any("and 125 more" in text for text in texts), texts


METERS = [Meter("CPU", 0.61, "100 % of 128"), Meter("Memory", 0.9, "1007 of 1008 GB")]


@pytest.mark.parametrize("width", [120, 160, 163, 200, 300, 500])
def test_the_meters_of_a_host_have_equal_bars_beside_their_texts(qapp: object, width: int) -> None:
    rect = QRect(30, 10, width, 57)
    one, other = meter_bars(rect, METERS)
    assert (one.x(), one.width()) == (other.x(), other.width())
    metrics = QFontMetrics(theme().font("small"))
    for meter, bar in zip(METERS, (one, other), strict=True):
        if not bar.isEmpty():
            assert bar.left() > rect.left() + metrics.horizontalAdvance(meter.name)
            assert bar.right() < rect.right() - metrics.horizontalAdvance(meter.text)
    assert one.isEmpty() is (width < 180)


def test_the_meter_of_a_low_chip_lies_beside_its_enlarged_number(qapp: object) -> None:
    chip = ChipContent("ps-12", "ps", 12, "cpu-a", (), 0, pinned=False, trains=False)
    low, high = Box(0, 0, 160, M.slot_height - 12), Box(0, 0, 76, M.slot_height)
    number = paint_cache.width_of("12", "strong", 0, 18)
    meter = meter_box(low, chip, Level.COARSE)
    assert meter.left() > 22 + 8 + number
    assert meter.right() <= low.right - 4
    assert meter.center().y() == low.height / 2
    assert meter_box(high, chip, Level.COARSE).top() > high.height / 2
