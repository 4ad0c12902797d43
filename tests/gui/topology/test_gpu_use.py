"""Tests of GPUs that are in use: they do not count as free, are shown in their slots, and are refused as targets."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QHelpEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QToolTip

from tests.core.examples import host
from tests.gui.topology.conftest import MakeDriver
from tests.gui.topology.page_driver import LEFT, PLAIN, Driver
from torchyard_gui.topology.palette_list import COUNT

UNKNOWN = replace(host("gpu-a", 4), use_known=False)


def free(driver: Driver, name: str) -> str:
    """Returns what the palette says about a host's free GPUs."""
    row = driver.page.palette_.hosts.row_of(name)
    assert row is not None
    return str(row.data(COUNT))


def told(driver: Driver, target: str) -> str:
    """Returns the tool tip of a slot."""
    at = driver.slot(target)
    viewport = driver.page.view.viewport()
    QApplication.sendEvent(viewport, QHelpEvent(QHelpEvent.Type.ToolTip, at, viewport.mapToGlobal(at)))
    text = QToolTip.text()
    QToolTip.hideText()
    return text


def test_a_gpu_that_another_user_takes_is_no_longer_free(empty: Driver) -> None:
    assert free(empty, "gpu-c") == "2 of 2 free"
    assert empty.page.bar.gpus.text() == "0 of 9 free GPUs used"
    empty.fleet.hosts[2] = replace(host("gpu-c", 2, busy=(0,)), gpu_users={"GPU-gpu-c-0": "kim"})
    empty.fleet.facts_changed.emit()
    assert free(empty, "gpu-c") == "1 of 2 free"
    assert empty.page.bar.gpus.text() == "0 of 8 free GPUs used"


def test_a_replica_makes_way_for_who_uses_its_gpu(digits: Driver) -> None:
    before = digits.where("chief-0")
    assert before == "gpu-a:0"
    digits.fleet.hosts[0] = replace(host("gpu-a", 4, busy=(0,)), gpu_users={"GPU-gpu-a-0": "kim"})
    digits.fleet.facts_changed.emit()
    assert digits.where("chief-0") == "gpu-a:1"


def test_the_slot_says_who_uses_it(digits: Driver) -> None:
    digits.page.editor.show_host("gpu-b")
    assert told(digits, "gpu-b:3") == "GPU 3 of gpu-b is used by kim: it is not free"
    rack = digits.page.scene._racks["gpu-b"].content
    assert (dict(rack.users), rack.use_known) == ({3: "kim"}, True)


def test_a_pin_onto_a_used_gpu_is_a_problem_that_names_the_user(digits: Driver) -> None:
    digits.page.editor.pin_exactly("worker-1", "gpu-b:3")
    assert "no-room" in digits.codes()
    (problem,) = (problem for problem in digits.page.problems.problems if problem.code == "no-room")
    assert problem.message == "worker-1 is pinned to gpu-b:3, which kim is using"
    assert problem.path == "pins.worker-1"


def test_a_drag_over_a_used_slot_says_so_and_over_a_free_one_where_it_goes(digits: Driver) -> None:
    digits.page.editor.show_host("gpu-b")
    viewport = digits.page.view.viewport()
    start = digits.at("worker-1")
    QTest.mousePress(viewport, LEFT, PLAIN, start)
    QTest.mouseMove(viewport, start + QPoint(20, 20))
    QTest.mouseMove(viewport, digits.slot("gpu-b:3"))
    assert digits.page.view.gesture.caption == "gpu-b:3 is used by kim"  # type: ignore[union-attr]  # The value is not None in this test.
    QTest.mouseMove(viewport, digits.slot("gpu-b:2"))
    assert digits.page.view.gesture.caption == "pin to gpu-b, GPU 2"  # type: ignore[union-attr]  # The value is not None in this test.
    digits.keys(Qt.Key.Key_Escape)
    QTest.mouseRelease(viewport, LEFT, PLAIN, digits.slot("gpu-b:2"))
    assert digits.value.pins == {}


def test_unknown_use_is_not_called_free(make_driver: MakeDriver) -> None:
    driver = make_driver([UNKNOWN, host("gpu-b", 2)])
    assert free(driver, "gpu-a") == "? of 4 free"
    assert driver.page.bar.gpus.text() == "0 of 6 GPUs used"
    assert driver.page.bar.gpus.toolTip() == "The current use of the GPUs of gpu-a is unknown."
    driver.choose(driver.page.palette_.hosts, "gpu-a")
    assert told(driver, "gpu-a:1") == "GPU 1 of gpu-a: current use unknown"
    assert told(driver, "gpu-a").endswith("Its current use is unknown.")
    driver.fleet.hosts[0] = host("gpu-a", 4)
    driver.fleet.facts_changed.emit()
    assert free(driver, "gpu-a") == "4 of 4 free"
    assert told(driver, "gpu-a:1") == "GPU 1 of gpu-a is free"


def test_the_page_watches_who_uses_what_while_it_is_shown(digits: Driver) -> None:
    assert digits.fleet.watched
    digits.page.hide()
    assert not digits.fleet.watched
    digits.page.show()
    assert digits.fleet.watched


def test_the_header_of_a_rack_tells_all_that_it_may_have_cut(digits: Driver) -> None:
    rect = digits.page.scene.rect_of_rack("gpu-a")
    tip = digits.page.scene.tooltip_at(rect.topLeft() + QPointF(120, 12))
    assert tip.startswith("gpu-a · 4 × A100 40 GB · ")
