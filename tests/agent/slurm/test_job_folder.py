"""Tests of the journal of a run whose job Slurm interrupts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchyard_agent.slurm import job_folder


def journal(folder: Path, *entries: tuple[int, dict[str, Any]]) -> None:
    """Writes a journal from (seconds, event) pairs."""
    folder.mkdir(parents=True)
    common = {"epoch": "e", "seq": 1}
    lines = [{**common, "time": f"2026-11-28T20:00:{at:02d}.500Z", **entry} for at, entry in entries]
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def state(name: str) -> dict[str, Any]:
    return {"event": "run_state", "state": name}


INTERRUPTED = {"event": "interrupted", "job": "7", "restart": 0, "cause": "PREEMPTED"}


def test_an_interruption_is_journaled_once_and_makes_the_run_wait(tmp_path: Path) -> None:
    for _ in range(2):
        job_folder.journal_interruption(str(tmp_path), "r", "7", 0, "PREEMPTED", {"worker-0": {"step": 76}})
    view = job_folder.view(str(tmp_path), "r")
    assert [(one["job"], one["restart"], one["cause"]) for one in view["interruptions"]] == [("7", 0, "PREEMPTED")]
    assert view["state"] == "waiting"
    assert view["reason"].startswith("PREEMPTED: ")
    assert view["metrics"]["worker-0"]["step"] == 76, "the last step, which is not that of the last report"


def test_the_last_stop_is_that_of_the_newest_run_that_saved_before_its_interruption(tmp_path: Path) -> None:
    assert job_folder.last_stop(str(tmp_path / "missing")) is None
    journal(tmp_path / "a", (0, state("running")), (1, state("stopping")), (9, state("waiting")), (9, INTERRUPTED))
    again = (20, state("running")), (30, state("stopping")), (42, state("waiting")), (42, INTERRUPTED)
    journal(tmp_path / "b", (1, state("stopping")), (5, INTERRUPTED), *again)
    journal(tmp_path / "c", (1, state("running")), (5, INTERRUPTED))
    journal(tmp_path / "d", (1, state("stopping")), (5, state("stopped")))
    assert job_folder.last_stop(str(tmp_path)) == {"run_id": "b", "seconds": 12.0}
