"""Tests of presets: a click, a drag or the search applies one, one step undoes it, and its edges are on the canvas."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QDragLeaveEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QPushButton

from tests.gui.topology.page_driver import CONTROL, LEFT, Driver
from torchyard_core.topology.model import StrategyKind
from torchyard_core.topology.strategies.registry import all_specs
from torchyard_gui.topology.palette_list import PaletteList
from torchyard_gui.widgets.dialogs import ConfirmationDialog

RETURN = Qt.Key.Key_Return


def names_of(rows: PaletteList) -> list[str]:
    return [rows.item(row).text() for row in range(rows.count())]


def test_the_palette_has_a_preset_for_each_strategy_and_framework(empty: Driver) -> None:
    presets = empty.page.palette_.presets
    assert names_of(presets) == [spec.title for spec in all_specs() if spec.preset is not None]
    frameworks = empty.page.palette_.frameworks
    assert set(names_of(frameworks)) == {
        "FSDP",
        "Mirrored",
        "MultiWorkerMirrored",
        "ParameterServer",
        "Horovod-style",
        "Vertex Reduction Server",
    }
    assert all(rows.item(row).toolTip() for rows in (presets, frameworks) for row in range(rows.count()))


def test_scale_tiers_are_a_group_of_their_own(empty: Driver) -> None:
    tiers = empty.page.palette_.tiers
    assert names_of(tiers) == ["BASIC", "BASIC_GPU", "STANDARD_1", "PREMIUM_1", "CUSTOM"]
    empty.choose(tiers, "standard_1")
    assert empty.counts() == {"chief": 1, "workers": 4, "servers": 3}
    assert [pool.machine for pool in empty.value.pools] == ["n1-highcpu-8", "n1-highcpu-8", "n1-standard-4"]
    assert empty.undo_text() == "Preset STANDARD_1"
    # Tab moves from a heading to the rows below it, although they were created after other widgets.
    head = next(section.head for section in empty.page.palette_.sections if section.rows is tiers)
    head.setFocus()
    empty.keys(Qt.Key.Key_Tab)
    assert tiers.hasFocus()


def test_a_scale_tier_can_be_typed_and_what_does_not_fit_is_hidden(empty: Driver) -> None:
    empty.on_canvas()
    empty.keys(Qt.Key.Key_A)
    # Sections that are rarely used are folded, to make room for the hosts. The search also finds their rows.
    palette = empty.page.palette_
    assert not palette.tiers.isVisible()
    assert not palette.hosts.visibleRegion().isEmpty()
    empty.type("zzz")
    assert palette.nothing.text() == "No match for “zzz”."
    assert palette.nothing.isVisible()
    assert not any(section.isVisible() for section in palette.sections)
    empty.keys(Qt.Key.Key_Escape)
    assert not palette.nothing.isVisible()
    empty.type("premium")
    assert palette.tiers.isVisible()
    assert not palette.presets.isVisible()
    empty.keys(RETURN)
    assert empty.counts() == {"chief": 1, "workers": 19, "servers": 11}


def test_a_click_sets_the_strategy_and_adds_its_pools_in_one_step(empty: Driver) -> None:
    empty.choose(empty.page.palette_.presets, "sandblaster")
    assert empty.value.strategy.kind == "sandblaster"
    assert empty.counts() == {"workers": 3, "servers": 2}
    assert empty.undo_text() == "Preset Sandblaster"
    empty.on_canvas()
    empty.keys(Qt.Key.Key_Z, CONTROL)
    assert empty.value.pools == ()
    assert empty.value.strategy.kind == "none"


def test_a_preset_can_be_dragged_in(empty: Driver) -> None:
    assert empty.drop(empty.page.palette_.presets, "downpour", "")
    assert empty.value.strategy.kind == "downpour"
    assert empty.page.editor.stack.count() == 1


def test_a_preset_can_be_typed(empty: Driver) -> None:
    empty.on_canvas()
    empty.keys(Qt.Key.Key_A)
    empty.type("reduction")
    empty.keys(RETURN)
    assert empty.value.strategy.kind == "reduction_server"
    assert empty.counts() == {"workers": 4, "reducers": 3}, "the fewest that beat the ring"


def test_a_topology_keeps_what_it_has(digits: Driver) -> None:
    digits.choose(digits.page.palette_.presets, "sandblaster")
    assert digits.counts() == {"chief": 1, "workers": 4, "servers": 2}
    assert "  # a short name" in digits.page.document.text
    assert digits.codes() == []


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (StrategyKind.ALL_REDUCE, (1, 0)),
        (StrategyKind.SANDBLASTER, (0, 2)),
        (StrategyKind.REDUCTION_SERVER, (0, 2)),
        (StrategyKind.DOWNPOUR, (0, 2)),
        (StrategyKind.HOGWILD, (1, 0)),
        (StrategyKind.DILOCO, (1, 0)),
    ],
)
def test_the_canvas_draws_the_edges_of_a_preset(empty: Driver, kind: StrategyKind, lines: tuple[int, int]) -> None:
    empty.page.editor.add_preset(kind)
    workers = [name for name in empty.page.scene.names if name.startswith("worker")]
    for number, name in enumerate(workers):
        empty.page.editor.pin([name], "gpu-a" if number < 2 else "gpu-b")
    for name in set(empty.page.scene.names) - set(workers):
        empty.page.editor.pin([name], "gpu-a")
    wiring = empty.page.scene.wiring
    assert (len(wiring.neighbours) + bool(wiring.ring) + bool(wiring.average), len(wiring.trunk)) == lines
    assert empty.page.scene.has_edges
    assert empty.page.view._legend.isVisible()


def test_machine_types_put_the_pools_of_the_selected_replicas_on_their_sizes(digits: Driver) -> None:
    machines = digits.page.palette_.machines
    assert names_of(machines)[:2] == ["standard", "large_model"]
    assert "16 CPUs, 14.4 GB" in machines.item(3).toolTip()
    digits.choose(machines, "complex_model_m")
    assert digits.undo_text() == ""
    assert [pool.machine for pool in digits.value.pools] == [None, None]
    digits.select("worker-1")
    digits.choose(machines, "complex_model_m_gpu")
    workers = digits.value.pools[1]
    assert (workers.machine, workers.cpus, workers.memory_gb) == ("complex_model_m_gpu", 16, 60)
    assert (workers.gpus, workers.gpu_model) == (4, "K80")
    assert digits.value.pools[0].machine is None
    assert digits.undo_text() == "Machine type complex_model_m_gpu"
    digits.choose(machines, "large_model")
    workers = digits.value.pools[1]
    assert (workers.machine, workers.cpus, workers.gpus, workers.gpu_model) == ("large_model", 8, 0, None)
    digits.page.editor.set_pools([1], "gpus", 2, "GPUs")
    digits.choose(machines, "complex_model_l")
    assert digits.value.pools[1].gpus == 2, "the GPUs belong to a user"


def test_a_machine_type_is_dragged_onto_a_replica_a_host_or_the_selection(digits: Driver) -> None:
    def machines_after(target: str) -> list[str | None]:
        assert digits.drop(digits.page.palette_.machines, "complex_model_m", target)
        found = [pool.machine for pool in digits.value.pools]
        digits.page.edits.undo.trigger()
        assert [pool.machine for pool in digits.value.pools] == [None, None]
        return found

    assert digits.where("worker-1").startswith("gpu-a:")
    assert machines_after(digits.where("worker-1")) == [None, "complex_model_m"]
    assert machines_after("gpu-a") == ["complex_model_m", "complex_model_m"]
    digits.select("chief-0")
    assert machines_after("") == ["complex_model_m", None]
    assert machines_after(digits.where("chief-0")) == ["complex_model_m", None]
    # If a machine type is dragged over a host without replicas, the canvas shows an instruction. After the drag,
    # nothing may stay highlighted.
    digits.page.editor.select(())
    digits.page.editor.show_host("cpu-d")
    assert not digits.drop(digits.page.palette_.machines, "complex_model_m", "cpu-d")
    assert "drop it on a replica" in digits.page.view._drop.caption  # type: ignore[union-attr]  # The value is not None in this test.
    QApplication.sendEvent(digits.page.view.viewport(), QDragLeaveEvent())
    assert not digits.page.scene.mark.item.isVisible()


def test_servers_get_no_gpus_of_their_machine_and_it_can_be_typed(empty: Driver) -> None:
    empty.choose(empty.page.palette_.roles, "ps")
    empty.page.editor.select(["ps-0"])
    empty.on_canvas()
    empty.keys(Qt.Key.Key_A)
    empty.type("model_m_p")
    empty.keys(RETURN)
    (servers,) = empty.value.pools
    assert (servers.machine, servers.cpus, servers.gpus, servers.gpu_model) == ("complex_model_m_p100", 16, 0, None)


def answer(driver: Driver, text: str) -> None:
    """Presses a button of the question about replicas that the preset does not use."""
    box = driver.page.findChild(ConfirmationDialog, "preset")
    assert box.windowTitle() == "Remove 3 reducers?"
    assert "Downpour uses no reducers." in " ".join(one.text() for one in box.findChildren(QLabel))
    (button,) = (one for one in box.findChildren(QPushButton) if one.text().replace("&", "") == text)
    QTest.mouseClick(button, LEFT)


@pytest.mark.parametrize(("choice", "reducers"), [("Remove them", 0), ("Keep them", 3), ("Cancel", 3)])
def test_a_preset_offers_to_remove_what_its_strategy_does_not_use(digits: Driver, choice: str, reducers: int) -> None:
    digits.page.editor.set_pools([1], "replicas", 3, "replicas")
    digits.choose(digits.page.palette_.presets, "reduction_server")
    before, text = digits.value, digits.page.document.text
    assert digits.counts()["reducers"] == 3
    digits.choose(digits.page.palette_.presets, "downpour")
    assert digits.value == before
    answer(digits, choice)
    assert digits.counts().get("reducers", 0) == reducers
    assert (digits.value == before) is (choice == "Cancel")
    assert ("strategy-ignores" in digits.codes()) is (choice == "Keep them")
    if choice != "Cancel":
        digits.on_canvas()
        digits.keys(Qt.Key.Key_Z, CONTROL)
        assert digits.value == before
        assert digits.page.document.text == text


def test_the_legend_follows_the_strategy(digits: Driver) -> None:
    digits.page.editor.pin(["worker-3"], "gpu-b:0")
    assert digits.page.view.legend_texts == ["trainers", "all-reduce, synchronous"]
    before = digits.page.scene.hosts
    digits.page.editor.set_strategy("kind", "hogwild", "strategy")
    assert digits.page.scene.hosts == before
    assert "neighbours, asynchronous" in digits.page.view.legend_texts
    digits.page.editor.set_strategy("kind", "none", "strategy")
    assert digits.page.view.legend_texts == []
