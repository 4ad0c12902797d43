"""Tests that a run that has ended shows its last values and the reason for its end, and no value as unknown."""

from __future__ import annotations

import re
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.core.examples import host
from tests.gui.runs.conftest import MakePage
from tests.gui.runs.fake_hosts import BEGAN, Acting
from torchyard_core.formatting import utc_timestamp
from torchyard_core.home import Home
from torchyard_gui.runs.labels import clock
from torchyard_gui.runs.page import RunsPage

REASON = "worker-1: CUDA out of memory"


def note_failed(run: Acting, home: Home) -> None:
    """Writes this computer's record of a failed run, whose hosts are unreachable."""
    replicas = [
        {"name": one.name, "host": one.host, "state": "failed", "exit_code": 1, "restarts": 0}
        if one.name in ("worker-0", "worker-1")
        else {"name": one.name, "host": one.host, "state": "stopped", "exit_code": -15, "restarts": 0}
        for one in run.plan.replicas
    ]
    metrics = {
        "chief-0": {"step": 41920, "loss": 0.4127, "throughput": 100.0},
        "worker-0": {"step": 41919, "loss": 0.5, "throughput": 50.0},
    }
    run.note(home, "failed", 60, reason=REASON, ended=utc_timestamp(BEGAN + 60), replicas=replicas, metrics=metrics)
    run.down.update(run.hosts)


def open_failed(home: Home, run: Acting, make_page: MakePage) -> RunsPage:
    note_failed(run, home)
    page = make_page(run)
    assert page.feed is not None
    return page


def test_the_last_values_are_shown_and_called_so(home: Home, run: Acting, make_page: MakePage) -> None:
    page = open_failed(home, run, make_page)
    plots = page.run_view.side.plots
    assert plots["throughput"].accessibleName() == "Throughput, last: 150 samples/s"
    assert plots["throughput"].sentence == "From 2 of 4 replicas; no history"
    assert plots["loss"].accessibleName() == "Loss, last: 0.4127"
    assert plots["loss"].sentence == "Only the last value was kept"
    assert plots["use"].sentence == "Not recorded on this computer"
    assert "step 41,920" in page.bar.state.text()
    page.run_view.choose(["worker-0"])
    assert plots["loss"].accessibleName() == "Loss, worker-0, last: 0.5000"
    page.run_view.choose(["worker-2"])
    assert plots["loss"].sentence == "Not reported"
    page.actions_.plots.trigger()
    assert page.run_view.plots.nothing.isVisible()
    assert "history was not kept" in page.run_view.plots.nothing.sentence.text()


def test_the_first_cause_heads_what_needs_you_and_is_on_its_chip(home: Home, run: Acting, make_page: MakePage) -> None:
    page = open_failed(home, run, make_page)
    needs = page.run_view.side.needs.needs
    assert [need.title for need in needs] == ["worker-1 failed", "worker-0 failed"]
    assert needs[0].detail == "CUDA out of memory\non gpu-b"
    assert needs[1].detail.startswith("exit code 1")
    assert page.feed is not None
    assert page.feed.live_state_of("worker-1").cause == "out of memory"
    assert page.run_view.log.replica.currentText() == "worker-1"


def test_racks_of_an_ended_run_say_when_it_ended_and_nothing_of_their_gpus(
    home: Home, run: Acting, make_page: MakePage
) -> None:
    page = open_failed(home, run, make_page)
    note = page.run_view.scene._hosts["gpu-a"].note
    assert note.startswith("ended ")
    assert note.endswith(clock(BEGAN + 60))
    assert page.run_view.scene._hosts["gpu-a"].state == "idle"


def test_when_it_began_and_ended_is_among_the_events(home: Home, run: Acting, make_page: MakePage) -> None:
    page = open_failed(home, run, make_page)
    assert page.run_view.side.timeline.texts == [f"failed: {REASON}", "starting"]


def test_where_its_host_answers_the_journal_has_the_curves(
    qtbot: Any, home: Home, run: Acting, make_page: MakePage
) -> None:
    run.start()
    for second in range(5, 60, 5):
        for replica in run.plan.replicas:
            numbers = {"step": second, "loss": 10 / second, "throughput": 70}
            run.play("report", float(second), replica=replica.name, **numbers)
    run.end("succeeded", "")
    metrics = {"chief-0": {"step": 55, "loss": 10 / 55, "throughput": 70.0}}
    run.note(home, "succeeded", 60, ended=utc_timestamp(BEGAN + 60.1), metrics=metrics)
    page = make_page(run)
    plots = page.run_view.side.plots
    # The journal arrives in parts, of which the last contains the end of the run. No event may be listed twice.
    qtbot.waitUntil(lambda: page.run_view.side.timeline.texts == ["succeeded", "running", "starting"])
    qtbot.waitUntil(lambda: plots["loss"].has_line)
    assert plots["loss"].sentence == ""
    assert plots["throughput"].accessibleName() == "Throughput, last: 280 samples/s"
    page.actions_.plots.trigger()
    assert len(page.run_view.plots.curve("loss", "worker-1").getData()[1]) == 11


def test_a_run_that_ended_before_ones_eyes_keeps_the_sum_of_all(qtbot: Any, page: RunsPage, run: Acting) -> None:
    run.measure(10)
    plots = page.run_view.side.plots
    qtbot.waitUntil(lambda: plots["throughput"].accessibleName().endswith("samples/s"))
    run.play("replica_state", 30, replica="worker-0", host="gpu-a", state="succeeded", exit_code=0)
    run.end("succeeded", "")
    qtbot.waitUntil(lambda: "Throughput, last" in plots["throughput"].accessibleName())
    assert page.feed is not None
    assert page.feed.picture.total("throughput") == sum(
        track.ring.last("throughput") or 0 for track in page.feed.picture.tracks.values()
    )


def test_a_run_without_a_failed_replica_needs_you_too(home: Home, make_page: MakePage) -> None:
    run = Acting((host("gpu-a", 1),), "{name: w, role: worker, replicas: 1, gpus: 1}")
    run.note(home, "failed", 60, reason="its keeper died")
    run.down.add("gpu-a")
    page = make_page(run)
    (need,) = page.run_view.side.needs.needs
    assert (need.title, need.detail) == ("The run failed", "its keeper died")


def test_events_are_read_and_opened_by_keys(qtbot: Any, page: RunsPage, run: Acting) -> None:
    run.fail("worker-1", "exited with 1: ValueError: bad")
    timeline = page.run_view.side.timeline
    qtbot.waitUntil(lambda: len(timeline.texts) >= 4)
    timeline.setFocus(Qt.FocusReason.TabFocusReason)
    assert "failed" in timeline.accessibleDescription()
    with qtbot.waitSignal(timeline.opened) as opened:
        QTest.keyClick(timeline, Qt.Key.Key_Down)
        QTest.keyClick(timeline, Qt.Key.Key_Return)
    assert opened.args == ["worker-1"]
    said = timeline.accessibleDescription()
    assert re.match(r"\d\d:\d\d:\d\d worker-1 on gpu-b failed", said), "the time has seconds"
    assert page.run_view.log.is_open
