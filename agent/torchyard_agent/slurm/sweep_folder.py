"""The folder of a sweep whose trials run in separate jobs, and functions that end the sweep and its trials.

The run of the sweep has no processes. Its run folder, which belongs to the primary slot, contains

    job/job.json         the plan of a trial, with a placeholder for the trial's run ID, and `sweep` with the search
    job/job.sh           the script of all jobs
    job/secrets.json     the values of `program.secrets`, removed at the end of the sweep
    job/submitted.json   the ID of the array or, of heterogeneous jobs, the IDs of all jobs
    job/element-N.log    the output of the job with the number N, to which the trial's `batch.log` is a symbolic link
    job/stop.json        the reason why the sweep was stopped; once it is written, no trial begins
    job/sweep.lock       the lock for all changes of these files, of the journal, and of the study
    outputs/coordinator-0
                         the study, its copy and the table for desktops (`sweeps.job_trials`)
    logs/coordinator-0.log
                         a line about the start and the end of each trial

Trial number 3 of the sweep S is the run `S.3`. Its run folder is a sibling of the sweep's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Container, Mapping
from typing import Any

from torchyard_agent.journal import Journal
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.run_states import ReplicaState, RunState
from torchyard_agent.slurm import job_folder
from torchyard_agent.slurm.shared_lock import SharedLock
from torchyard_agent.sweeps import study_ends, trial_outcomes

COORDINATOR = "coordinator-0"
"""The only replica in the record of a sweep's run, whose log and outputs desktops read."""
TABLE, COPY = "sweep.json", "study-copy.sqlite3"
LIVE = ("running", "waiting")
"""The states of trials in the table that have not ended."""


def is_sweep(run_dir: str) -> bool:
    return bool((job_folder.read(job_folder.path(run_dir), "job.json") or {}).get("sweep"))


def sweep_of(run_id: str) -> str:
    """Returns the ID of the sweep of a trial's run, or "" if the run is not a trial."""
    return run_id.rpartition(".")[0]


def sibling(run_dir: str, run_id: str) -> str:
    """Returns the folder of another run of the same slot."""
    return os.path.join(os.path.dirname(run_dir), run_id)


def outputs(run_dir: str) -> str:
    return os.path.join(run_dir, "outputs", COORDINATOR)


def lock(run_dir: str) -> SharedLock:
    return SharedLock(os.path.join(job_folder.path(run_dir), "sweep.lock"))


def note_stop(run_dir: str, reason: str) -> None:
    """Notes that the sweep is being stopped. After that, no trial begins."""
    job_folder.write(job_folder.path(run_dir), "stop.json", {"reason": reason})


def stop_reason(run_dir: str) -> str:
    """Returns why the sweep is being stopped, or "" if it is not."""
    return str((job_folder.read(job_folder.path(run_dir), "stop.json") or {}).get("reason", ""))


def note_unstarted(trial_dir: str) -> None:
    """Notes that the run of a trial could not be started. Must be called before the end of the run is journaled."""
    job_folder.write(job_folder.path(trial_dir), "unstarted.json", {"unstarted": True})


def is_unstarted(trial_dir: str) -> bool:
    return bool(job_folder.read(job_folder.path(trial_dir), "unstarted.json"))


def append_log(run_dir: str, line: str) -> None:
    file = os.path.join(run_dir, "logs", paths.log_name(COORDINATOR, 0))
    os.makedirs(os.path.dirname(file), 0o700, exist_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as log:
        log.write(f"{line}\n")


def log_interruption(trial_dir: str, run_id: str, cause: str) -> None:
    """Logs, in the log of the trial's sweep, that the trial waits in the queue again."""
    sweep, _, number = run_id.rpartition(".")
    append_log(sibling(trial_dir, sweep), f"trial {number}: waits again: {cause}")


# The following functions must be called while the sweep's lock is held.


def journal_running(run_dir: str, run_id: str) -> None:
    """Journals that the sweep is running, if its state is still waiting. Called when a trial starts."""
    if job_folder.view(run_dir, run_id)["state"] != RunState.WAITING.value:
        return
    journal = Journal(os.path.join(run_dir, "journal.jsonl"), lambda: None)
    journal.write("run_state", state=RunState.RUNNING.value, reason="")
    host = str(job_folder.read(run_dir, "run.json").get("host", ""))
    journal.write("replica_state", replica=COORDINATOR, host=host, state=ReplicaState.RUNNING.value)
    journal.close()


def journal_stop(run_dir: str, run_id: str, reason: str, asked: dict[str, Any]) -> None:
    """Journals the request to stop the sweep. `asked` is the journal entry of the request."""
    journal = Journal(os.path.join(run_dir, "journal.jsonl"), lambda: None)
    journal.write("asked", **asked)
    journal.write("run_state", state=RunState.STOPPING.value, reason=reason)
    journal.close()


def end(run_dir: str, run_id: str, state: RunState, reason: str) -> None:
    """Journals the end of the sweep, and removes its secrets."""
    job_folder.journal_end(run_dir, run_id, state, reason)
    job_folder.remove(job_folder.path(run_dir), "secrets.json")


def end_trial(run_dir: str, run_id: str, reason: str) -> None:
    """Journals that a trial without a keeper was stopped, unless its run had already ended."""
    trial_dir = sibling(run_dir, run_id)
    if os.path.isdir(trial_dir):
        job_folder.journal_end(trial_dir, run_id, RunState.STOPPED, reason)


def end_waiting_trials(run_dir: str, run_id: str, active: Container[str], reason: str) -> None:
    """Journals the ends of all trials whose job is not in `active`, because these jobs were cancelled in the queue."""
    for trial in trial_runs(run_dir, run_id):
        if job_folder.job_id(job_folder.path(sibling(run_dir, trial))) not in active:
            end_trial(run_dir, trial, reason)


def ends_with_sweep(run_dir: str, view: Mapping[str, Any]) -> bool:
    """Returns whether a trial ended because its sweep is being stopped, and not because only this trial was stopped.

    Args:
        run_dir: The folder of the sweep's run.
        view: The state of the trial's run.
    """
    return bool(stop_reason(run_dir)) and not any(entry.get("what") == "stop" for entry in view["asked"])


def waits(view: Mapping[str, Any]) -> bool:
    """Returns whether the run of a trial is in the queue again after an interruption."""
    return bool(view["interruptions"]) and view["state"] == RunState.WAITING.value


def update_table(run_dir: str) -> None:
    """Updates the table from the journals of the trials' runs, after a change that no job of the sweep can record.

    The study itself is updated by the next job that starts or ends.
    """
    table = job_folder.read(outputs(run_dir), TABLE) or {}
    for row in table.get("trials", []):
        if row["state"] not in LIVE or not row["run_id"]:
            continue
        view = job_folder.view(sibling(run_dir, row["run_id"]), row["run_id"])
        if view["ended"]:
            _end_row(run_dir, row, table["metric"])
        elif waits(view):
            row.update(state="waiting", hosts=[])
    if table:
        job_folder.write(outputs(run_dir), TABLE, table)


def end_without_jobs(run_dir: str, run_id: str) -> None:
    """Ends a sweep that has no jobs left and was not ended by its last trial, because its jobs were cancelled.

    The study itself is not updated, because this would need Optuna. The outcomes of the trials are written to the table
    for desktops and to the copy of the study, from which a later sweep may continue.
    """
    if job_folder.view(run_dir, run_id)["ended"]:
        return
    reason = stop_reason(run_dir)
    jobs = ", ".join(job_folder.job_ids(job_folder.path(run_dir))[:1])
    end_waiting_trials(run_dir, run_id, (), reason or "its job has left the queue before the run's end")
    table = job_folder.read(outputs(run_dir), TABLE) or {}
    rows = table.get("trials", [])
    for row in rows:
        if row["state"] in LIVE:
            _end_row(run_dir, row, table["metric"])
    counted = [row for row in rows if row["state"] != trial_outcomes.INTERRUPTED]
    state = RunState.STOPPED
    if not reason and rows and len(counted) >= int(table["wanted"]):
        causes = [row["cause"] for row in counted if row["state"] == trial_outcomes.FAILED]
        reason = trial_outcomes.sweep_failure([row["state"] for row in counted], causes)
        state = RunState.FAILED if reason else RunState.SUCCEEDED
    elif not reason and rows:
        reason = f"its job {jobs} left the queue after {len(counted)} of {table['wanted']} trials"
    elif not reason:
        reason = f"its job {jobs} was cancelled in Slurm before its first trial"
    if rows:
        table["state"] = "stopped" if state is RunState.STOPPED else "finished"
        _end_trials_of_study(run_dir, table)
        job_folder.write(outputs(run_dir), TABLE, table)
    end(run_dir, run_id, state, reason)


def _end_trials_of_study(run_dir: str, table: dict[str, Any]) -> None:
    """Records the ends of trials in the copy of the study if no job has done so, and logs a line for each of them."""
    file = os.path.join(outputs(run_dir), COPY)
    if not os.path.exists(file):
        return
    for row in study_ends.write(file, table["trials"]):
        shown = row["state"] if row["value"] is None else f"{table['metric']} {row['value']:g}"
        append_log(run_dir, f"trial {row['trial']}: {shown}" + (f": {row['cause']}" if row["cause"] else ""))
    with open(file, "rb") as copy:
        table["study"] = hashlib.sha256(copy.read()).hexdigest()


def _end_row(run_dir: str, row: dict[str, Any], metric: str) -> None:
    """Writes the outcome of a trial into its row of the table."""
    trial_dir = sibling(run_dir, row["run_id"])
    view = job_folder.view(trial_dir, row["run_id"])
    replicas = [one["name"] for one in job_folder.read(trial_dir, "run.json").get("record", {}).get("replicas", [])]
    stopping = ends_with_sweep(run_dir, view)
    found = trial_outcomes.outcome(metric, replicas, view, pruned=False, stopping=stopping)
    if not view["ended"]:  # The trial's run had not begun, or the keeper of its killed job is still ending.
        cause = "the sweep ended while it ran" if os.path.isdir(trial_dir) else "the sweep ended before it began"
        found = trial_outcomes.Outcome(trial_outcomes.INTERRUPTED, None, cause)
    row.update(state=found.state, value=found.value, cause=found.cause, ended=view["as_of"])


def trial_runs(run_dir: str, run_id: str) -> list[str]:
    """Returns the IDs of the runs of the sweep's trials."""
    name = re.compile(re.escape(run_id) + r"\.\d+")
    with contextlib.suppress(OSError):
        return [entry for entry in os.listdir(os.path.dirname(run_dir)) if name.fullmatch(entry)]
    return []


def write_trial(run_dir: str, begun: dict[str, Any], number: int) -> str:
    """Writes the folder of a trial's run, unless it exists. Returns the folder of its job.

    Args:
        run_dir: The folder of the sweep's run.
        begun: The result of `JobTrials.begin`.
        number: The number of the job in the sweep.
    """
    run_id: str = begun["run_id"]
    trial_dir = sibling(run_dir, run_id)
    folder = job_folder.path(trial_dir)
    if job_folder.read(folder, "job.json"):
        return folder
    os.makedirs(folder, 0o700, exist_ok=True)
    job = job_folder.read(job_folder.path(run_dir), "job.json")
    sweep = job.pop("sweep")
    job = json.loads(json.dumps(job).replace(sweep["run_token"], run_id))
    job["start"]["cluster"].update(trial=begun["trial"], params=begun["params"])
    log = os.path.join(folder, "batch.log")
    if not os.path.lexists(log):
        os.symlink(os.path.relpath(os.path.join(job_folder.path(run_dir), f"element-{number}.log"), folder), log)
    with contextlib.suppress(OSError), open(paths.archive_note(run_dir)) as note:
        archive = note.read()
        with open(paths.archive_note(trial_dir), "w") as own:
            own.write(archive)
    primary = job["components"][0]["slots"][0]
    job_folder.write(trial_dir, "run.json", {**job["prepare"][primary], "host": primary})
    job_folder.journal_state(trial_dir, RunState.STARTING, "")
    # This file is written last, because its existence means that the other files are complete.
    job_folder.write(folder, "job.json", {**job, "run_id": run_id})
    return folder
