"""Tests of what `torchyard run` prints with and without a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchyard_core.cli.views.run_progress import JsonView, PlainView

Event = dict[str, Any]
Show = Callable[..., str]


def report(replica: str, **metrics: float | str | None) -> Event:
    """Returns a report event as in the journal. A metric of None is left out."""
    return {"event": "report", "replica": replica, "step": None, "loss": None, "throughput": None, **metrics}


SERVER = report("ps-0", version=12.0, clients=2.0, bytes_s=1000.0)
REDUCER = report("reducer-0", clients=2.0, bytes_s=1000.0)
RUNNING = {"event": "run_state", "state": "running"}


@pytest.fixture(params=["terminal", "pipe"])
def show(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Show:
    """Yields a function that shows events and returns the text on stderr, which may be a terminal."""

    def piped(*events: Event) -> str:
        stream = io.StringIO()
        monkeypatch.setattr("sys.stderr", stream)
        with PlainView() as view:
            for event in events:
                view.show(event)
        return stream.getvalue()

    def on_terminal(*events: Event) -> str:
        master, slave = pty.openpty()
        with os.fdopen(slave, "w", encoding="utf-8") as stream:
            monkeypatch.setattr("sys.stderr", stream)
            monkeypatch.setenv("COLUMNS", "120")
            with PlainView() as view:
                for event in events:
                    view.show(event)
                    view._bars.refresh()  # Without this call, the event could appear up to 0.1 s later.
        written = b""
        while True:
            try:
                written += os.read(master, 65536)
            except OSError:  # This error means that the other end of the pseudo-terminal is closed.
                break
        os.close(master)
        return written.decode()

    return piped if request.param == "pipe" else on_terminal


@pytest.mark.parametrize(
    "event",
    [
        SERVER,
        REDUCER,
        report("evaluator-0"),
        report("evaluator-0", step=3),
        report("worker-0"),
        report("worker-0", loss=0.5),
        report("worker-0", step=0),
        report("worker-0", throughput=12.5),
        {"event": "report", "replica": "chief-0"},
    ],
    ids=lambda event: f"{event['replica']} {[name for name in event if event[name] is not None][2:]}",
)
def test_a_report_may_lack_any_number(show: Show, event: Event) -> None:
    show(RUNNING, event, event)


def test_progress_is_the_first_trainers_whatever_else_reports(show: Show) -> None:
    """Only the first trainer's progress is shown, although evaluator-0 reports earlier and worker-10 later."""
    trainer = report("worker-2", step=7, loss=0.25, throughput=640.0)
    shown = show(RUNNING, SERVER, REDUCER, report("evaluator-0", loss=0.1), trainer, report("worker-10", step=3))

    assert "step 7, loss 0.25, 640 samples/s" in shown
    assert not any(other in shown for other in ("ps-0", "reducer-0", "loss 0.1", "step 3"))


def test_the_throughput_is_that_of_all_trainers(show: Show) -> None:
    shown = show(RUNNING, SERVER, report("chief-0", step=7, throughput=640.0))

    assert "640 samples/s" in shown
    assert "samples/s of" not in shown


def test_the_throughput_of_several_trainers_is_their_sum(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchyard_core.cli.views.run_progress.REPORT_EVERY", 0.0)
    others = report("worker-0", step=7, throughput=600.0), report("ps-0", throughput=5.0)
    shown = show(RUNNING, *others, report("chief-0", step=7, throughput=640.0))

    assert "1,240 samples/s of 2 trainers" in shown


def test_a_loss_that_is_not_finite_is_shown_as_such(show: Show) -> None:
    shown = show(RUNNING, {**report("chief-0", step=7, throughput=640.0), "not_finite": ["loss"]})

    assert "step 7, loss NaN, 640 samples/s" in shown


def test_brackets_in_messages_are_no_style(show: Show) -> None:
    """The library rich interprets text in square brackets as a style, and fails on an unmatched closing tag."""
    check = {"event": "check", "name": "disk", "host": "gpu-a", "ok": True, "message": "room in [/mnt/data]"}

    assert "gpu-a: room in [/mnt/data]" in show(check, RUNNING)


def test_json_is_each_event_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with JsonView() as view:
        for event in (RUNNING, SERVER, report("worker-0")):
            view.show(event)

    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [RUNNING, SERVER, report("worker-0")]


def test_a_lost_worker_is_shown_with_the_number_that_continue(show: Show) -> None:
    lost = {"event": "membership", "number": 1, "step": 812, "members": ["a", "b", "c"], "lost": ["worker-3"]}
    text = show({**lost, "cause": "worker-3 on gpu-b: ended by SIGKILL"})
    assert "step 812: 3 of 4 workers continue: worker-3 on gpu-b: ended by SIGKILL" in text


def test_an_interruption_by_slurm_and_missing_telemetry_are_shown(show: Show) -> None:
    interrupted = {"event": "interrupted", "job": "7", "restart": 0, "cause": "PREEMPTED"}
    missing = {"event": "telemetry", "host": "hpc.1", "state": "missing", "reason": "no way"}
    text = show(RUNNING, interrupted, missing, {"event": "telemetry", "host": "hpc.1", "state": "back"})
    assert "Slurm interrupted job 7: PREEMPTED" in text
    assert "live telemetry is missing: no way" in text
    assert "live telemetry is back" in text


WAITING = {"event": "run_state", "state": "waiting", "reason": "job 18 waits in the queue: Resources"}


class Display:
    """A view on a terminal of 80 columns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self._master, slave = pty.openpty()
        self._stream = os.fdopen(slave, "w", encoding="utf-8")
        monkeypatch.setattr("sys.stderr", self._stream)
        monkeypatch.setenv("COLUMNS", "80")
        self.view = PlainView()

    def line(self) -> str:
        """Returns the line with the state, its note and its clock."""
        bars = self.view._bars
        with bars.console.capture() as captured:
            bars.console.print(bars.get_renderable())
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", captured.get()).splitlines()[0]

    def state_and_begin(self) -> tuple[str, float]:
        """Returns the state, and the time from which its clock counts."""
        (task,) = self.view._bars.tasks
        return task.description, task.start_time

    def close(self) -> None:
        self._stream.close()
        os.close(self._master)


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Iterator[Display]:
    found = Display(monkeypatch)
    with found.view:
        yield found
    found.close()


def test_only_the_note_of_the_status_is_shortened_on_a_narrow_terminal(display: Display) -> None:
    message = "the first trial looks for Optuna on its node; without it, the sweep fails"
    display.view.show({"event": "check", "host": "hpc", "ok": True, "message": message})
    line = display.line()
    assert line.startswith("checking ")
    assert "hpc: the first trial" in line
    assert line.endswith("… 0:00:00")
    assert len(line) <= 80


def test_the_status_is_the_state_of_the_run_and_its_clock_is_not_set_back(display: Display) -> None:
    view = display.view
    view.show({"event": "check", "host": "hpc", "ok": True, "message": "job 18 submitted"})
    view.show({"event": "run_submitted", "run_id": "r"})
    view.show(WAITING)
    waiting = display.state_and_begin()
    view.show({**WAITING, "reason": "job 18 waits in the queue: Priority"})
    assert waiting[0] == "waiting"
    assert display.state_and_begin() == waiting
    view.show(RUNNING)
    state, begin = display.state_and_begin()
    assert state == "running"
    assert begin > waiting[1]
    with view.paused():
        pass
    assert display.state_and_begin() == ("running", begin)
    view.show({"event": "run_state", "state": "stopping"})
    assert display.state_and_begin() == ("stopping", begin)


def test_a_waiting_run_says_for_what(show: Show) -> None:
    reason = "job 18 waits in the queue: Resources"
    assert f"waiting: {reason}" in show({"event": "run_state", "state": "waiting", "reason": reason})
