"""Tests of printing and following several logs in chronological order."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from torchyard_core.cli.views import replica_logs
from torchyard_core.cli.views.replica_logs import FollowedLogs, LinePrinter, WaitingRemarks, print_logs
from torchyard_core.launch.runs.logs import LogLine, LogReader

AT = 1_760_000_000.0


class ScriptedLog:
    """A log with lines in the past, and with lines that appear while the log is followed."""

    local_rank = 0

    def __init__(self, replica: str, past: list[float], new: list[float], go_on: threading.Event | None = None):
        self.replica = replica
        self.ended = False
        self._past, self._new = past, new
        self._go_on = go_on

    def lines(self, *, wait: bool) -> Iterator[LogLine]:
        if not wait:
            yield from self._take(self._past)
        elif self._new:
            yield from self._take(self._new)
        else:
            assert self._go_on is None or self._go_on.wait(60)
            self.ended = True

    def _take(self, times: list[float]) -> Iterator[LogLine]:
        while times:
            time = times.pop(0)
            yield LogLine(AT + time, f"line at {time}")


def readers(*logs: ScriptedLog) -> list[LogReader]:
    return cast("list[LogReader]", list(logs))


def test_logs_are_printed_by_time(capsys: pytest.CaptureFixture[str]) -> None:
    logs = readers(ScriptedLog("worker-0", [1, 4], []), ScriptedLog("worker-1", [2, 3], []))
    print_logs(logs, LinePrinter(several=True, as_json=False))
    assert capsys.readouterr().out.splitlines() == [
        "worker-0 | line at 1",
        "worker-1 | line at 2",
        "worker-1 | line at 3",
        "worker-0 | line at 4",
    ]


def test_times_are_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    print_logs(readers(ScriptedLog("worker-0", [0.25], [])), LinePrinter(False, as_json=False, timestamps=True))
    assert capsys.readouterr().out == "2025-10-09T08:53:20.250Z line at 0.25\n"
    print_logs(readers(ScriptedLog("worker-0", [0.25], [])), LinePrinter(False, as_json=True, timestamps=True))
    assert json.loads(capsys.readouterr().out) == {
        "replica": "worker-0",
        "local_rank": 0,
        "line": "line at 0.25",
        "time": "2025-10-09T08:53:20.250Z",
    }


def test_followed_logs_are_merged_by_time_past_and_new(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_logs, "HOLD_S", 600.0)  # No line is printed until all logs have ended.
    logs = readers(ScriptedLog("a", [1, 4], [8]), ScriptedLog("b", [2, 3], [6, 9]), ScriptedLog("c", [], [5, 7]))
    FollowedLogs(lambda: logs, LinePrinter(several=True, as_json=False)).follow()
    printed = [line.rpartition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["1", "2", "3", "4", "5", "6", "7", "8", "9"]


def test_a_new_line_waits_only_a_moment_for_silent_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = threading.Event()
    monkeypatch.setattr(LinePrinter, "show", lambda self, reader, line: printed.set())
    logs = readers(ScriptedLog("a", [], [1]), ScriptedLog("silent", [], [], go_on=printed))
    FollowedLogs(lambda: logs, LinePrinter(several=True, as_json=False)).follow()


def state(name: str, reason: str = "", jobs: tuple[str, ...] = ("7",)) -> dict[str, Any]:
    return {"run_id": "r", "state": name, "reason": reason, "jobs": [{"job_id": job} for job in jobs]}


def test_a_run_that_waits_is_remarked_whenever_its_reason_changes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_logs, "LOOK_AT_STATE_S", 0.0)
    states = [state("waiting", "Priority"), state("waiting", "Resources"), state("running")]
    states += [state("waiting", "PREEMPTED; Resources"), state("running"), state("succeeded")]
    remarks = WaitingRemarks(state("waiting", "Priority"), lambda: states.pop(0))
    while states:
        remarks.look()
    remarks.finish()
    assert capsys.readouterr().err.splitlines() == [
        "run r waiting: Priority",
        "run r waiting: Resources",
        "run r waiting: PREEMPTED; Resources",
    ]


def test_the_end_of_a_run_that_never_started_is_remarked(capsys: pytest.CaptureFixture[str]) -> None:
    WaitingRemarks(state("waiting", "Priority"), lambda: state("stopped", "cancelled")).finish()
    assert capsys.readouterr().err.splitlines() == ["run r waiting: Priority", "run r stopped: cancelled"]


def test_the_state_of_a_run_that_cannot_wait_again_is_not_read() -> None:
    def show() -> dict[str, Any]:
        raise AssertionError

    WaitingRemarks(state("running", jobs=()), show).look()
    WaitingRemarks(state("running"), show).look()
