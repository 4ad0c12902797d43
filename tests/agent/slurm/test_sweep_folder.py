"""Tests of a sweep that no trial has ended, because its jobs have left the queue."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import optuna

from torchyard_agent.journal import Journal
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.slurm import job_folder, sweep_folder
from torchyard_agent.sweeps.study_copy import write_copy
from torchyard_agent.sweeps.study_setup import STUDY_NAME

SWEEP = "20260101-000000-aaaa"
REPLICAS = {"replicas": [{"name": "worker-0", "host": "hpc.1"}]}


def sweep_in(folder: Path, wanted: int, *trials: str) -> str:
    """Returns the folder of a sweep whose table has trials in these states."""
    run_dir = paths.run_dir(str(folder), "hpc.1", SWEEP)
    job = Path(run_dir, "job")
    job.mkdir(parents=True)
    job_folder.write(str(job), "submitted.json", {"jobs": ["24"], "at": 0.0})
    job_folder.journal_state(run_dir, RunState.WAITING, "job 24 waits in the queue")
    rows = []
    for number, state in enumerate(trials, 1):
        run_id = f"{SWEEP}.{number}"
        trial_dir = sweep_folder.sibling(run_dir, run_id)
        Path(trial_dir).mkdir()
        job_folder.write(trial_dir, "run.json", {"record": REPLICAS})
        job_folder.journal_state(trial_dir, RunState.RUNNING, "")
        row = {"trial": str(number), "state": state, "run_id": run_id, "cause": "", "value": None, "ended": ""}
        rows.append({**row, "hosts": ["n1"], "values": [[1, 0.5]]})
    if rows:
        outputs = sweep_folder.outputs(run_dir)
        Path(outputs).mkdir(parents=True)
        table = {"state": "running", "metric": "loss", "wanted": wanted, "trials": rows}
        job_folder.write(outputs, sweep_folder.TABLE, table)
        sweep_folder.journal_running(run_dir, SWEEP)
    return run_dir


def table_of(run_dir: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(sweep_folder.outputs(run_dir), sweep_folder.TABLE).read_text())
    return found


def state_of(run_dir: str, run_id: str = SWEEP) -> tuple[str, str]:
    view = job_folder.view(sweep_folder.sibling(run_dir, run_id), run_id)
    return view["state"], view["reason"]


def test_a_sweep_whose_array_is_cancelled_while_it_waits_is_stopped(tmp_path: Path) -> None:
    run_dir = sweep_in(tmp_path, 4)
    sweep_folder.end_without_jobs(run_dir, SWEEP)
    assert state_of(run_dir) == ("stopped", "its job 24 was cancelled in Slurm before its first trial")


def test_a_sweep_whose_waiting_trials_are_cancelled_is_stopped_after_the_others(tmp_path: Path) -> None:
    run_dir = sweep_in(tmp_path, 4, "complete", "failed")
    sweep_folder.end_without_jobs(run_dir, SWEEP)
    assert state_of(run_dir) == ("stopped", "its job 24 left the queue after 2 of 4 trials")
    assert table_of(run_dir)["state"] == "stopped"


def test_the_last_trial_whose_job_was_killed_gets_the_outcome_that_its_journal_has(tmp_path: Path) -> None:
    run_dir = sweep_in(tmp_path, 3, "complete", "running", "running")
    journal = Journal(str(Path(sweep_folder.sibling(run_dir, f"{SWEEP}.2"), "journal.jsonl")), lambda: None)
    journal.write("run_ended", state="succeeded", reason="", metrics={"worker-0": {"loss": 0.5, "step": 3}})
    journal.close()
    sweep_folder.end_without_jobs(run_dir, SWEEP)
    assert state_of(run_dir) == ("succeeded", "")
    rows = table_of(run_dir)["trials"]
    cause = "its job has left the queue before the run's end"
    assert [(row["state"], row["value"], row["cause"]) for row in rows[1:]] == [
        ("complete", 0.5, ""),
        ("failed", None, cause),
    ]
    assert state_of(run_dir, f"{SWEEP}.3") == ("stopped", cause)
    before = Path(run_dir, "journal.jsonl").read_text()
    sweep_folder.end_without_jobs(run_dir, SWEEP)
    assert Path(run_dir, "journal.jsonl").read_text() == before


def test_the_table_shows_which_trials_wait_again_and_which_were_stopped(tmp_path: Path) -> None:
    run_dir = sweep_in(tmp_path, 4, "running", "running", "running", "complete")
    first, second = (sweep_folder.sibling(run_dir, f"{SWEEP}.{number}") for number in (1, 2))
    job_folder.journal_interruption(first, f"{SWEEP}.1", "24_1", 0, "NODE_FAIL")
    asked = {"what": "stop", "by": "kim"}
    job_folder.journal_end(second, f"{SWEEP}.2", RunState.STOPPED, "stopped by kim", asked)
    sweep_folder.note_stop(run_dir, "stopped by lee")
    sweep_folder.update_table(run_dir)
    rows = table_of(run_dir)["trials"]
    assert [(row["state"], row["hosts"]) for row in rows] == [
        ("waiting", []),
        ("failed", ["n1"]),
        ("running", ["n1"]),
        ("complete", ["n1"]),
    ]
    assert rows[1]["cause"] == "stopped by kim", "the trial was stopped before the sweep"


def test_the_trials_of_a_stopped_sweep_whose_jobs_were_cancelled_are_interrupted(tmp_path: Path) -> None:
    run_dir = sweep_in(tmp_path, 3, "complete", "running")
    sweep_folder.note_stop(run_dir, "stopped by kim")
    study = optuna.create_study(study_name=STUDY_NAME)
    study.add_trial(optuna.create_trial(value=1.0))
    study.ask()
    copy = Path(sweep_folder.outputs(run_dir), sweep_folder.COPY)
    write_copy(study, str(copy), str(copy))
    sweep_folder.end_without_jobs(run_dir, SWEEP)
    assert state_of(run_dir) == ("stopped", "stopped by kim")
    table = table_of(run_dir)
    assert [row["state"] for row in table["trials"]] == ["complete", "interrupted"]
    assert table["study"] == hashlib.sha256(copy.read_bytes()).hexdigest()
    ended = optuna.load_study(storage=f"sqlite:///{copy}", study_name=STUDY_NAME).trials[1]
    assert (ended.state, ended.intermediate_values) == (optuna.trial.TrialState.FAIL, {1: 0.5})
    assert ended.user_attrs == {"cause": "the sweep was stopped", "interrupted": True}
    log = Path(run_dir, "logs", "coordinator-0.log").read_text()
    assert log == "trial 2: interrupted: the sweep was stopped\n"
    assert state_of(run_dir, f"{SWEEP}.2") == ("stopped", "stopped by kim")
