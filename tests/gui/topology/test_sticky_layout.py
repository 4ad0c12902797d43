"""Tests that racks and chips keep their positions while a topology is edited, and that chips that must move are
highlighted.
"""

from __future__ import annotations

from PySide6.QtCore import QPointF, Qt

from tests.core.examples import host
from tests.gui.topology.conftest import MakeDriver
from tests.gui.topology.page_driver import CONTROL, SHIFT, Driver
from torchyard_core.topology.model import Role


def places(driver: Driver) -> dict[str, QPointF]:
    """Returns the positions of the racks in the view."""
    page = driver.page
    return {name: page.view.mapFromScene(page.scene.rect_of_rack(name).topLeft()) for name in page.scene.hosts}


def test_a_rack_stays_after_its_last_replica_until_the_topology_is_tidied(digits: Driver) -> None:
    digits.page.editor.pin(["worker-3"], "gpu-b:0")
    before = places(digits)
    assert {"gpu-a", "gpu-b"} <= before.keys()
    digits.page.editor.unpin(["worker-3"])
    assert digits.where("worker-3") != "gpu-b:0"
    now = places(digits)
    assert {name: now[name] for name in before} == before
    before = now
    # The empty rack stays visible, so a replica can be dropped on it.
    digits.carry("worker-2", "gpu-b:1")
    assert digits.value.pins["worker-2"] == "gpu-b:1"
    digits.page.editor.remove(["worker-2"])
    assert places(digits) == before
    digits.on_canvas()
    digits.keys(Qt.Key.Key_T, CONTROL | SHIFT)
    used = {digits.where(name).partition(":")[0] for name in digits.page.scene.names}
    assert "gpu-b" not in used
    assert places(digits).keys() == used


def test_saving_removes_empty_racks(digits: Driver) -> None:
    digits.page.editor.pin(["worker-3"], "gpu-b:0")
    digits.page.editor.unpin(["worker-3"])
    assert "gpu-b" in digits.page.scene.hosts
    digits.page.save()
    assert "gpu-b" not in digits.page.scene.hosts


def test_new_racks_leave_the_others_where_they_are(make_driver: MakeDriver) -> None:
    driver = make_driver([host(f"gpu-{letter}", 4) for letter in "abcdefgh"])
    page = driver.page
    driver.choose(page.palette_.roles, "worker")
    page.view.fit()
    seen = places(driver)
    for name in ("gpu-h", "gpu-c", "gpu-b", "gpu-f", "gpu-e"):
        page.editor.show_host(name)
        cells = {cell.key: (cell.row, cell.column) for cell in page.scene._racks.grid.cells}
        assert len(set(cells.values())) == len(cells)
        now = {key: page.scene.rect_of_rack(key).topLeft() for key in page.scene.hosts}
        for key in seen:
            assert now[key] == seen[key] or len(seen) == 1
        seen = now
        for key in page.scene.hosts:
            point = page.scene.rect_of_rack(key).center()
            assert page.scene.target_at(point).partition(":")[0] == key
    page.tidy()
    assert page.scene.hosts == sorted(page.scene.hosts)
    order = sorted(page.scene.hosts, key=lambda key: page.scene.rect_of_rack(key).topLeft().toTuple()[::-1])
    assert order == page.scene.hosts


def test_undo_shows_the_racks_of_its_step(digits: Driver) -> None:
    before = places(digits)
    digits.page.editor.pin(["worker-3"], "gpu-b:0")
    after = places(digits)
    assert after.keys() - before.keys() == {"gpu-b"}
    digits.page.editor.undo()
    assert places(digits) == before
    digits.page.editor.redo()
    assert places(digits) == after


def test_a_pin_moves_and_highlights_only_the_replica_that_it_displaces(make_driver: MakeDriver) -> None:
    driver = make_driver([host(f"gpu-{number:02}", 8) for number in range(26)])
    page = driver.page
    page.editor.add(Role.WORKER)
    page.editor.set_pools([0], "replicas", 200, "replicas")
    before = {name: driver.where(name) for name in page.scene.names}
    page.editor.select(["worker-0"])
    page.editor.pin(["worker-0"], "gpu-05:3")
    moved = {name for name in before if driver.where(name) != before[name]}
    assert moved == {"worker-0", "worker-43"}
    assert driver.where("worker-43") == before["worker-0"]
    assert set(page.scene.moved) == {"worker-43"}
    assert page.scene.described("worker-43").endswith("moved; was GPU 3 on gpu-05")
    page.scene._end_highlight()
    assert "moved" not in page.scene.described("worker-43")


def test_another_file_highlights_nothing(digits: Driver) -> None:
    digits.page.editor.pin(["worker-0"], "gpu-b:0")
    digits.page.files.reload()
    assert digits.page.scene.moved == {}


def test_a_drop_on_an_occupied_slot_swaps_as_one_step(digits: Driver) -> None:
    digits.page.editor.pin_all({"worker-0": "gpu-b:0", "worker-1": "gpu-b:1"})
    before = digits.value
    assert digits.carry("worker-0", "gpu-b:1") == "swap with worker-1 on gpu-b, GPU 1"
    assert (digits.where("worker-0"), digits.where("worker-1")) == ("gpu-b:1", "gpu-b:0")
    digits.on_canvas()
    digits.keys(Qt.Key.Key_Z, CONTROL)
    assert digits.value == before
    # The displaced replica has no pin. It moves to the dragged replica's GPU, and stays without a pin.
    assert digits.where("chief-0") == "gpu-a:0"
    digits.carry("chief-0", "gpu-a:3")
    assert (digits.where("chief-0"), digits.where("worker-2")) == ("gpu-a:3", "gpu-a:0")
    assert "worker-2" not in digits.value.pins
