"""Tests of adding workers to a live run with *Add workers …* on the Runs page."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.core.examples import host, topology
from tests.gui.runs.conftest import MakePage
from tests.gui.runs.fake_hosts import Acting
from torchyard_core.app.grow_run import GrowRun
from torchyard_core.errors import RunFailed
from torchyard_core.home import Home
from torchyard_core.launch.growth import AddedWorkers
from torchyard_core.launch.progress import Cancelled
from torchyard_gui.runs.growth import AddWorkersDialog
from torchyard_gui.runs.page import RunsPage

WORKERS = "{name: workers, role: worker, replicas: 2, min_replicas: 1}"


@pytest.fixture
def run() -> Acting:
    """Returns a run to which workers can be added while it trains."""
    hosts = host("gpu-a", 0), host("gpu-b", 0)
    return Acting(hosts, design=topology(WORKERS, strategy="{kind: all_reduce, on_worker_loss: continue}"))


def dialog_of(page: RunsPage) -> AddWorkersDialog:
    page.actions_.grow.trigger()
    return page.findChildren(AddWorkersDialog)[-1]


def test_the_dialog_adds_workers_on_the_chosen_host(
    qtbot: Any, page: RunsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def run(self: GrowRun) -> AddedWorkers:
        asked.append((self._host, self._count, self._pool))
        return AddedWorkers(("worker-2", "worker-3"), 812, 4, 4)

    monkeypatch.setattr(GrowRun, "run", run)
    dialog = dialog_of(page)
    assert [dialog.host.itemText(row) for row in range(dialog.host.count())] == list(page.model.fleet_model.fleet.hosts)
    dialog.host.setCurrentText("gpu-b")
    dialog.count.setValue(2)
    QTest.mouseClick(dialog.buttons.agree, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: "worker-2, worker-3 have joined" in page.run_view.work.text)
    assert asked == [("gpu-b", 2, "workers")]


def test_a_failure_is_shown_and_a_cancellation_leaves_the_run_as_it_was(
    qtbot: Any, page: RunsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: GrowRun) -> AddedWorkers:
        raise RunFailed("gpu-b has no room for 1 more worker.", code="no_room")

    monkeypatch.setattr(GrowRun, "run", fail)
    dialog_of(page).accept()
    qtbot.waitUntil(lambda: "no room" in page.run_view.work.text)
    assert page.run_view.work.kind == "fail"

    cancelled = threading.Event()

    def wait(self: GrowRun) -> AddedWorkers:
        cancelled.wait(30)
        raise Cancelled

    monkeypatch.setattr(GrowRun, "run", wait)
    monkeypatch.setattr(GrowRun, "cancel", lambda self: cancelled.set())
    dialog_of(page).accept()
    qtbot.waitUntil(lambda: page.growing._job is not None and page.growing._job._growing is not None)
    page._cancel_work(0)
    qtbot.waitUntil(lambda: "continues as it was" in page.run_view.work.text)


def test_it_is_offered_for_live_runs_that_can_grow_only(
    qtbot: Any, page: RunsPage, run: Acting, home: Home, make_page: MakePage
) -> None:
    assert page.actions_.grow.isEnabled()
    run.end("succeeded", "")
    qtbot.waitUntil(lambda: not page.actions_.grow.isEnabled())
    other = Acting((host("gpu-a", 2), host("gpu-b", 2)), run_id="20251009-101011-other")
    other.note(home)
    other.start()
    second = make_page(other)
    qtbot.waitUntil(lambda: second.feed is not None and second.feed.picture.plan is not None)
    assert not second.actions_.grow.isEnabled()
