"""Tests of sections: many hosts are grouped under headings by their label `rack`, with a summary of the edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from pytestqt.qtbot import QtBot

from tests.gui.canvas import samples
from torchyard_core.launch.rank_assignment import Plan, plan
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Role, StrategyKind
from torchyard_gui.canvas.edges.edge_items import EdgeItem, TrunkItem
from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.racks.layout import arrange_sections, best_shape
from torchyard_gui.canvas.racks.sections import SECTIONS_FROM, sections_of
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.view import CanvasView

HOSTS, GPUS, IN_RACK = 32, 4, 8


def labelled(number: int, **labels: str) -> HostFacts:
    return replace(samples.host(f"n{number:02}", GPUS), labels=labels)


def fleet(hosts: int = HOSTS) -> list[HostFacts]:
    return [labelled(number, rack=f"r{number // IN_RACK}") for number in range(hosts)]


def drawn(kind: StrategyKind, servers: int = 0) -> tuple[Plan, list[HostFacts]]:
    pools = [samples.pool("workers", Role.WORKER, HOSTS * GPUS, 1)]
    if servers:
        pools.append(samples.pool("servers", Role.PS, servers, 0, "n00"))
    hosts = fleet()
    return plan(samples.topology(*pools, kind=kind), hosts), hosts


@pytest.fixture
def served(qtbot: QtBot) -> CanvasView:
    """Returns a view of 128 workers in four racks and two servers in the first rack."""
    scene = TopologyScene()
    view = CanvasView(scene)
    scene.setParent(view)
    qtbot.addWidget(view)
    view.resize(760, 560)
    scene.show_plan(*drawn(StrategyKind.SANDBLASTER, servers=2))
    view.show()
    view.fit()
    return view


def headings(scene: TopologyScene) -> Mapping[str, str]:
    return {name: heading.summary for name, heading in scene._racks.headings.items()}


def test_few_hosts_and_hosts_without_a_common_label_have_no_sections() -> None:
    assert sections_of(fleet(SECTIONS_FROM - 1)) == {}
    assert sections_of([samples.host(f"n{number}", 1) for number in range(HOSTS)]) == {}
    assert sections_of([labelled(number, rack="all") for number in range(HOSTS)]) == {}
    assert sections_of([labelled(number, serial=str(number)) for number in range(HOSTS)]) == {}
    assert sections_of([labelled(number, machine=f"m{number % 2}") for number in range(HOSTS)]) == {}


def test_the_label_rack_divides_hosts_and_otherwise_the_label_that_most_hosts_have() -> None:
    both = [labelled(number, zone=f"z{number % 2}", rack=f"r{number // 8}") for number in range(HOSTS)]
    assert set(sections_of(both).values()) == {"r0", "r1", "r2", "r3"}
    zones = [labelled(number, zone=f"z{number % 2}") for number in range(HOSTS)]
    assert set(sections_of(zones).values()) == {"z0", "z1"}
    some = [labelled(number, **({"rack": f"r{number // 8}"} if number < 24 else {})) for number in range(HOSTS)]
    assert sections_of(some)["n31"] == "no label “rack”"


def test_each_heading_counts_hosts_gpus_and_the_edges_to_other_racks(served: CanvasView) -> None:
    scene = served.scene()
    assert isinstance(scene, TopologyScene)
    found = headings(scene)
    assert list(found) == ["r0", "r1", "r2", "r3"]
    assert found["r1"] == "32 of 32 GPUs used · 64 edges out"
    assert found["r0"] == "32 of 32 GPUs used · 192 edges out"


def test_tiles_have_a_trunk_between_racks_and_close_up_one_between_hosts(served: CanvasView) -> None:
    scene = served.scene()
    assert isinstance(scene, TopologyScene)
    (trunk,) = [item for item in scene.items() if isinstance(item, TrunkItem)]
    assert {branch.host for branch in trunk.trunk.branches} == {"r0", "r1", "r2", "r3"}
    assert trunk.label == ("124 M per step · 256 edges",)
    assert "both" in served._legend.texts
    served.set_zoom(1.0)
    (trunk,) = [item for item in scene.items() if isinstance(item, TrunkItem)]
    assert {branch.host for branch in trunk.trunk.branches} == set(scene.hosts)


def test_lines_between_racks_keep_their_width_on_the_screen(served: CanvasView) -> None:
    scene = served.scene()
    (trunk,) = [item for item in scene.items() if isinstance(item, TrunkItem)]
    for zoom in (0.2, 0.3):
        served.set_zoom(zoom)
        assert trunk.deviceTransform(served.viewportTransform()).m11() == pytest.approx(1.0)


def test_lines_pass_behind_the_text_of_a_heading(served: CanvasView) -> None:
    scene = served.scene()
    assert isinstance(scene, TopologyScene)
    crossed = 0
    for kind in (StrategyKind.SANDBLASTER, StrategyKind.ALL_REDUCE, StrategyKind.DILOCO):
        scene.show_plan(*drawn(kind))
        for zoom in (0.2, 0.5, 1.0):
            served.set_zoom(zoom)
            with_lines = served.viewport().grab().toImage()
            lines = [item for item in scene.items() if isinstance(item, EdgeItem | TrunkItem)]
            paths = [item.mapToScene(item.shape()) for item in lines]
            for item in lines:
                item.setVisible(False)
            without = served.viewport().grab().toImage()
            for item in lines:
                item.setVisible(True)
            for heading in scene._racks.headings.values():
                box = served.mapFromScene(heading.text_rect()).boundingRect()
                crossed += any(path.intersects(heading.text_rect()) for path in paths)
                assert with_lines.copy(box) == without.copy(box), (kind, zoom, heading.name)
    assert crossed


def test_an_all_reduce_is_a_loop_over_the_racks(served: CanvasView) -> None:
    scene = served.scene()
    assert isinstance(scene, TopologyScene)
    scene.show_plan(*drawn(StrategyKind.ALL_REDUCE))
    hops = [item.hop for item in scene.items() if isinstance(item, EdgeItem)]
    assert sorted(hop.source for hop in hops) == ["r0", "r1", "r2", "r3"]
    assert headings(scene)["r2"].endswith("2 edges out")


def test_a_chip_is_found_where_it_is_drawn(served: CanvasView) -> None:
    scene = served.scene()
    assert isinstance(scene, TopologyScene)
    for zoom in (0.0, 1.0):
        if zoom:
            served.set_zoom(zoom)
        for name in scene.names[::7]:
            assert scene.replica_at(scene.rect_of(name).center()) == name


def test_a_live_heading_counts_busy_gpus_and_unknown_hosts(served: CanvasView) -> None:
    scene = served.scene()
    assert isinstance(scene, TopologyScene)
    scene.show_states(samples.many_states(scene.names))
    assert headings(scene)["r1"].startswith("32 of 32 GPUs busy")


@pytest.mark.parametrize(("width", "height"), [(300, 900), (900, 700), (2400, 700)])
def test_racks_of_sections_never_overlap_and_stay_below_their_heading(width: float, height: float) -> None:
    heights = {f"n{number}": 150.0 + 48 * (number % 3) for number in range(37)}
    keys = list(heights)
    sections = {"a": keys[:16], "b": keys[16:21], "c": keys[21:36], "": keys[36:]}
    grid = arrange_sections(heights, sections, best_shape(heights, sections, width, height))
    assert [heading.section for heading in grid.headings] == ["a", "b", "c"]
    assert {cell.key for cell in grid.cells} == set(keys)
    boxes = [cell.box for cell in grid.cells] + [heading.box for heading in grid.headings]
    assert not any(one.meets(other) for at, one in enumerate(boxes) for other in boxes[:at])
    assert grid.sections is not None
    for block in grid.sections.cells:
        for key in sections[block.key]:
            box = grid.cell(key).box
            assert Box(box.x, box.y, box.width, box.height).meets(block.box)
            assert grid.cell_at(*box.middle) == grid.cell(key)
