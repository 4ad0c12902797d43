"""Tests of the names of interruptions, from `scontrol`, the output of the batch program, and accounting."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from torchyard_agent.slurm import interruption
from torchyard_agent.slurm.job_queue import Job

ENDING = Job("7", "COMPLETING", "None", None, "n1", restarts=1)
LINE = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-28T20:31:44 DUE TO {} ***\n"


def test_a_preemption_without_grace_is_told_from_a_requeue_by_the_output_since_the_start(tmp_path: Path) -> None:
    log = tmp_path / interruption.LOG
    log.write_text(LINE.format("PREEMPTION"))
    start = interruption.log_size(str(tmp_path))
    folder = str(tmp_path)
    assert interruption.of_ended(ENDING, 0, folder, start, "TIMEOUT") == "REQUEUED"
    with log.open("a") as file:
        file.write("a line\n" + LINE.format("PREEMPTION"))
    assert interruption.of_ended(ENDING, 0, folder, start, "TIMEOUT") == "PREEMPTED"
    assert interruption.of_ended(ENDING._replace(reason="NodeDown"), 0, folder, start, "TIMEOUT") == "NODE_FAIL"


def test_without_any_trace_the_request_names_the_interruption(tmp_path: Path) -> None:
    running = Job("7", "RUNNING", "None", None, "n1", restarts=0)
    assert interruption.of_ended(running, 0, str(tmp_path), 0, "TIMEOUT") == "TIMEOUT"
    assert interruption.of_ended(None, 0, str(tmp_path), 0, "REQUEUED") == "REQUEUED"


@pytest.mark.parametrize(
    ("accounted", "written", "cause"),
    [
        ("PREEMPTED\nNODE_FAIL\nRUNNING\n", "", "NODE_FAIL"),
        ("PENDING\n", LINE.format("PREEMPTION"), "PREEMPTED"),
        (None, LINE.format("NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"), "NODE_FAIL"),
        (None, "", "REQUEUED"),
    ],
)
def test_a_killed_batch_program_is_explained_by_accounting_or_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accounted: str | None, written: str, cause: str
) -> None:
    (tmp_path / "printed").write_text(accounted or "")
    program = tmp_path / "sacct"
    program.write_text("#!/bin/sh\nexit 1\n" if accounted is None else f"#!/bin/sh\ncat {tmp_path / 'printed'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / interruption.LOG).write_text(written)
    assert asyncio.run(interruption.of_killed("7", str(tmp_path), {"log_start": 0})) == cause
