"""Tests of the arrangement by group: frames around groups, and drags that move replicas into other groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest

from tests.gui.topology.conftest import MakeDriver
from tests.gui.topology.page_driver import CONTROL, LEFT, PLAIN, SHIFT, Driver
from torchyard_core.topology.model import Role

DOWNPOUR = """\
version: 1
name: groups
strategy: {kind: downpour, worker_groups: 2}
pools:
  - {name: workers, role: worker, replicas: 6, gpus: 1}
  - {name: servers, role: ps, replicas: 2}
program: {script: train.py}
"""


@pytest.fixture
def groups(make_driver: MakeDriver, tmp_path: Path) -> Driver:
    """Returns a page that shows two worker groups and a group of servers."""
    path = tmp_path / "groups.yaml"
    path.write_text(DOWNPOUR)
    (tmp_path / "train.py").write_text("")
    driver = make_driver()
    driver.page.open(path)
    driver.on_canvas()
    driver.keys(Qt.Key.Key_G, CONTROL)
    assert driver.page.scene.by_group
    return driver


def carry(driver: Driver, name: str, end: QPoint, *, drop: bool = True) -> str:
    viewport, start = driver.page.view.viewport(), driver.at(name)
    QTest.mousePress(viewport, LEFT, PLAIN, start)
    for step in range(1, 6):
        QTest.mouseMove(viewport, start + (end - start) * step / 5)
    caption = getattr(driver.page.view.gesture, "caption", "")
    if drop:
        QTest.mouseRelease(viewport, LEFT, PLAIN, end)
    return caption


def header(driver: Driver, key: str) -> QPoint:
    rect = driver.page.scene.rect_of_rack(key)
    return driver.page.view.mapFromScene(rect.topLeft()) + QPoint(60, 8)


def frames(driver: Driver) -> dict[str, list[str]]:
    """Returns the names of the replicas in each frame."""
    racks = driver.page.scene._racks
    return {key: [chip.name for chip in item.content.chips] for key, item in racks.items()}


def test_each_view_has_a_tool_tip_of_its_own(groups: Driver) -> None:
    page = groups.page
    assert "worker and server groups" in page.by_group.toolTip()
    assert "Predict how fast" in page.show_advice.toolTip()


def test_frames_exist_only_by_group_and_the_choice_is_remembered(groups: Driver) -> None:
    assert list(frames(groups)) == ["trainers:0", "trainers:1", "servers"]
    assert groups.recent.canvas_by_group
    assert groups.page.bar.arrangement.value == "group"
    QTest.mouseClick(groups.page.bar.arrangement.button("host"), LEFT)
    assert not groups.page.scene.by_group
    assert not groups.recent.canvas_by_group
    assert not any(item.content.group for item in groups.page.scene._racks.values())


def test_a_window_opens_with_the_arrangement_that_was_chosen_last(groups: Driver, make_driver: MakeDriver) -> None:
    groups.page.files.save()
    again = type(groups.page)(groups.fleet, groups.recent)
    groups.qtbot.addWidget(again)
    assert again.scene.by_group
    assert again.bar.arrangement.value == "group"


def test_every_replica_has_a_chip_inside_the_frame_of_its_group(groups: Driver) -> None:
    scene = groups.page.scene
    for key, names in frames(groups).items():
        for name in names:
            assert scene.rect_of_rack(key).contains(scene.rect_of(name))
            assert scene.replica_at(scene.rect_of(name).center()) == name


def test_a_drag_to_another_group_exchanges_places_and_can_be_undone(groups: Driver) -> None:
    before, old, new = groups.value, groups.where("worker-1"), groups.where("worker-3")
    assert carry(groups, "worker-1", header(groups, "trainers:1")) == "exchange with worker-3"
    assert (groups.where("worker-1"), groups.where("worker-3")) == (new, old)
    assert groups.page.editor.selection == ("worker-3",), "what was dragged stays selected"
    assert (groups.value.pools, groups.value.strategy) == (before.pools, before.strategy)
    groups.keys(Qt.Key.Key_Z, CONTROL)
    assert groups.value == before


def test_a_drop_on_a_replica_exchanges_with_it(groups: Driver) -> None:
    assert carry(groups, "worker-1", groups.at("worker-5")) == "exchange with worker-5"
    assert set(groups.value.pins) == {"worker-1", "worker-5"}


def test_a_drop_beside_all_frames_makes_a_new_group(groups: Driver) -> None:
    assert carry(groups, "worker-5", groups.slot("")) == "make 3 worker groups of 2"
    assert groups.value.strategy.worker_groups == 3
    assert len(frames(groups)) == 4
    assert not groups.value.pins


def test_esc_leaves_everything_as_it_was(groups: Driver) -> None:
    before = groups.value
    carry(groups, "worker-1", header(groups, "trainers:1"), drop=False)
    QTest.keyClick(groups.page.view, Qt.Key.Key_Escape)
    QTest.mouseRelease(groups.page.view.viewport(), LEFT, PLAIN, header(groups, "trainers:1"))
    assert groups.value == before
    assert not groups.page.editor.stack.canUndo()


def test_a_move_that_is_not_possible_says_why_and_changes_nothing(groups: Driver) -> None:
    before = groups.value
    assert "another role" in carry(groups, "ps-0", header(groups, "trainers:0"))
    assert groups.value == before


def test_a_role_from_the_palette_is_placed_by_the_planner(groups: Driver) -> None:
    view = groups.page.view
    view.role_dropped.emit(Role.WORKER.value, groups.page.scene.host_at(view.mapToScene(header(groups, "servers"))))
    assert groups.counts()["workers"] == 7
    assert not groups.value.pins


def test_live_marks_and_search_reach_chips_in_frames(groups: Driver) -> None:
    groups.page.view.show_replica("worker-4")
    assert groups.page.scene.selection == ["worker-4"]
    assert groups.page.scene._racks.holder_of("worker-4").content.key == "trainers:1"  # type: ignore[union-attr]  # The value is not None in this test.


def test_a_key_moves_the_selection_from_group_to_group(groups: Driver) -> None:
    groups.select("worker-1")
    groups.keys(Qt.Key.Key_G, CONTROL | SHIFT)
    assert groups.page.editor.selection == ("worker-3",)
    assert set(groups.value.pins) == {"worker-1", "worker-3"}
    groups.keys(Qt.Key.Key_G, CONTROL | SHIFT)
    assert groups.page.editor.selection[0] in ("worker-0", "worker-1", "worker-2"), "after the last, the first"
    groups.select("ps-0")
    before = groups.value
    groups.keys(Qt.Key.Key_G, CONTROL | SHIFT)
    assert groups.value == before
    assert "no other group" in groups.page._toast.label.text()


def test_in_a_narrow_window_the_name_of_the_file_has_room(groups: Driver) -> None:
    groups.window.resize(960, 640)
    assert groups.page.bar.gpus.isHidden()
    groups.wait_until(lambda: groups.page.bar.file.width() >= 70)
