"""The trials of a sweep on a cluster, each of which runs in a job of its own, as seen by the job of one trial.

The jobs share the study through Optuna's journal, a file in the folder of the sweep's run that needs no file locks of
the operating system. One lock (`slurm.shared_lock`) protects each change that concerns several trials: drawing a trial
and assigning it to a job, recording an outcome, writing the table for desktops, and ending the sweep.

- A job that starts again continues the trial that it was assigned. It never draws another one.
- If the job of a trial was killed, or cancelled while it was pending, the next job that starts or ends records the
  trial's outcome, according to the journal of the trial's run.
- The job whose trial ends last ends the sweep.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Callable

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from torchyard_agent.journal import JournalReader
from torchyard_agent.protocol import journal_replay
from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.protocol.sweep_messages import parameter_text
from torchyard_agent.slurm import job_folder, sweep_folder
from torchyard_agent.slurm.shared_lock import SharedLock
from torchyard_agent.sweeps import study_copy, study_setup, trial_outcomes
from torchyard_agent.sweeps.study import COPY, MOST_FAILED_STARTS, FollowedTrial, SweepStudy
from torchyard_agent.sweeps.trial_outcomes import Outcome

STUDY = "study.journal"
TABLE_EVERY_S = 5.0
"""Shortest time in seconds between two writes of the table while no trial starts or ends."""
JOURNAL_STALE_S = 30.0
"""Time in seconds after which the lock of Optuna's journal counts as stale. Jobs hold it only to write one line."""
STOPPED = "the sweep was stopped"
UNSTARTED = "it could not be started: "


class JobTrials:
    """The study of a sweep, as the job of one trial uses it.

    Args:
        run_dir: The folder of the sweep's run.
        number: The number of the job in the sweep.
    """

    def __init__(self, run_dir: str, number: int):
        self._run_dir = run_dir
        job = job_folder.read(job_folder.path(run_dir), "job.json")
        self._sweep: dict[str, Any] = job["sweep"]
        self._run_id: str = self._sweep["run_id"]
        self._replicas = [replica["name"] for replica in job["start"]["replicas"]]
        self._number = number
        self._lock = sweep_folder.lock(run_dir)
        self._folder = sweep_folder.outputs(run_dir)
        os.makedirs(self._folder, 0o700, exist_ok=True)
        self._followed: FollowedTrial | None = None
        self._table_at = 0.0
        self._views: dict[str, tuple[JournalReader, dict[str, Any]]] = {}
        """By run ID of a trial: a reader of the run's journal, and the run's state after the entries read so far."""
        with self._lock:
            self._study = self._open()

    def _open(self) -> SweepStudy:
        file = os.path.join(self._folder, STUDY)
        if not os.path.exists(file):
            for rest in glob.glob(f"{file}.new*"):  # Left by a job that was killed while it created the study.
                os.unlink(rest)
            new = _storage(f"{file}.new")
            if self._sweep["study"]:
                self._import(new)
            study = self._study_in(new)
            self._record_ended(study)
            study.end_trials_of_earlier_sweep()
            study.repeat_interrupted()
            with contextlib.suppress(FileExistsError):  # Another job created the file, but NFS had not shown it yet.
                os.link(f"{file}.new", file)
            os.unlink(f"{file}.new")
        return self._study_in(_storage(file))

    def _study_in(self, storage: JournalStorage) -> SweepStudy:
        study = study_setup.open_study(self._sweep["search"], storage)

        def copy(new: str) -> None:
            study_copy.write_copy(study, os.path.join(self._folder, COPY), new)

        return SweepStudy(self._run_id, self._sweep["name"], self._sweep["search"], self._folder, study, copy)

    def _import(self, storage: JournalStorage) -> None:
        """Copies the study of the earlier sweep, which this sweep continues, into a new journal."""
        with tempfile.TemporaryDirectory(prefix="torchyard-study-") as folder:
            file = os.path.join(folder, "study.sqlite3")
            study_setup.unpack(self._sweep["study"], file)
            optuna.copy_study(
                from_study_name=study_setup.STUDY_NAME,
                from_storage=f"sqlite:///{file}",
                to_storage=storage,
                to_study_name=study_setup.STUDY_NAME,
            )

    # Requests of the batch program

    def begin(self) -> dict[str, Any]:
        """Assigns a trial to this job, unless it has one.

        Returns the trial's name (`trial`), the ID of its run (`run_id`) and its parameters as text (`params`). Returns
        {} if no trial is left, if the sweep is being stopped or has ended, or if the trial of this job has ended.
        """
        with self._lock:
            self._record_ended(self._study)
            known = self._own()
            if self._is_stopping() and known is not None and not known.state.is_finished():
                sweep_folder.end_trial(self._run_dir, self._run_of(known.number), STOPPED)
                self._record(self._study, known, Outcome(trial_outcomes.INTERRUPTED, None, STOPPED))
            if self._is_stopping() or (known is not None and known.state.is_finished()):
                self._update()
                return {}
            trial = self._study.reopened(known) if known is not None else self._draw()
            if trial is None:
                self._update()
                return {}
            params = self._study.params(trial)
            texts = {name: parameter_text(value) for name, value in params.items()}
            self._followed = FollowedTrial(self._study, trial, self._replicas)
            return {"trial": self._followed.name, "run_id": self._run_of(trial.number), "params": texts}

    def _draw(self) -> optuna.Trial | None:
        """Draws a trial, or takes over one whose job was killed after drawing it and before it was assigned."""
        # Other jobs may have drawn trials since the study was opened. A sampler seeded at that time would repeat their
        # random numbers.
        self._study.study.sampler = study_setup.sampler_of(self._sweep["search"], len(self._study.trials()))
        drawn = [one for one in self._study.trials(TrialState.RUNNING) if "job" not in one.user_attrs]
        if drawn:
            trial = self._study.reopened(drawn[0])
        elif self._study.number_to_draw() > 0:
            trial = self._study.study.ask()
        else:
            return None
        trial.set_user_attr("run_id", self._run_of(trial.number))
        trial.set_user_attr("job", self._number)
        return trial

    def _is_assigned(self, frozen: FrozenTrial) -> bool:
        """Returns whether a trial belongs to a job of this sweep rather than of the sweep that this sweep continues."""
        return frozen.user_attrs.get("run_id") == self._run_of(frozen.number) and "job" in frozen.user_attrs

    def _own(self) -> FrozenTrial | None:
        """Returns the trial of this job, or None if it has none yet."""
        own = [one for one in self._study.trials() if self._is_assigned(one) and one.user_attrs["job"] == self._number]
        return own[0] if own else None

    def _run_of(self, number: int) -> str:
        return f"{self._run_id}.{number + 1}"

    def started(self, nodes: Sequence[str], job: str, params: dict[str, str]) -> dict[str, Any]:
        """Records that the run of this job's trial has started or restarted on `nodes`, in the Slurm job `job`."""
        with self._lock:
            followed = self._current()
            followed.trial.set_user_attr("hosts", list(nodes))
            followed.trial.set_user_attr("job_id", job)
            followed.trial.set_user_attr("started", True)
            shown = ", ".join(f"{name}={text}" for name, text in params.items())
            self._print(f"trial {followed.name} on {', '.join(nodes)}: {shown}")
            sweep_folder.journal_running(self._run_dir, self._run_id)
            self._write_table()
        return {}

    def report(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Reports the objective. Returns in `stop` why the pruner ends the trial, or "" if the trial continues."""
        followed = self._current()
        if not followed.report(metrics):
            return {"stop": ""}
        reason = followed.prune()
        if time.monotonic() - self._table_at >= TABLE_EVERY_S:
            with self._lock:
                # A session of a desktop may have ended trials whose jobs were killed.
                self._write_table(with_copy=self._record_ended(self._study))
        return {"stop": reason}

    def end(self) -> dict[str, Any]:
        """Records the outcome of this job's trial, whose run has ended, and ends the sweep if it was the last trial.

        Returns in `stops` whether the other jobs of the sweep must be ended, because trials cannot be started.
        """
        with self._lock:
            self._record_ended(self._study)
            reason = "" if self._is_stopping() else self._unable()
            if reason:
                sweep_folder.note_stop(self._run_dir, reason)
            self._update()
        return {"stops": bool(reason)}

    # Called while the lock is held

    def _current(self) -> FollowedTrial:
        if self._followed is None:  # This process was started again during the trial.
            known = self._own()
            assert known is not None, "`begin` comes first"
            self._followed = FollowedTrial(self._study, self._study.reopened(known), self._replicas)
        return self._followed

    def _is_stopping(self) -> bool:
        return bool(sweep_folder.stop_reason(self._run_dir)) or self._has_ended()

    def _has_ended(self) -> bool:
        return bool(job_folder.view(self._run_dir, self._run_id)["ended"])

    def _view(self, run_id: str) -> dict[str, Any]:
        """Returns the state of a trial's run. Only new entries of its journal are read."""
        if run_id not in self._views:
            reader = JournalReader(sweep_folder.sibling(self._run_dir, run_id))
            self._views[run_id] = reader, journal_replay.new_view(run_id)
        reader, view = self._views[run_id]
        for entry in reader.read():
            journal_replay.apply(view, entry)
        return view

    def _record_ended(self, study: SweepStudy) -> bool:
        """Records the outcomes of trials whose runs have ended, if they are not recorded yet.

        This includes trials of a sweep that this one continues. Returns whether any outcome was recorded.
        """
        found = False
        for frozen in study.trials(TrialState.RUNNING):
            if "job" not in frozen.user_attrs:
                continue
            run_id = str(frozen.user_attrs["run_id"])
            trial_dir = sweep_folder.sibling(self._run_dir, run_id)
            view = self._view(run_id)
            if not view["ended"]:
                continue
            found = True
            followed = FollowedTrial(study, study.reopened(frozen), self._replicas)
            if sweep_folder.is_unstarted(trial_dir):
                followed.trial.set_user_attr("unstarted", True)
                outcome = Outcome(trial_outcomes.FAILED, None, f"{UNSTARTED}{view['reason']}")
            else:
                followed.report(view["metrics"])
                sweep_dir = sweep_folder.sibling(self._run_dir, sweep_folder.sweep_of(run_id))
                outcome = followed.outcome(view, stopping=sweep_folder.ends_with_sweep(sweep_dir, view))
            self._record(study, frozen, outcome)
        return found

    def _waiting(self) -> set[str]:
        """Returns the names of other jobs' trials that wait in the queue again after an interruption."""
        own = self._followed.name if self._followed is not None else ""
        running = [one for one in self._study.trials(TrialState.RUNNING) if self._is_assigned(one)]
        return {
            str(one.number + 1)
            for one in running
            if str(one.number + 1) != own and sweep_folder.waits(self._view(self._run_of(one.number)))
        }

    def _record(self, study: SweepStudy, frozen: FrozenTrial, outcome: Outcome) -> None:
        self._print(study.record(study.reopened(frozen), outcome))
        study.update_importances()

    def _unable(self) -> str:
        """Returns why the sweep must stop if its newest MOST_FAILED_STARTS trials could not be started, or ""."""
        ended = [one for one in self._study.trials() if self._is_assigned(one) and one.datetime_complete is not None]
        newest = sorted(ended, key=lambda one: str(one.datetime_complete))[-MOST_FAILED_STARTS:]
        if len(newest) < MOST_FAILED_STARTS or not all(one.user_attrs.get("unstarted") for one in newest):
            return ""
        cause = str(newest[-1].user_attrs["cause"])[len(UNSTARTED) :]
        return f"{MOST_FAILED_STARTS} trials in a row could not be started: {cause}"

    def _update(self) -> None:
        """Writes the table, and ends the sweep if no trial is running and none will be started."""
        if self._has_ended():
            return
        running = self._study.trials(TrialState.RUNNING)
        if running or not (self._is_stopping() or self._study.number_to_draw() <= 0):
            self._write_table()
            return
        reason, state = sweep_folder.stop_reason(self._run_dir), RunState.STOPPED
        if not reason:
            reason = self._study.failure()
            state = RunState.FAILED if reason else RunState.SUCCEEDED
        self._write_table(state="stopped" if state is RunState.STOPPED else "finished")
        if reason:
            self._print(f"the sweep has {'failed' if state is RunState.FAILED else 'stopped'}: {reason}")
        sweep_folder.end(self._run_dir, self._run_id, state, reason)

    def _write_table(self, state: str = "", *, with_copy: bool = True) -> None:
        stopping = "stopping" if self._is_stopping() else "running"
        self._study.write_table(state or stopping, waiting=self._waiting(), with_copy=with_copy)
        self._table_at = time.monotonic()

    def _print(self, line: str) -> None:
        """Appends a line to the sweep's log."""
        sweep_folder.append_log(self._run_dir, line)


class _JournalLock(JournalFileOpenLock):
    """The lock that Optuna holds while it writes to its journal.

    It replaces Optuna's own lock, which in older versions blocks for ever if the process that holds it is killed.
    """

    def __init__(self, path: str):
        self._lock = SharedLock(path, JOURNAL_STALE_S)

    def acquire(self) -> bool:
        self._lock.__enter__()
        return True

    def release(self) -> None:
        self._lock.__exit__()


def _storage(file: str) -> JournalStorage:
    return JournalStorage(JournalFileBackend(file, _JournalLock(f"{file}.lock")))


def answer(trials: JobTrials, request: str) -> str:
    """Executes a request, which is a JSON object with `op` and parameters. Returns the answer as JSON."""
    params = json.loads(request)
    op = params.pop("op")
    methods: dict[str, Callable[..., dict[str, Any]]] = {
        "begin": trials.begin,
        "started": trials.started,
        "report": trials.report,
        "end": trials.end,
    }
    return json.dumps(methods[op](**params))
