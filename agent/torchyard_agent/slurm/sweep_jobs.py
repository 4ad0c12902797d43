"""The jobs of a sweep: an array with one element per trial or, if the jobs are heterogeneous, single jobs.

Slurm has no arrays of heterogeneous jobs. If at most N single jobs may run at the same time, each job starts only after
the job N places before it has ended.
"""

from __future__ import annotations

import os
from typing import Any

from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.slurm import job_folder, job_queue, sweep_folder


async def submit(folder: str, sweep: dict[str, Any]) -> None:
    """Submits the jobs of a sweep, and records their IDs. Raises RpcError if a submission fails.

    Args:
        folder: The job folder of the sweep's run.
        sweep: The sweep in `job.json`. Its script describes the array if there is one.
    """
    if sweep["is_array"]:
        job_folder.note_submission(folder, await job_queue.submit(os.path.join(folder, "job.sh")))
        return
    jobs: list[str] = []
    for number in range(1, sweep["jobs"] + 1):
        after = [f"--dependency=afterany:{jobs[-sweep['parallel']]}"] if number > sweep["parallel"] else []
        jobs.append(await job_queue.submit(*after, *_single(folder, number)))
        # Noted after each submission, so that the submitted jobs can be cancelled if a later submission fails.
        job_folder.note_submission(folder, jobs[-1])


def submission(run_dir: str, number: int) -> list[str]:
    """Returns the arguments of `sbatch` for a successor of the sweep's job `number`, which continues its trial."""
    folder = job_folder.path(run_dir)
    if job_folder.read(folder, "job.json")["sweep"]["is_array"]:
        return [f"--array={number}", os.path.join(folder, "job.sh")]
    return _single(folder, number)


def _single(folder: str, number: int) -> list[str]:
    output = os.path.join(folder, f"element-{number}.log")
    return [f"--output={output}", os.path.join(folder, "job.sh"), str(number)]


def ids(folder: str) -> list[str]:
    """Returns the IDs under which the sweep was submitted: that of the array, or those of the single jobs."""
    return [str(job) for job in (job_folder.read(folder, "submitted.json") or {}).get("jobs", [])]


async def end_jobs(run_dir: str, *, force: bool = False) -> None:
    """Cancels the waiting jobs of the sweep, and signals the batch programs of running jobs to stop their trials.

    With `force`, all jobs are cancelled.
    """
    jobs = ids(job_folder.path(run_dir))
    if force:
        await job_queue.cancel(*jobs)
        return
    await job_queue.cancel("--state=PENDING", *jobs)
    await job_queue.cancel("--batch", "--signal=USR2", "--state=RUNNING", *jobs)


async def live(run_dir: str) -> list[job_queue.Job]:
    """Returns the jobs of the sweep that wait or have nodes. Raises RpcError if Slurm does not answer."""
    found = [job for job_id in ids(job_folder.path(run_dir)) for job in await job_queue.show_all(job_id)]
    return [job for job in found if job.is_pending or job.is_active]


def end_lost_trial(trial_dir: str, run_id: str, state: str) -> None:
    """Journals the end of a trial whose job left the queue before the run's end. `state` is the job's final state."""
    job_id = job_folder.job_id(job_folder.path(trial_dir))
    if state == "CANCELLED":
        job_folder.journal_end(trial_dir, run_id, RunState.STOPPED, f"its job {job_id} was cancelled in Slurm")
    elif state:
        job_folder.journal_end(trial_dir, run_id, RunState.FAILED, f"Slurm ended its job {job_id}: {state}")
    else:
        why = f"its job {job_id} has left the queue before the run's end"
        job_folder.journal_end(trial_dir, run_id, RunState.STOPPED, why)


async def end_lost_trials(run_dir: str) -> bool:
    """Journals the end of each trial of a sweep whose job has left the queue before the trial's run ended.

    Returns whether any end was journaled. Raises RpcError if Slurm does not answer.
    """
    found = False
    in_queue = {job.job_id for job in await live(run_dir)}
    for run_id in sweep_folder.trial_runs(run_dir, os.path.basename(run_dir)):
        trial_dir = sweep_folder.sibling(run_dir, run_id)
        job_id = job_folder.job_id(job_folder.path(trial_dir))
        if not job_id or job_id in in_queue or job_folder.view(trial_dir, run_id)["ended"]:
            continue
        state = await job_queue.ended_state(job_id)
        if state is not None:
            end_lost_trial(trial_dir, run_id, state)
            found = True
    return found
