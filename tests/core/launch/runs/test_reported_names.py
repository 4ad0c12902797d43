"""Tests that the custom metrics of a script reach the command, but malicious names from a host do not."""

from __future__ import annotations

from typing import Any, cast

from torchyard_agent.protocol import journal_replay
from torchyard_core.launch.runs.follower import Follower
from torchyard_core.launch.runs.history import fields_at_end

RUN = "20261122-000000-abcd"


def entry(seq: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"epoch": "e", "seq": seq, "time": "2026-11-22T00:00:00.000Z", "event": kind, **fields}


def test_the_journal_keeps_names_of_a_scripts_own_apart_from_its_words() -> None:
    custom = {"epoch": 3.0, "accuracy": 0.5, "step": 99.0, "\x1b[2J": 1.0, "text": "no number"}
    events = [
        entry(1, "report", replica="worker-0", step=1, loss=2.0, throughput=None, custom=custom),
        entry(2, "report", replica="worker-0", step=2, loss=None, throughput=None, custom={"accuracy": 0.75}),
    ]
    view = journal_replay.fold(RUN, events)
    assert view["metrics"]["worker-0"] == {"step": 2, "loss": 2.0, "epoch": 3.0, "accuracy": 0.75}
    ended = entry(3, "run_ended", state="succeeded", reason="", metrics={"worker-0": {"accuracy": 0.8, "a b": 1.0}})
    journal_replay.apply(view, ended)
    assert view["metrics"]["worker-0"] == {"accuracy": 0.8}
    assert fields_at_end({**ended, "replicas": [], "timings": {}})["metrics"] == {"worker-0": {"accuracy": 0.8}}


def test_report_events_of_telemetry_have_them() -> None:
    follower = Follower(RUN, cast("Any", None), lambda host: cast("Any", None), with_telemetry=True)
    metrics = {"step": 4, "loss": 0.5, "accuracy": 0.5, "lr": None, "bad name": 1.0}
    sample = {"time": 1_000_000.0, "reports": {f"{RUN}/worker-0": metrics}}
    [event] = follower._reports(sample)
    assert (event["step"], event["custom"]) == (4, {"accuracy": 0.5})
    assert follower.view["metrics"]["worker-0"] == {"step": 4, "loss": 0.5, "accuracy": 0.5, "lr": None}


def test_a_number_that_is_not_finite_replaces_the_last_finite_one() -> None:
    events = [
        entry(1, "report", replica="worker-0", step=1, loss=2.0, throughput=None, custom={"accuracy": 0.5}),
        entry(2, "report", replica="worker-0", step=2, loss=None, throughput=None, not_finite=["loss", "accuracy"]),
    ]
    view = journal_replay.fold(RUN, events)
    assert view["metrics"]["worker-0"] == {"step": 2, "loss": None, "accuracy": None}
    follower = Follower(RUN, cast("Any", None), lambda host: cast("Any", None), with_telemetry=True)
    sample = {"time": 1_000_000.0, "reports": {f"{RUN}/worker-0": {"step": 4, "loss": None, "throughput": 8.0}}}
    [event] = follower._reports(sample)
    assert (event["loss"], event["not_finite"]) == (None, ["loss"])
