"""Tests that the page shows why a run restarts, which hosts it waits for and how long, and how often each replica has
restarted.
"""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.gui.bridge.test_run_state import picture_of, tell
from tests.gui.runs.fake_hosts import BEGAN, Acting
from torchyard_gui.bridge.run_state_types import RunChanges, TimelineEvent, WaitingForHosts, waiting_for
from torchyard_gui.canvas import labels as canvas_words
from torchyard_gui.canvas.racks.rack_content import racks_of
from torchyard_gui.runs.alerts import alerts_of
from torchyard_gui.runs.labels import clock, moment_in_words, moment_mark
from torchyard_gui.runs.page import RunsPage
from torchyard_gui.runs.replica_columns import STATE

CAUSE = "worker-1 on gpu-b: exited with 1: RuntimeError: bad batch"
LOST = "gpu-b was lost: not heard of for 10 s"


def state(run: Acting, name: str, at: float, how: str, **more: Any) -> None:
    host = next(replica.host for replica in run.plan.replicas if replica.name == name)
    run.play("replica_state", at, replica=name, host=host, state=how, exit_code=None, restarts=0, **more)


def restart(run: Acting, at: float = 20.0, generation: int = 1, cause: str = CAUSE) -> None:
    """Ends all replicas, and begins to restart the gang."""
    for replica in run.plan.replicas:
        why = {"reason": cause.partition(": ")[2]} if cause.startswith(replica.name) else {}
        state(run, replica.name, at, "failed" if why else "stopped", **why)
    run.play("gang_restart", at + 1, gang="trainers", generation=generation, cause=cause)
    run.play("run_state", at + 1, state="restarting", reason=cause)


def up_again(run: Acting, at: float, generation: int = 1) -> None:
    for replica in run.plan.replicas:
        where = {"replica": replica.name, "host": replica.host, "exit_code": None, "restarts": generation}
        run.play("replica_state", at, state="running", **where)
    run.play("run_state", at, state="running")


def lose_gpu_b(run: Acting, at: float = 20.0) -> float:
    """Simulates the loss of a host that the run waits for; returns the time until which the run waits."""
    for replica in run.plan.replicas:
        if replica.host == "gpu-b":
            state(run, replica.name, at, "lost", reason=LOST)
        else:
            state(run, replica.name, at, "stopped")
    run.play("gang_restart", at + 1, gang="trainers", generation=1, cause=LOST)
    run.play("run_state", at + 1, state="restarting", reason=LOST)
    wait = f"{LOST}; waiting up to 600 s for gpu-b to come back"
    until = BEGAN + at + 2 + 600
    told = {"hosts": ["gpu-b"], "until": until, "cause": LOST}
    run.play("run_state", at + 2, state="restarting", reason=wait, waiting_for=told)
    return until


def test_what_a_run_waits_for_is_told_apart_from_its_reason() -> None:
    told = {"hosts": ["gpu-b", "gpu-c"], "until": "1970-01-01T00:02:40.000Z", "cause": "gpu-b was lost: x"}
    assert waiting_for(told) == WaitingForHosts("gpu-b was lost: x", "gpu-b and gpu-c", 160.0)
    assert waiting_for(None) is None
    assert waiting_for({**told, "until": "soon"}) is None


def test_a_restart_is_told_with_its_cause_and_then_is_over() -> None:
    run = Acting()
    run.start()
    restart(run)
    picture = picture_of(run)
    tell(picture, run)
    assert (picture.state, picture.reason, picture.restarts) == ("restarting", CAUSE, 1)
    assert [need.title for need in alerts_of(picture)] == ["worker-1 failed"]
    assert moment_in_words(picture.moments[-2]) == f"trainers, restart 1: {CAUSE}"

    up_again(run, 30)
    restart(run, 40, generation=2)
    up_again(run, 50, generation=2)
    tell(picture, run)
    assert (picture.state, picture.reason, picture.restarts) == ("running", "", 2)
    assert {track.restarts for track in picture.tracks.values()} == {2}
    assert alerts_of(picture) == []
    assert sum(moment.kind == "restart" for moment in picture.moments) == 2


def test_a_lost_host_is_waited_for_until_a_time() -> None:
    run = Acting()
    run.start()
    until = lose_gpu_b(run)
    picture = picture_of(run)
    tell(picture, run)
    assert picture.waiting == WaitingForHosts(LOST, "gpu-b", until)
    needs = alerts_of(picture)
    assert [need.title for need in needs] == ["Waiting for gpu-b"]
    assert clock(until, exact=True) in needs[0].detail
    # The page shows both the restart and the wait.
    told = [moment_in_words(moment) for moment in picture.moments[-2:]]
    assert told == [f"restarting: {LOST}", f"restarting: waiting for gpu-b until {clock(until, exact=True)}"]
    # A later report must not change the time that is shown.
    run.play("report", 100, replica="chief-0", step=1)
    tell(picture, run)
    assert picture.waiting.until == until


def test_the_page_shows_the_restart_and_leads_to_the_log(qtbot: Any, page: RunsPage, run: Acting) -> None:
    run.logs["worker-1"] = b"RuntimeError: bad batch\n"
    restart(run)
    view = page.run_view
    qtbot.waitUntil(lambda: view.notice.isVisible())
    assert view.notice.text == f"The run restarts: {CAUSE}."
    assert view.notice.kind == "warn"
    assert page.bar.state.text() == "restarting · 1 restart"
    assert view.side.timeline.texts[:2] == [f"restarting: {CAUSE}", f"trainers, restart 1: {CAUSE}"]
    QTest.mouseClick(view.notice.buttons[0], Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: "RuntimeError: bad batch" in view.log.view.shown_lines)

    up_again(run, 30)
    qtbot.waitUntil(lambda: not view.notice.isVisible())
    assert "running" in page.bar.state.text()
    assert page.bar.state.text().endswith("1 restart")
    page.actions_.table.trigger()
    model = view.table.model()
    assert model.index(0, STATE).data() == "running, 1 restart"
    chip = next(chip for rack in racks_of(run.plan, run.facts) for chip in rack.chips if chip.name == "worker-0")
    assert page.feed is not None
    assert "restarted once" in canvas_words.described(chip, page.feed.live_state_of("worker-0"))


def test_the_page_says_for_whom_it_waits(qtbot: Any, page: RunsPage, run: Acting) -> None:
    until = lose_gpu_b(run)
    bar = page.bar
    qtbot.waitUntil(lambda: "waiting" in bar.state.text())
    time = clock(until, exact=True)
    assert bar.state.text() == f"restarting · waiting for gpu-b until {time} · 1 restart"
    assert page.run_view.notice.text == f"The run restarts: {LOST}. It waits for gpu-b until {time}."
    assert not page.run_view.notice.buttons


def test_checkpoints_are_events() -> None:
    run = Acting()
    run.start()
    run.play("checkpoint_saved", 20, checkpoint="step-000000001200")
    run.play("checkpoint_carried", 21, host="gpu-b", checkpoint="step-000000001200")
    run.play("checkpoint_carried", 30, host="gpu-b", checkpoint="step-000000001300-final", problem="its disk is full")
    run.play("checkpoint_carried", 31, host="gpu-a", checkpoint="", problem="internal error")
    picture = picture_of(run)
    tell(picture, run)
    assert [moment_in_words(moment) for moment in picture.moments[-3:]] == [
        "checkpoint at step 1,200 saved",
        "checkpoint at step 1,200 copied to gpu-b",
        "checkpoint at step 1,300 not copied to gpu-b: its disk is full",
    ]


def test_a_worker_that_is_added_has_a_row_and_is_in_the_timeline(qtbot: Any, page: RunsPage, run: Acting) -> None:
    asked = {"by": "kim", "from": "laptop", "what": "grow", "host": "gpu-d", "replicas": ["worker-9", "worker-10"]}
    run.play("asked", 20, **asked)
    where = {"host": "gpu-d", "exit_code": None, "restarts": 0}
    for number, name in enumerate(("worker-9", "worker-10")):
        run.play("replica_state", 20 + number, replica=name, state="pending", **where)
    run.play("replica_state", 22, replica="worker-9", state="running", **where)
    run.play("replica_state", 22, replica="worker-10", state="stopped", reason="no module named x", **where)
    run.play("withdrawal", 22, replica="worker-10", reason="no module named x")
    names = [replica.name for replica in run.plan.replicas if replica.role.trains] + ["worker-9"]
    fields = {"gang": "trainers", "generation": 0, "number": 1, "step": 812, "lost": []}
    run.play("membership", 23, cause="worker-9 has joined", members=names, **fields)
    picture = page.run_view.feed.picture
    qtbot.waitUntil(lambda: any(moment.kind == "membership" for moment in picture.moments))
    assert (picture.tracks["worker-9"].state, picture.tracks["worker-9"].host) == ("running", "gpu-d")
    assert [moment_in_words(moment) for moment in picture.moments[-3:]] == [
        "workers added on gpu-d by kim@laptop",
        "worker-10 was not added: no module named x",
        f"step 812: {len(names)} of {len(names)} workers continue: worker-9 has joined",
    ]
    assert [moment_mark(moment) for moment in picture.moments[-3:]] == ["planned", "failed", "restarting"]
    table = page.run_view.table.replicas
    qtbot.waitUntil(lambda: "worker-9" in {table.index(row, 0).data() for row in range(table.rowCount())})


def test_a_membership_in_words() -> None:
    moment = TimelineEvent(0.0, "membership", reason=CAUSE, step=1812, remaining=3, workers=4)
    assert moment_in_words(moment) == f"step 1,812: 3 of 4 workers continue: {CAUSE}"


def test_missing_telemetry_of_a_run_on_a_cluster_is_an_alert_until_it_is_back_or_the_run_is_over() -> None:
    run = Acting()
    run.start()
    picture = picture_of(run)
    tell(picture, run)
    changes = RunChanges()
    missing = {"event": "telemetry", "host": "hpc.1", "state": "missing", "reason": "no connection to the node"}
    picture.take_event(missing, changes)
    assert changes.run
    (alert,) = alerts_of(picture)
    assert alert.title == "Live telemetry is missing"
    assert alert.detail.startswith("no connection to the node. ")
    picture.take_event({"event": "telemetry", "host": "hpc.1", "state": "back"}, changes)
    assert alerts_of(picture) == []
    picture.take_event(missing, changes)
    run.end("stopped", "stopped by kim")
    tell(picture, run)
    assert alerts_of(picture) == []
