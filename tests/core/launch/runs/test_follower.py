"""Tests of following a run's journal through a daemon's messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from torchyard_agent.daemon import subscriptions
from torchyard_agent.daemon.runs import Runs
from torchyard_agent.protocol import paths
from torchyard_agent.unix_socket_rpc import Connection
from torchyard_core.errors import RunFailed
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.runs.follower import Follower

RUN = "20261122-090000-aaaa"


class Desktop:
    """A desktop's connection to the daemon that records what the daemon sends."""

    closed = False

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self.sent.append(params)


class Link:
    """A link that delivers all messages from a daemon immediately."""

    host = "gpu-a"

    def __init__(self, sent: list[dict[str, Any]]) -> None:
        self._sent = sent
        self._take: Callable[[dict[str, Any]], None] = lambda message: None

    def listen(self, method: str, take: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        self._take = take
        return lambda: None

    def on_close(self, callback: Callable[[], None]) -> None:
        pass

    def call(self, method: str, params: dict[str, Any]) -> None:
        for message in self._sent:
            self._take(message)


def sent_by_daemon(folder: Path, entries: int, *, ended: bool) -> list[dict[str, Any]]:
    """Returns the messages about the journal of a run whose keeper has exited, with or without recording the run's
    end.
    """
    run = Path(paths.run_dir(str(folder), "gpu-a", RUN))
    run.mkdir(parents=True)
    common = {"epoch": "e", "time": "2026-11-22T09:00:00Z"}
    lines = [{**common, "seq": seq, "event": "report", "replica": "worker-0", "step": seq} for seq in range(1, entries)]
    end = {"event": "run_ended", "run_id": RUN, "state": "succeeded", "reason": "", "replicas": []}
    lines.append({**common, "seq": entries, **(end if ended else {"event": "run_state", "state": "running"})})
    (run / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    desktop = Desktop()
    asyncio.run(subscriptions.follow_state(cast("Connection", desktop), Runs(str(folder), "gpu-a"), RUN, None))
    return desktop.sent


def followed(sent: list[dict[str, Any]]) -> list[str]:
    link = cast("AgentLink", Link(sent))
    follower = Follower(RUN, link, lambda host: link, with_telemetry=False)
    return [event["event"] for event in follower.events() if event is not None]


@pytest.mark.parametrize("is_older", [False, True])
def test_a_long_journal_of_a_run_that_has_ended_is_followed_to_its_end(tmp_path: Path, is_older: bool) -> None:
    sent = sent_by_daemon(tmp_path, 2 * subscriptions.BATCH + 1, ended=True)
    assert len(sent) == 4
    assert [message["alive"] for message in sent] == [True, True, True, False]
    if is_older:  # Older daemons sent `alive: false` with each batch of events.
        sent = [{**message, "alive": False} for message in sent]
    events = followed(sent)
    assert len(events) == 2 * subscriptions.BATCH + 1
    assert events[-1] == "run_ended"


def test_where_the_journal_has_no_end_the_keeper_has_died(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"the keeper of run .* on gpu-a is gone"):
        followed(sent_by_daemon(tmp_path, 3, ended=False))


def test_a_run_whose_job_slurm_has_ended_says_so(tmp_path: Path) -> None:
    *others, last = sent_by_daemon(tmp_path, 3, ended=False)
    with pytest.raises(RunFailed, match=f"run {RUN} is over: Slurm ended its job 18: CANCELLED"):
        followed([*others, {**last, "died": "Slurm ended its job 18: CANCELLED"}])


def test_missing_telemetry_of_a_run_on_a_cluster_is_reported_once_and_when_it_is_back() -> None:
    link = cast("AgentLink", Link([]))
    follower = Follower(RUN, link, lambda host: link)
    reasons: tuple[str, ...] = ("", "no step", "no route", "", "no step")
    samples = ({"time": 1.0, "missing": {RUN: reason} if reason else {}, "reports": {}} for reason in reasons)
    events = [event for sample in samples for event in follower._reports(sample)]
    assert [(event["event"], event["host"], event["state"]) for event in events] == [
        ("telemetry", "gpu-a", "missing"),
        ("telemetry", "gpu-a", "back"),
        ("telemetry", "gpu-a", "missing"),
    ]
    assert events[0]["reason"] == "no step"
