"""Tests of runs on a cluster: the page names the nodes that Slurm has chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.core.examples import host
from tests.gui.page_window import show_page
from tests.gui.runs.fake_hosts import Acting, ActingLink, close, runs_model
from torchyard_core.home import Home
from torchyard_gui.bridge.run_state_types import RunChanges
from torchyard_gui.canvas import labels
from torchyard_gui.canvas.racks.rack_content import racks_of
from torchyard_gui.runs.alerts import alerts_of
from torchyard_gui.runs.page import RunsPage
from torchyard_gui.runs.replica_columns import HOST, NAME
from torchyard_gui.runs.replica_table import ReplicaTable


class OnNodes(Acting):
    """A run on two slots of a cluster, for which Slurm has chosen the nodes n9 and n7."""

    def answer(self, link: ActingLink, method: str, params: dict[str, Any]) -> Any:
        return {"hpc.1": "n9", "hpc.2": "n7"} if method == "run.nodes" else super().answer(link, method, params)


@pytest.fixture
def page(qtbot: Any, home: Home) -> Iterator[RunsPage]:
    """Returns a page with one live run on the cluster, whose replicas are shown in the table."""
    run = OnNodes((host("hpc.1", 2), host("hpc.2", 2)))
    run.note(home)
    run.start()
    model = runs_model(home, run)
    model.fleet_model.cluster_of = lambda host: "hpc"  # type: ignore[method-assign]  # The fleet file has no cluster.
    page, _ = show_page(qtbot, lambda: RunsPage(model), 1200, 800)
    page.list.setFocus()
    qtbot.waitUntil(lambda: page.feed is not None and page.feed.picture.place_of("hpc.1") == "n9")
    page.actions_.table.trigger()
    yield page
    page.close_feeds()
    close(model)


def column(table: ReplicaTable, number: int, role: Qt.ItemDataRole = Qt.ItemDataRole.DisplayRole) -> list[str]:
    model = table.model()
    return [str(model.index(row, number).data(role)) for row in range(model.rowCount())]


def test_the_table_names_nodes_and_is_sorted_grouped_and_filtered_by_them(page: RunsPage) -> None:
    table = page.run_view.table
    horizontal = Qt.Orientation.Horizontal
    assert table.model().headerData(HOST, horizontal, Qt.ItemDataRole.DisplayRole) == "Node"
    assert column(table, HOST) == ["n9", "n9", "n7", "n7"]
    assert column(table, HOST, Qt.ItemDataRole.ToolTipRole)[0] == "n9, which is hpc.1 of this run"
    table.sortByColumn(HOST, Qt.SortOrder.AscendingOrder)
    assert column(table, HOST) == ["n7", "n7", "n9", "n9"]
    for text in ("n7", "hpc.2"):
        page.run_view.search.setText(text)
        assert column(table, HOST) == ["n7", "n7"]
    page.run_view.search.clear()
    QTest.mouseClick(page.run_view.grouping.button("host"), Qt.MouseButton.LeftButton)
    assert [name for name in column(table, NAME) if "(" in name] == ["n9 (2 replicas)", "n7 (2 replicas)"]


def test_a_node_without_gpus_of_the_run_is_not_said_to_have_none(page: RunsPage, monkeypatch: Any) -> None:
    assert page.feed is not None
    picture = page.feed.picture
    monkeypatch.setattr(picture, "_cpus_of", {"n9": 16}.get)
    picture.take_nodes({"hpc.1": "n9", "hpc.2": "n7"}, RunChanges())
    assert [host.cpus for host in picture.plan_hosts] == [16, None]
    assert picture.plan is not None
    replicas = tuple(replace(one, gpus=()) for one in picture.plan.replicas)
    hosts = [replace(host, gpus=()) for host in picture.plan_hosts]
    racks = racks_of(replace(picture.plan, replicas=replicas), hosts)
    assert [labels.gpu_kinds(rack) for rack in racks] == ["", ""]


def test_an_alert_names_the_node_and_the_slot(page: RunsPage) -> None:
    assert page.feed is not None
    page.feed.picture.lost["hpc.2"] = None
    assert [alert.title for alert in alerts_of(page.feed.picture)] == ["hpc.2 (n7) unknown"]
