"""Tests that the scene shows plans and states, and keeps items that have not changed."""

from __future__ import annotations

import time

from PySide6.QtCore import QPointF
from PySide6.QtWidgets import QApplication

from tests.gui.canvas import samples
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.topology.model import Role, StrategyKind
from torchyard_gui.canvas.edges.edge_items import EdgeItem
from torchyard_gui.canvas.live_state import HostLiveState, ReplicaLiveState
from torchyard_gui.canvas.racks.rack_item import RackItem
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.view import CanvasView
from torchyard_gui.theme.theme import theme


def racks(scene: TopologyScene) -> dict[str, RackItem]:
    return {item.content.key: item for item in scene.items() if isinstance(item, RackItem)}


def edges(scene: TopologyScene) -> list[EdgeItem]:
    return [item for item in scene.items() if isinstance(item, EdgeItem)]


def test_a_new_scene_is_empty_and_so_is_one_without_a_plan(scene: TopologyScene) -> None:
    assert TopologyScene().is_empty
    assert not scene.is_empty
    scene.show_plan(None)
    assert scene.is_empty
    assert scene.names == []


def test_every_replica_has_a_chip_in_its_hosts_rack(scene: TopologyScene) -> None:
    for name in scene.names:
        chip = scene.chip(name)
        assert chip is not None
        assert scene.rect_of_rack(chip.host).contains(scene.rect_of(name))
        assert scene.replica_at(scene.rect_of(name).center()) == name


def test_an_equal_plan_keeps_the_items_and_moves_nothing(scene: TopologyScene) -> None:
    before = racks(scene)
    contents = {key: item.content for key, item in before.items()}
    drawn, hosts = samples.drawn_example()
    scene.show_plan(drawn, hosts, also=["gpu-d"])
    assert racks(scene) == before
    assert all(before[key].content is content for key, content in contents.items())


def test_another_pin_changes_only_the_racks_that_it_touches(scene: TopologyScene) -> None:
    contents = {key: item.content for key, item in racks(scene).items()}
    drawn, hosts = samples.drawn_example({"chief-0": "gpu-c:1"})
    scene.show_plan(drawn, hosts, also=["gpu-d"])
    changed = [key for key, item in racks(scene).items() if item.content is not contents[key]]
    assert changed == ["gpu-c"]
    assert scene.rect_of("chief-0") == scene.rect_of_slot("gpu-c", 1)


def test_replicas_without_a_place_lie_in_the_tray(scene: TopologyScene) -> None:
    hosts = [samples.host("gpu-a", 2)]
    scene.show_plan(plan(samples.topology(samples.pool("w", Role.WORKER, 3, 1)), hosts), hosts)
    assert scene.hosts == ["gpu-a"]
    rect = scene.rect_of("worker-2")
    assert not rect.isNull()
    assert not scene.rect_of_rack("gpu-a").intersects(rect)
    assert scene.target_at(rect.center()) == "", "the tray is no place to pin to"


def test_all_reduce_has_a_loop_over_hosts_that_train_and_none_has_nothing(scene: TopologyScene) -> None:
    assert {edge.hop.source for edge in edges(scene)} == {"gpu-a", "gpu-b", "gpu-c"}
    hosts = [samples.host("a", 1), samples.host("b", 1)]
    workers = samples.pool("w", Role.WORKER, 2, 1)
    scene.show_plan(plan(samples.topology(workers, kind=StrategyKind.NONE), hosts), hosts)
    assert edges(scene) == []
    scene.show_plan(plan(samples.topology(workers), hosts), hosts)
    assert len(edges(scene)) == 1


def test_a_selection_survives_a_plan_that_still_has_it_and_loses_who_is_gone(scene: TopologyScene, qtbot) -> None:
    scene.set_selection(["worker-3", "worker-1", "nobody"])
    assert scene.selection == ["worker-1", "worker-3"], "in the plan's order"
    hosts = [samples.host("gpu-a", 8)]
    with qtbot.waitSignal(scene.selection_changed) as heard:
        scene.show_plan(plan(samples.topology(samples.pool("w", Role.WORKER, 2, 1)), hosts), hosts)
    assert heard.args == [["worker-1"]]


def test_selecting_the_same_again_emits_no_signal(scene: TopologyScene, qtbot) -> None:
    scene.set_selection(["worker-1"])
    with qtbot.assertNotEmitted(scene.selection_changed):
        scene.set_selection(["worker-1"])


def test_targets_are_slots_racks_or_the_planners_choice(scene: TopologyScene) -> None:
    assert scene.target_at(scene.rect_of_slot("gpu-c", 1).center()) == "gpu-c:1"
    header = scene.rect_of_rack("gpu-c").topLeft() + QPointF(100, 10)
    assert scene.target_at(header) == "gpu-c"
    assert scene.target_at(QPointF(-50, -50)) == ""


def test_only_chips_that_changed_are_painted_again(view: CanvasView, scene: TopologyScene, painted) -> None:
    states, hosts = samples.live_example()
    scene.show_states(states)
    scene.show_hosts(hosts)
    QApplication.processEvents()
    assert painted("gpu-a")
    assert painted("gpu-b")
    scene.show_states(states | {"worker-1": ReplicaLiveState("running", 0.2, "20 %")})
    QApplication.processEvents()
    assert painted("gpu-a") == 1
    assert painted("gpu-b") == 0
    scene.show_states(dict(states))
    scene.show_states(dict(states))
    QApplication.processEvents()
    assert painted("gpu-a") == 1


def test_panning_paints_no_rack_again(view: CanvasView, scene: TopologyScene, painted) -> None:
    QApplication.processEvents()
    painted("gpu-a")
    for _ in range(5):
        view.horizontalScrollBar().setValue(view.horizontalScrollBar().value() + 7)
        QApplication.processEvents()
    assert painted("gpu-a") == 0


def test_a_host_that_does_not_answer_makes_its_replicas_unknown(view: CanvasView, scene: TopologyScene) -> None:
    states, _ = samples.live_example()
    scene.show_states(states)
    scene.show_hosts({"gpu-b": HostLiveState("unknown", "14:21")})
    look = racks(scene)["gpu-b"]._look("worker-8")
    assert look is not None
    assert look.is_unknown
    assert look.stale_since == "14:21"


def test_a_change_of_theme_repaints(view: CanvasView, scene: TopologyScene) -> None:
    light = view.grab().toImage().pixelColor(400, 600)
    theme().set_mode("dark")
    QApplication.processEvents()
    dark = view.grab().toImage().pixelColor(400, 600)
    assert light.lightness() > 200
    assert dark.lightness() < 60


def test_a_thousand_replicas_on_128_hosts_open_within_a_second(qtbot) -> None:
    crowd, fleet = samples.many(128, 1000)
    scene = TopologyScene()
    view = CanvasView(scene)
    qtbot.addWidget(view)
    view.resize(1280, 800)
    begin = time.thread_time()  # CPU time, because wall time depends on other processes.
    view.show()
    scene.show_plan(crowd, fleet)
    QApplication.processEvents()
    assert time.thread_time() - begin < 1.0
    assert len(scene.names) == 1000
