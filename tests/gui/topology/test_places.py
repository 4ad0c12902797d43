"""Tests of the control *Where*: the hosts of the fleet file, or a cluster, whose nodes Slurm has yet to choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtGui import QAction

from tests.core.engines.slurm.samples import checked
from tests.gui.geometry.faults import faults_of
from tests.gui.topology.conftest import DIGITS, MakeDriver
from tests.gui.topology.page_driver import Driver
from torchyard_core.engines import registry
from torchyard_core.engines.slurm.cluster_check import ClusterCheck
from torchyard_core.errors import Unreachable
from torchyard_core.home import Home
from torchyard_core.topology.model import Pool, Role, Topology
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.planner.planning_place import PlanningPlace
from torchyard_gui.canvas import labels

FLEET = """\
version: 1
hosts: [{name: gpu-a}]
clusters:
  - {name: hpc, kind: slurm, partition: gpu, login: {address: login.hpc.example}}
"""
Check = Callable[[], ClusterCheck]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """The answers of the cluster's login node to the next checks; the last one is repeated."""
    coming: list[Check] = [checked]

    def answer(*_: object, **options: object) -> ClusterCheck:
        return (coming.pop(0) if coming[1:] else coming[0])()

    monkeypatch.setattr(registry, "check_cluster", answer)
    return coming


@pytest.fixture
def place(home: Home, tmp_path: Path, answers: list[Check], qtbot: object) -> Iterator[PlanningPlace]:
    """A place whose fleet file has the cluster `hpc`."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    fleet = FleetModel(home, file)
    made = PlanningPlace(fleet)
    made.begin()
    yield made
    fleet.close()


@pytest.fixture
def digits(make_driver: MakeDriver, digits_file: Path, place: PlanningPlace) -> Driver:
    """Returns a page with a chief and four workers, planned for hosts."""
    driver = make_driver(place=place)
    driver.page.open(digits_file)
    return driver


def names_of_racks(driver: Driver) -> list[str]:
    scene = driver.page.scene
    return [labels.rack_name(scene._racks[host].content) for host in scene.hosts]


def entries(driver: Driver) -> dict[str, QAction]:
    """Opens the menu of the control; returns its entries by text."""
    menu = driver.page.bar.where.open()
    menu.hide()
    return {entry.text(): entry for entry in menu.actions() if entry.text()}


def test_a_chosen_cluster_is_one_frame_around_any_nodes_of_a_shape(digits: Driver) -> None:
    frame = digits.page.scene.frame
    assert not frame.isVisible()
    entries(digits)["hpc, a Slurm cluster"].trigger()
    digits.wait_until(lambda: names_of_racks(digits) == ["Any node with 4 × A100", "Any node with 4 × A100"])
    assert (frame.heading.name, frame.heading.summary) == ("hpc", "Slurm chooses 2 nodes")
    assert frame.isVisible()
    assert digits.page.scene.content_rect().contains(frame.bounds())
    racks = digits.page.scene
    assert all(frame.rect().contains(racks.rect_of_rack(host)) for host in racks.hosts)
    assert digits.codes() == []
    assert digits.page.bar.gpus.text() == "5 GPUs of 2 nodes"
    assert digits.page.status_texts() == ["5 replicas on 2 nodes of hpc"]
    assert digits.page.bar.where.accessibleName() == "Where: hpc"
    assert "Submit this topology to the Slurm cluster hpc" in digits.page.launch_action.toolTip()
    entries(digits)["Hosts of the fleet, over SSH"].trigger()
    assert names_of_racks(digits) == ["gpu-a", "gpu-c"]
    assert not frame.isVisible()


def test_the_topology_is_not_changed_by_the_place(digits: Driver, place: PlanningPlace) -> None:
    before = digits.page.document.text
    place.choose("hpc")
    digits.wait_until(lambda: "Any node with 4 × A100" in names_of_racks(digits))
    assert digits.page.document.text == before
    assert not digits.page.document.is_modified


def test_replicas_cannot_be_pinned_to_nodes_that_slurm_chooses(digits: Driver, place: PlanningPlace) -> None:
    place.choose("hpc")
    why = "Slurm chooses the nodes of hpc, so replicas cannot be pinned to them."
    editor = digits.page.editor
    assert editor.pin(["worker-0"], "hpc.1:0") == why
    assert editor.why_not(["worker-0"], "hpc.1") == why
    editor.select(["worker-0"])
    group = digits.page.inspector.place
    assert group.row.isHidden()
    assert group.pin_here.isHidden()
    place.choose("")
    assert not group.row.isHidden()


def test_a_topology_that_names_the_cluster_decides_the_place(
    digits: Driver, place: PlanningPlace, tmp_path: Path
) -> None:
    file = tmp_path / "on-hpc.yaml"
    file.write_text(
        DIGITS.replace("hosts: [gpu-a]", "hosts: [hpc]").replace("replicas: 4, ", "replicas: 4, hosts: [hpc], ")
    )
    digits.page.open(file)
    digits.wait_until(lambda: "Any node with 4 × A100" in names_of_racks(digits))
    assert place.place == ""
    assert digits.codes() == []
    found = entries(digits)
    assert found["hpc, a Slurm cluster"].isChecked()
    assert not found["Hosts of the fleet, over SSH"].isEnabled()


def test_a_cluster_that_does_not_answer_is_reported_and_asked_again(
    digits: Driver, place: PlanningPlace, answers: list[Check]
) -> None:
    error = Unreachable("hpc", "hpc does not answer on port 22.")
    answers.insert(0, lambda: ClusterCheck("hpc", "gpu", None, error, (error,)))
    place.choose("hpc")
    digits.wait_until(lambda: "hpc does not answer on port 22." in digits.notice())
    assert names_of_racks(digits) == ["Nodes not known yet"]
    assert digits.page.scene.frame.heading.summary == "could not be checked (unreachable)"
    assert [one.message for one in digits.page.current_plan.problems if one.severity != "error"] == [
        "hpc could not be checked (unreachable); assuming it fits"
    ]
    digits.page.notices._take(0)
    digits.wait_until(lambda: "Any node with 4 × A100" in names_of_racks(digits))
    assert digits.notice() == ""


def test_a_fleet_without_clusters_has_no_control(make_driver: MakeDriver, place: PlanningPlace) -> None:
    without = make_driver()
    assert without.page.bar.where.isHidden()
    assert not without.page.where_action.isVisible()
    driver = make_driver(place=place)
    bar = driver.page.bar
    assert not bar.where.isHidden()
    assert driver.page.where_action.isVisible()
    assert place._fleet is not None
    place._fleet.fleet_file.write_text(FLEET.replace("hpc", "other"))
    place._fleet.refresh()
    menu = bar.where.open()
    menu.hide()
    assert "other, a Slurm cluster" in {entry.text() for entry in menu.actions()}
    place._fleet.fleet_file.write_text("version: 1\nhosts: []\n")
    place._fleet.refresh()
    assert bar.where.isHidden()


def test_a_fleet_of_clusters_alone_needs_no_choice(
    make_driver: MakeDriver, digits_file: Path, place: PlanningPlace
) -> None:
    assert place._fleet is not None
    place._fleet.fleet_file.write_text(FLEET.replace("[{name: gpu-a}]", "[]"))
    place._fleet.refresh()
    driver = make_driver(place=place)
    assert driver.page.bar.where.accessibleName() == "Where: hpc"
    assert not entries(driver)["Hosts of the fleet, over SSH"].isEnabled()
    driver.page.open(digits_file)
    value = driver.page.document.value
    assert place.place_for(value) == "", "its pools name hosts"
    assert place.place_for(value.model_copy(update={"pools": value.pools[1:]})) == "hpc"
    place._fleet.fleet_file.write_text(FLEET)
    place._fleet.refresh()
    assert place.place_for(value.model_copy(update={"pools": value.pools[1:]})) == ""


def test_gpus_of_a_cluster_are_not_counted_as_free(make_driver: MakeDriver, place: PlanningPlace) -> None:
    driver = make_driver(place=place)
    place.choose("hpc")
    assert driver.page.editor.apply("draw", lambda value: _with_workers(value, 3, 0)) == ""
    driver.wait_until(lambda: driver.page.bar.gpus.text() == "3 replicas")
    assert driver.page.editor.apply("draw", lambda value: _with_workers(value, 20, 2)) == ""
    driver.wait_until(lambda: driver.page.bar.gpus.text() == "12 GPUs of 3 nodes")
    assert driver.page.status_texts() == ["6 replicas on 3 nodes of hpc", "14 not placed"]
    assert driver.page.editor.apply("draw", lambda value: _with_workers(value, 2, 8)) == ""
    assert driver.page.status_texts() == ["2 not placed"]


def _with_workers(value: Topology, replicas: int, gpus: int) -> Topology:
    workers = Pool(name="workers", role=Role.WORKER, replicas=replicas, gpus=gpus)
    return value.model_copy(update={"pools": (workers,)})


@pytest.mark.parametrize("width", [960, 1100, 1376])
def test_the_bar_has_room_for_the_place(digits: Driver, place: PlanningPlace, width: int) -> None:
    place.choose("hpc")
    bar = digits.page.bar
    digits.window.resize(width, 700)
    digits.wait_until(lambda: bar.width() == width and bar.file.shown_text() == "digits.yaml")
    digits.wait_until(lambda: not [fault for fault in faults_of(digits.window) if "TopBar" in fault.widget])
