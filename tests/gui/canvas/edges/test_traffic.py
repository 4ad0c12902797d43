"""Tests that edges between hosts show the traffic between replicas under each strategy, and never cover a rack."""

from __future__ import annotations

from itertools import pairwise

import pytest
from PySide6.QtCore import QPointF

from tests.gui.canvas import samples
from torchyard_core.launch.rank_assignment import Plan, plan
from torchyard_core.topology.model import Role, Strategy, StrategyKind
from torchyard_core.topology.strategies.link_load import ExchangeFacts
from torchyard_core.topology.strategies.topology_traffic import traffic_of
from torchyard_gui.canvas.edges.edge_items import EdgeItem, TrunkItem, pill_box, wrapped_label
from torchyard_gui.canvas.edges.routes import arrow_at
from torchyard_gui.canvas.edges.traffic import HostTraffic, host_traffic, lay
from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.legend import entries_of
from torchyard_gui.canvas.racks.layout import arrange
from torchyard_gui.canvas.scene import TopologyScene

Kind = StrategyKind
TRAIN, SERVE = [f"t{number}" for number in range(12)], [f"s{number}" for number in range(4)]


def planned(kind: StrategyKind, workers: int = 4, servers: int = 2, *, role: Role = Role.PS, **settings: int) -> Plan:
    hosts = [samples.host(name, 2) for name in TRAIN] + [samples.host(name) for name in SERVE]
    pools = [samples.pool("workers", Role.WORKER, workers, 1, *TRAIN)]
    if servers:
        pools.append(samples.pool("servers", role, servers, 0, *SERVE))
    design = samples.topology(*pools, kind=kind)
    return plan(design.model_copy(update={"strategy": Strategy(kind=kind, **settings)}), hosts)  # type: ignore[arg-type]  # The fields have different types.


def wiring(found: Plan) -> HostTraffic:
    host_of = {replica.name: replica.host for replica in found.replicas if replica.host}
    return host_traffic(traffic_of(found.topology), host_of, found.topology.strategy)


def shown(found: Plan) -> TopologyScene:
    scene = TopologyScene()
    scene.show_plan(found, [samples.host(name, 2) for name in TRAIN] + [samples.host(name) for name in SERVE])
    return scene


def test_a_trunk_says_which_hosts_train_and_which_serve() -> None:
    found = wiring(planned(Kind.SANDBLASTER))
    assert found.trunk == (("s0", "serves"), ("s1", "serves"), ("t0", "trains"), ("t1", "trains"))
    assert found.count == 0, "8 edges are few"
    assert found.in_step


def test_beyond_sixteen_edges_the_trunk_is_thick_and_says_how_many() -> None:
    scene = shown(planned(Kind.SANDBLASTER, workers=9, servers=2))
    (trunk,) = [item for item in scene.items() if isinstance(item, TrunkItem)]
    assert (trunk.thick, trunk.label) == (True, ("4.5 M per step · 18 edges",))
    (trunk,) = [item for item in shown(planned(Kind.SANDBLASTER, 8, 2)).items() if isinstance(item, TrunkItem)]
    assert (trunk.thick, trunk.label) == (False, ("4 M per step",))


def test_too_few_reducers_make_the_trainers_ports_reduce_too() -> None:
    few = wiring(planned(Kind.REDUCTION_SERVER, 4, 2, role=Role.REDUCER))
    enough = wiring(planned(Kind.REDUCTION_SERVER, 4, 4, role=Role.REDUCER))
    assert {port for host, port in few.trunk if host in TRAIN} == {"both"}
    assert {port for host, port in enough.trunk if host in TRAIN} == {"trains"}


def test_downpour_is_dashed_and_says_how_often_it_pushes() -> None:
    scene = shown(planned(Kind.DOWNPOUR, worker_groups=2, push_every=3))
    (trunk,) = [item for item in scene.items() if isinstance(item, TrunkItem)]
    assert trunk.dashed
    assert trunk.label == ("push 3 · pull 1 · 2 M per step",)
    chip = scene.chip("worker-3")
    assert chip is not None
    assert chip.group == 1
    assert "worker group 1" in scene.described("worker-3")


def test_hogwilds_lines_go_between_the_hosts_of_neighbours() -> None:
    found = wiring(planned(Kind.HOGWILD, workers=6, servers=0, sync_every=5))
    assert found.neighbours == (("t0", "t1"), ("t1", "t2"), ("t2", "t0"))
    hops = [item for item in shown(planned(Kind.HOGWILD, 6, 0, sync_every=5)).items() if isinstance(item, EdgeItem)]
    assert all(item.hop.look.dashed and not item.hop.look.arrows for item in hops)
    assert [item.label for item in hops if item.label] == [("f = 5",)]


def test_diloco_has_a_loop_through_the_hosts_of_the_groups_first_workers() -> None:
    found = wiring(planned(Kind.DILOCO, workers=6, servers=0, worker_groups=3, inner_steps=20))
    assert (found.average, found.neighbours, found.ring) == ({"t0", "t1", "t2"}, (), frozenset())
    scene = shown(planned(Kind.DILOCO, 6, 0, worker_groups=3, inner_steps=20))
    hops = [item for item in scene.items() if isinstance(item, EdgeItem)]
    assert len(hops) == 3
    assert all(item.hop.look.dashed and not item.hop.look.arrows for item in hops)
    assert [item.label for item in hops if item.label] == [("inner steps: 20",)]
    texts = [text for _, text in entries_of(found)]
    assert texts == ["trainers", "average of the groups, every few steps"]


@pytest.mark.parametrize(("role", "called"), [(Role.PS, "servers"), (Role.REDUCER, "reducers")])
def test_diloco_has_dashed_edges_to_its_servers_or_reducers(role: Role, called: str) -> None:
    found = wiring(planned(Kind.DILOCO, 6, 2, role=role, worker_groups=3))
    assert dict(found.trunk) == {**dict.fromkeys(("t0", "t1", "t2"), "trains"), "s0": "serves", "s1": "serves"}
    assert [text for _, text in entries_of(found)] == ["trainers", called, "asynchronous"]


def test_another_strategy_takes_the_lines_of_the_one_before_away() -> None:
    scene = shown(planned(Kind.SANDBLASTER))
    scene.show_plan(planned(Kind.NONE), [samples.host(name, 2) for name in (*TRAIN, *SERVE)])
    assert not scene.has_edges
    assert not [item for item in scene.items() if isinstance(item, TrunkItem | EdgeItem)]


@pytest.mark.parametrize("columns", range(1, 7))
@pytest.mark.parametrize("racks", [2, 3, 7, 16])
def test_no_line_of_a_trunk_lies_over_a_rack(columns: int, racks: int) -> None:
    grid = arrange({f"r{number}": 120.0 + 48 * (number % 3) for number in range(racks)}, columns)
    members = tuple((cell.key, "serves" if number % 3 == 0 else "trains") for number, cell in enumerate(grid.cells))
    lines = lay(grid, HostTraffic(trunk=members, checkpoints=(("r0", f"r{racks - 1}"),)))  # type: ignore[arg-type]  # mypy infers str instead of a Literal.
    assert lines.trunk is not None
    assert {branch.host for branch in lines.trunk.branches} == set(grid_keys := [cell.key for cell in grid.cells])
    stretches = [stretch for branch in lines.trunk.branches for stretch in pairwise(branch.points)]
    stretches += [*lines.trunk.stems, *(stretch for hop in lines.hops for stretch in pairwise(hop.points))]
    for (x1, y1), (x2, y2) in stretches:
        line = Box(min(x1, x2), min(y1, y2), abs(x1 - x2), abs(y1 - y2)).grown(0.5)
        inside = [cell.key for cell in grid.cells if cell.box.grown(-1).meets(line)]
        assert inside == [], f"{grid_keys}: {(x1, y1)} to {(x2, y2)}"


def test_edges_name_the_data_of_a_step_in_bytes_once_the_gradients_are_known() -> None:
    found = planned(Kind.ALL_REDUCE, servers=0)
    hosts = [samples.host(name, 2) for name in TRAIN]
    scene = TopologyScene()

    def pills() -> list[tuple[str, ...]]:
        scene.show_plan(found, hosts)
        return [item.label for item in scene.items() if isinstance(item, EdgeItem) and item.label]

    assert pills() == [("1.5 M per step",)]
    header = scene.rect_of_rack("t0").topLeft() + QPointF(60, 10)
    assert "carries 1.5 M per step in each direction; M is the size of the gradients." in scene.tooltip_at(header)
    scene.exchange = ExchangeFacts(gradient_bytes=100e6, link_bytes_s=1.25e9)
    assert pills() == [("150 MB per step",)]
    assert "carries 150 MB per step in each direction, in about 120 ms." in scene.tooltip_at(header)


@pytest.mark.parametrize("hosts", [2, 3, 6])
@pytest.mark.parametrize("kind", [Kind.ALL_REDUCE, Kind.HOGWILD, Kind.DILOCO, Kind.SANDBLASTER, Kind.DOWNPOUR])
def test_no_label_of_an_edge_lies_over_a_rack(kind: StrategyKind, hosts: int) -> None:
    settings = {Kind.DILOCO: {"worker_groups": hosts, "inner_steps": 500}, Kind.DOWNPOUR: {"worker_groups": hosts}}
    servers = 2 if kind in (Kind.SANDBLASTER, Kind.DOWNPOUR) else 0
    scene = shown(planned(kind, 2 * hosts, servers, **settings.get(kind, {})))
    pills = [pill_box(arrow_at(item.hop.points)[0], item.label) for item in edges(scene) if item.label]
    trunks = [item for item in scene.items() if isinstance(item, TrunkItem)]
    pills += [pill_box(trunk.trunk.label_at, trunk.label) for trunk in trunks]
    assert len(pills) == 1
    assert [host for host in scene.hosts if scene.rect_of_rack(host).intersects(pills[0])] == []


def edges(scene: TopologyScene) -> list[EdgeItem]:
    return [item for item in scene.items() if isinstance(item, EdgeItem)]


def test_a_label_is_broken_between_words_to_fit_a_gutter(qapp: object) -> None:
    assert wrapped_label("every 50 steps", 70) == ["every 50", "steps"]
    assert wrapped_label("every 50 steps", 200) == ["every 50 steps"]
    assert wrapped_label("f = 8", 70) == ["f = 8"]


def test_the_legend_explains_no_edge_that_a_single_host_has_not() -> None:
    assert entries_of(wiring(planned(Kind.ALL_REDUCE, 2, 0))) == []
