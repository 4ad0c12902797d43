"""Tests of the jobs of a sweep, with stand-ins for Slurm's commands."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.slurm import job_folder, sweep_jobs

SHOWN = """\
JobId=24 ArrayJobId=24 ArrayTaskId=3-9%2 JobState=PENDING Reason=JobArrayTaskLimit
JobId=26 ArrayJobId=24 ArrayTaskId=2 JobState=RUNNING Reason=None
JobId=25 ArrayJobId=24 ArrayTaskId=1 JobState=COMPLETED Reason=None
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-ins, with their calls in the file `calls`, and a sweep's job folder `run/job`."""
    (tmp_path / "bin").mkdir()
    for name, text in {
        "sbatch": f"wc -l < {tmp_path}/calls",
        "scancel": "exit 0",
        "scontrol": f"cat {tmp_path}/shown || exit 1",
    }.items():
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\n{text}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (tmp_path / "run" / "job").mkdir(parents=True)
    return tmp_path


def calls(slurm: Path) -> list[str]:
    return (slurm / "calls").read_text().replace(f"{slurm}/run/job/", "").splitlines()


def test_single_jobs_follow_the_earlier_ones_so_that_only_as_many_run_side_by_side(slurm: Path) -> None:
    folder = str(slurm / "run" / "job")
    sweep = {"is_array": False, "jobs": 4, "parallel": 2}
    job_folder.write(folder, "job.json", {"sweep": sweep})
    asyncio.run(sweep_jobs.submit(folder, sweep))
    assert calls(slurm) == [
        "sbatch --parsable --output=element-1.log job.sh 1",
        "sbatch --parsable --output=element-2.log job.sh 2",
        "sbatch --parsable --dependency=afterany:1 --output=element-3.log job.sh 3",
        "sbatch --parsable --dependency=afterany:2 --output=element-4.log job.sh 4",
    ]
    assert sweep_jobs.ids(folder) == ["1", "2", "3", "4"]
    assert sweep_jobs.submission(str(slurm / "run"), 3)[-1] == "3"


def test_a_stop_cancels_what_waits_and_signals_what_runs(slurm: Path) -> None:
    run_dir, folder = str(slurm / "run"), str(slurm / "run" / "job")
    sweep = {"is_array": True, "jobs": 9, "parallel": 2}
    job_folder.write(folder, "job.json", {"sweep": sweep})
    asyncio.run(sweep_jobs.submit(folder, sweep))
    (slurm / "shown").write_text(SHOWN)
    assert [job.job_id for job in asyncio.run(sweep_jobs.live(run_dir))] == ["24_[3-9%2]", "24_2"]
    asyncio.run(sweep_jobs.end_jobs(run_dir))
    asyncio.run(sweep_jobs.end_jobs(run_dir, force=True))
    assert [line for line in calls(slurm) if line.startswith("scancel")] == [
        "scancel --state=PENDING 1",
        "scancel --batch --signal=USR2 --state=RUNNING 1",
        "scancel 1",
    ]
    assert sweep_jobs.submission(run_dir, 3) == ["--array=3", f"{folder}/job.sh"]


def test_a_sweep_is_not_taken_for_ended_while_slurm_does_not_answer(slurm: Path) -> None:
    job_folder.note_submission(str(slurm / "run" / "job"), "24")
    with pytest.raises(RpcError):
        asyncio.run(sweep_jobs.live(str(slurm / "run")))
