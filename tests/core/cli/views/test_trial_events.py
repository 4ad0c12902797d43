"""Tests of the events of trials that `torchyard sweep --json` prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.sweeps.test_trial_table import data, row
from tests.waiting import wait_until
from torchyard_core.cli.views import trial_events
from torchyard_core.cli.views.trial_events import SweepJsonView
from torchyard_core.sweeps.trial_table import SweepTable, read_table

RUN = "s-1"


def trial(number: int, state: str, value: float | None = None, **changes: Any) -> dict[str, Any]:
    return row(number, state, value, **{"run_id": f"{RUN}.{number}", **changes})


class Followed:
    """A view that follows a sweep, whose table the test changes."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self.view = SweepJsonView()
        self.table = read_table(data())
        self._capsys = capsys
        self._events: list[dict[str, Any]] = []

    def read(self) -> SweepTable:
        return self.table

    def change(self, *rows: dict[str, Any]) -> None:
        self.table = read_table(data(*rows))

    def events(self) -> list[dict[str, Any]]:
        self._events += map(json.loads, self._capsys.readouterr().out.splitlines())
        return self._events

    def states(self) -> list[tuple[str, str]]:
        return [(event["trial"], event["state"]) for event in self.events()]


@pytest.fixture
def followed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Followed:
    monkeypatch.setattr(trial_events, "PAUSES_S", (0.01, 0.02, 0.05))
    return Followed(capsys)


def test_each_start_and_end_that_the_log_reports_has_an_event_with_the_details_of_the_table(followed: Followed) -> None:
    view = followed.view
    with view.following(RUN, followed.read):
        followed.change(trial(1, "running"), trial(2, "waiting"))
        view.print_log("coordinator-0", "trial 1 on gpu-a: lr=0.1, c=a")
        wait_until(lambda: followed.states() == [("1", "running")])
        followed.change(trial(1, "complete", 2.0), trial(2, "failed", cause="exit code 1"))
        view.print_log("coordinator-0", "trial 1: loss 2")
        view.print_log("coordinator-0", "trial 2 on gpu-a: lr=0.2, c=a")
        view.print_log("coordinator-0", "trial 2: failed: exit code 1")
        after = [("1", "running"), ("1", "complete"), ("2", "running"), ("2", "failed")]
        wait_until(lambda: followed.states() == after)
        view.show_trials(followed.table, is_last=True)
        view.show({"event": "run_ended"})
    first, *_, last, ended = followed.events()
    assert ended == {"event": "run_ended"}
    assert (first["hosts"], first["params"], first["value"]) == (["gpu-a"], {"lr": 0.1, "c": "a"}, None)
    assert (last["event"], last["run_id"], last["cause"]) == ("trial", "s-1.2", "exit code 1")


def test_the_last_table_completes_the_events_and_an_older_one_adds_none(followed: Followed) -> None:
    """A trial that could not be started has no event of a start. Trials of an earlier sweep have none at all."""
    view = followed.view
    earlier = row(1, "complete", 1.0, run_id="s-0.1")
    older = read_table(data(earlier, trial(2, "running")))
    with view.following(RUN, lambda: None):
        view.print_log("coordinator-0", "trial 2 on gpu-a: lr=0.2, c=a")
        view.print_log("coordinator-0", "the sweep has failed")
        unstarted = trial(3, "failed", cause="it could not be started: no room", hosts=[])
        table = read_table(data(earlier, trial(2, "pruned", 0.5), unstarted, trial(4, "waiting")))
        view.show_trials(table, is_last=True)
        view.show_trials(older)
        assert followed.states() == [("2", "running"), ("2", "pruned"), ("3", "failed")]
    view.show_trials(older)
    assert len(followed.events()) == 3


@pytest.mark.parametrize(("state", "begins"), [("complete", True), ("failed", False)])
def test_an_end_that_the_log_has_not_reported_waits_for_the_start(followed: Followed, state: str, begins: bool) -> None:
    view, table = followed.view, read_table(data(trial(1, state)))
    with view.following(RUN, lambda: None):
        view.show_trials(table)
        assert followed.states() == [("1", "running")] * begins
        view.print_log("coordinator-0", "trial 1 on gpu-a: lr=0.1, c=a")
        view.show_trials(table)
        assert followed.states() == [("1", "running")]
        view.print_log("coordinator-0", f"trial 1: {state}")
        view.show_trials(table)
    assert followed.states() == [("1", "running"), ("1", state)]


def test_a_trial_that_starts_again_on_another_node_has_another_event(followed: Followed) -> None:
    view = followed.view
    with view.following(RUN, lambda: None):
        for hosts, job in (["n1"], "24_1"), (["n1"], "24_1"), (["n2"], "24_1"):
            view.show_trials(read_table(data(trial(1, "running", hosts=hosts, job=job))))
    assert [(event["hosts"], event["job"]) for event in followed.events()] == [(["n1"], "24_1"), (["n2"], "24_1")]


def test_a_requeued_trial_waits_and_starts_again_on_the_same_node(followed: Followed) -> None:
    view = followed.view
    running = trial(1, "running", hosts=["n1"], job="24_1")
    with view.following(RUN, followed.read):
        followed.change(running)
        view.print_log("coordinator-0", "trial 1 on n1: lr=0.1, c=a")
        wait_until(lambda: followed.states() == [("1", "running")])
        view.print_log("coordinator-0", "trial 1: waits again: NODE_FAIL")
        wait_until(lambda: followed.states() == [("1", "running"), ("1", "waiting")])
        view.print_log("coordinator-0", "trial 1 on n1: lr=0.1, c=a")
        wait_until(lambda: followed.states() == [("1", "running"), ("1", "waiting"), ("1", "running")])
        followed.change(trial(1, "complete", 2.0, hosts=["n1"], job="24_1"))
        view.print_log("coordinator-0", "trial 1: loss 2")
        wait_until(lambda: followed.states()[3:] == [("1", "complete")])
    assert [event["cause"] for event in followed.events()] == ["", "NODE_FAIL", "", ""]
