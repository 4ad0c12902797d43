"""Tests of the queue: one call to `squeue` for all runs and sessions, back-off after failures, and forgotten jobs."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.slurm import interruption
from torchyard_agent.slurm.job_queue import Job, JobQueue, accounted_state, show

SQUEUE = """#!/bin/sh
echo "$@" >> {calls}
test -e {fails} && exit 1
echo "7|torchyard-20260101-000000-aaaa|RUNNING|None|N/A|n1|$(id -un)|N/A|"
echo "8+0|torchyard-20260101-000000-bbbb|PENDING|Resources|4102444800||$(id -un)|N/A|"
echo "9|torchyard-20260101-000000-cccc|RUNNING|None|1700000000|n2|kim|1700003600|"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The calls to the stand-in for `squeue`, which fails while a file named `fails` exists in the same folder."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "squeue"
    program.write_text(SQUEUE.format(calls=tmp_path / "calls", fails=tmp_path / "fails"))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return tmp_path / "calls"


def test_all_sessions_share_one_call_with_all_runs(calls: Path, tmp_path: Path) -> None:
    async def look() -> tuple[JobQueue, JobQueue]:
        one, other = JobQueue(str(tmp_path)), JobQueue(str(tmp_path))
        for _ in range(20):
            await one.refresh()
            await other.refresh()
        return one, other

    for queue in asyncio.run(look()):
        running, waiting = queue.job("20260101-000000-aaaa"), queue.job("20260101-000000-bbbb")
        assert running is not None
        assert (running.state, running.nodes) == ("RUNNING", "n1")
        assert waiting is not None
        assert waiting.is_pending
        assert queue.job("20260101-000000-cccc") is None
    (call,) = calls.read_text().splitlines()
    assert "-O JobArrayID:|,Name:|" in call


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_sweep_of_which_a_trial_has_nodes_does_not_wait(tmp_path: Path, order: tuple[int, int]) -> None:
    """A job has the name of the sweep until its trial begins."""
    name = "torchyard-20260101-000000-aaaa"
    rows = [["9_[3-6%2]", name, "PENDING", "JobArrayTaskLimit", "N/A", ""], ["9_1", name, "RUNNING", "None", "1", "n1"]]
    queue = JobQueue(str(tmp_path))
    queue._use(1.0, [rows[number] for number in order])
    found = queue.job("20260101-000000-aaaa")
    assert found is not None
    assert found.job_id == "9_1"


def test_a_job_that_is_shown_of_an_array_is_one_that_has_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol = tmp_path / "scontrol"
    waiting = "JobId=9 ArrayJobId=9 ArrayTaskId=3-6%2 JobState=PENDING Reason=JobArrayTaskLimit"
    running = "JobId=10 ArrayJobId=9 ArrayTaskId=1 JobState=RUNNING Reason=None"
    scontrol.write_text(f"#!/bin/sh\necho '{waiting}'\necho '{running}'\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = asyncio.run(show("9"))
    assert found is not None
    assert (found.job_id, found.state) == ("9_1", "RUNNING")


def test_one_call_covers_the_jobs_of_all_users_while_a_calendar_is_wanted(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard_agent.slurm.job_queue.EVERY_S", 0.05)

    async def look() -> list[list[str]]:
        queue = JobQueue(str(tmp_path))
        await queue.refresh()
        found = await queue.everyone()
        assert queue.job("20260101-000000-aaaa") is not None
        assert queue.job("20260101-000000-cccc") is None  # The run of another user.
        other = JobQueue(str(tmp_path))
        assert await other.everyone() == found
        return found

    found = asyncio.run(look())
    assert ["9", "torchyard-20260101-000000-cccc", "RUNNING", "1700000000", "n2", "kim", "1700003600"] in found
    first, *others = calls.read_text().splitlines()
    assert " -u " in first
    assert others
    assert not [call for call in others if " -u " in call]


def test_a_failing_controller_is_asked_less_often(calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchyard_agent.slurm.job_queue.EVERY_S", 0.05)
    (tmp_path / "fails").touch()

    async def look() -> JobQueue:
        queue = JobQueue(str(tmp_path))
        for _ in range(100):
            assert not await queue.refresh()
            await asyncio.sleep(0.01)
        return queue

    queue = asyncio.run(look())
    assert queue.as_of == 0
    assert 2 <= len(calls.read_text().splitlines()) <= 6


def test_a_calendar_without_an_answer_has_slurm_s_error(calls: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "squeue"
    program.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n")
    with pytest.raises(RpcError, match="squeue: slurm_load_jobs error: Unable to contact slurm controller"):
        asyncio.run(JobQueue(str(tmp_path)).everyone())


@pytest.mark.parametrize(
    ("printed", "state"),
    [
        ("REQUEUED\nOUT_OF_MEMORY\n", "OUT_OF_MEMORY"),
        ("CANCELLED by 1000\n", "CANCELLED"),
        ("", ""),
        (None, ""),
    ],
)
def test_accounting_knows_the_state_of_a_forgotten_job(
    calls: Path, tmp_path: Path, printed: str | None, state: str
) -> None:
    program = tmp_path / "bin" / "sacct"
    (tmp_path / "printed").write_text(printed or "")
    program.write_text("#!/bin/sh\nexit 1\n" if printed is None else f"#!/bin/sh\ncat {tmp_path / 'printed'}\n")
    program.chmod(0o755)
    assert asyncio.run(accounted_state("4711")) == state


def test_the_sentence_about_a_waiting_job_has_slurm_s_reason_as_words() -> None:
    job = Job("7", "PENDING", "(ReqNodeNotAvail,_May_be_reserved_for_other_job)", None, "")
    assert job.sentence == "job 7 waits in the queue: ReqNodeNotAvail, May be reserved for other job"


@pytest.mark.parametrize(("state", "left_s"), [("RUNNING", 60.0), ("SIGNALING", 60.0), ("COMPLETING", 5.0)])
def test_a_job_to_which_slurm_is_sending_a_signal_has_the_time_until_its_end(state: str, left_s: float) -> None:
    job = Job("7", state, "None", 1000.0, "n1", end=1060.0)
    assert interruption.time_left(job, 5.0, 1000.0) == left_s
