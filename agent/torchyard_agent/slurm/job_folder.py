"""The folder of a run's job. It lies in the run folder of the primary slot, on a file system that all nodes share.

    job.json       the data that the batch program needs, without secrets (`run_plan.py`)
    job.sh         the script that was submitted
    secrets.json   the values of `program.secrets`, removed at the run's end
    submitted.json the IDs of the job and of its successors, newest last, with the time of submission, and those of the
                   jobs of worker groups (`worker_group_batch.py`) by group
    started.json   the nodes of the current generation by slot, the job's ID and number of restarts, and the size that
                   batch.log had at the start
    gang.json      the primary's address and the gang link's key, for the jobs of worker groups; while the run is live
    group-N.sh, group-N.json, group-N.started.json
                   of the job of a worker group: its script, the problem that it had, and its nodes by slot
    stop.json      the reason for a stop that was requested by a signal, because the keeper could not be reached
    bridge.json    the failed attempts to connect to the primary, if there were any (`bridge_attempts.py`)
    *.log          the output of the batch program and of the keepers

A *slot* such as `hpc.2` is the place of one node in a run: Slurm chooses the node at each start of the job. Each slot
has its own run folder, so that a requeued job finds its checkpoints on whichever nodes it starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any

from torchyard_agent.journal import Journal, JournalReader
from torchyard_agent.protocol import journal_replay, paths, timestamps
from torchyard_agent.protocol.run_states import ReplicaState, RunState

GANG = "gang.json"
NAME_PREFIX = "torchyard-"
"""Prefix of the names of jobs, followed by the run ID."""
LOOK_AT_RUNS = 20
"""Number of the newest runs whose journals `last_stop` reads."""


def primary_slot(cluster: str) -> str:
    """Returns the slot of the primary of every run on a cluster."""
    return f"{cluster}.1"


def path(run_dir: str) -> str:
    """Returns the job's folder in the run folder of the primary slot."""
    return os.path.join(run_dir, "job")


def read(folder: str, name: str) -> Any:
    """Returns the contents of a JSON file in the folder, or {} if the file is missing or damaged."""
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def write(folder: str, name: str, content: Any) -> None:
    """Replaces a JSON file in the folder. Only this user can read the file."""
    scratch = os.path.join(folder, f".{name}.{os.getpid()}")
    with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(scratch, os.path.join(folder, name))


def remove(folder: str, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, name))


def note_submission(folder: str, job_id: str) -> None:
    known = read(folder, "submitted.json") or {"jobs": []}
    write(folder, "submitted.json", {**known, "jobs": [*known["jobs"], job_id], "at": time.time()})


def note_group(folder: str, group: str, job_id: str) -> None:
    """Adds the ID of a group job, or of its successor, to `submitted.json`."""
    known = read(folder, "submitted.json") or {"jobs": []}
    groups = known.get("groups", {})
    write(folder, "submitted.json", {**known, "groups": {**groups, group: [*groups.get(group, []), job_id]}})


def group_jobs(folder: str) -> dict[str, str]:
    """Returns the IDs of the newest jobs of the worker groups that have jobs of their own."""
    known = (read(folder, "submitted.json") or {}).get("groups", {})
    return {group: str(jobs[-1]) for group, jobs in known.items() if jobs}


def nodes(folder: str) -> dict[str, str]:
    """Returns the nodes of the run's current or last start by slot, or {} before the first start."""
    found: dict[str, str] = {}
    for name in ("started.json", *(f"{group}.started.json" for group in group_jobs(folder))):
        found.update((read(folder, name) or {}).get("nodes", {}))
    return found


def job_ids(folder: str) -> list[str]:
    """Returns the IDs of the run's newest jobs: its first one, which has the primary, and those of worker groups."""
    first = job_id(folder)
    return [*([first] if first else []), *group_jobs(folder).values()]


def job_id(folder: str) -> str:
    """Returns the ID of the run's newest job that has the primary, or "" if no job has been submitted."""
    jobs = (read(folder, "submitted.json") or {}).get("jobs") or [""]
    return str(jobs[-1])


def view(run_dir: str, run_id: str) -> dict[str, Any]:
    """Returns the state of the run replayed from its journal."""
    return journal_replay.fold(run_id, JournalReader(run_dir).read())


def journal_state(run_dir: str, state: RunState, reason: str) -> None:
    """Appends a run state to the journal of a run without a live keeper, unless the last entry is the same."""
    entries = JournalReader(run_dir).read()
    last = entries[-1] if entries else {}
    if last.get("event") == "run_state" and (last.get("state"), last.get("reason", "")) == (state.value, reason):
        return
    journal = Journal(os.path.join(run_dir, "journal.jsonl"), lambda: None)
    journal.write("run_state", state=state.value, reason=reason)
    journal.close()


def journal_interruption(
    run_dir: str, run_id: str, job_id: str, restart: int, cause: str, metrics: Mapping[str, Any] | None = None
) -> bool:
    """Journals that Slurm interrupted a start of the run's job, unless this is already journaled or the run has ended.

    Returns whether entries were added. Must not be called while the run has a live keeper.

    Args:
        run_dir: The run folder of the primary slot.
        run_id: The ID of the run.
        job_id: The ID of the job.
        restart: The number of restarts of the job before the interrupted start.
        cause: Slurm's name of the cause, such as PREEMPTED.
        metrics: The last metrics by replica, if the primary has reported them.
    """
    known = view(run_dir, run_id)
    if known["ended"] or [job_id, restart] in [[one["job"], one["restart"]] for one in known["interruptions"]]:
        return False
    journal = Journal(os.path.join(run_dir, "journal.jsonl"), lambda: None)
    journal.write("interrupted", job=job_id, restart=restart, cause=cause, **({"metrics": metrics} if metrics else {}))
    reason = f"{cause}: in the queue again, to continue from its newest checkpoint"
    journal.write("run_state", state=RunState.WAITING.value, reason=reason)
    journal.close()
    return True


def journal_end(run_dir: str, run_id: str, state: RunState, reason: str, asked: dict[str, Any] | None = None) -> None:
    """Journals the end of a run without a live keeper. Does nothing if the run has already ended.

    `asked` is the journal entry of the user's request to end the run, if there was one. Replicas that never started are
    taken from the run's record.
    """
    before = view(run_dir, run_id)
    if before["ended"]:
        return
    journal = Journal(os.path.join(run_dir, "journal.jsonl"), lambda: None)
    if asked is not None:
        journal.write("asked", **asked)
    journal.write("run_state", state=state.value, reason=reason)
    timings = {"started_s": None, "first_step_s": None, "ended_s": None}
    planned = read(run_dir, "run.json").get("record", {}).get("replicas", [])
    known = {replica["name"]: {"name": replica["name"], "host": replica["host"]} for replica in planned}
    of_replicas = ReplicaState.SUCCEEDED if state is RunState.SUCCEEDED else ReplicaState.STOPPED
    replicas = [
        {"exit_code": None, "restarts": 0, "reason": "", **replica, "state": of_replicas.value}
        for replica in {**known, **before["replicas"]}.values()
    ]
    fields = {"state": state.value, "reason": reason, "replicas": replicas, "metrics": {}, "timings": timings}
    journal.write("run_ended", run_id=run_id, **fields)
    journal.close()


def last_stop(runs_dir: str) -> dict[str, Any] | None:
    """Returns how long the newest interrupted run took to save and end after Slurm's signal: `run_id` and `seconds`.

    A run that Slurm killed before it had saved does not count. Returns None if no run was interrupted.
    """
    try:
        run_ids = sorted(os.listdir(runs_dir), reverse=True)[:LOOK_AT_RUNS]
    except OSError:
        return None
    for run_id in run_ids:
        stopping, found = "", None
        for entry in JournalReader(os.path.join(runs_dir, run_id)).read():
            if entry["event"] == "run_state" and entry["state"] != RunState.WAITING.value:
                stopping = entry["time"] if entry["state"] == RunState.STOPPING.value else ""
            elif entry["event"] == "interrupted" and stopping:
                seconds = timestamps.parse_timestamp(entry["time"]) - timestamps.parse_timestamp(stopping)
                found = {"run_id": run_id, "seconds": seconds}
        if found is not None:
            return found
    return None


def run_dir(agent_dir: str, cluster: str, run_id: str) -> str:
    """Returns the run folder of the primary slot."""
    return paths.run_dir(agent_dir, primary_slot(cluster), run_id)
