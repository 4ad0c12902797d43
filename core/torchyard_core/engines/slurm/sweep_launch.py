"""The launch of a sweep on a cluster: plans one trial, and submits an array of jobs with one element for each trial.

Slurm starts the elements as nodes become free, at most `parallel` at the same time. Heterogeneous jobs cannot be
elements of an array, so each trial that needs a heterogeneous job is submitted as a separate job.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from torchyard_core.engines.slurm.description import never_starts
from torchyard_core.engines.slurm.launch import SlurmLaunch
from torchyard_core.engines.slurm.planned_nodes import components_of, request_text, with_gpu_types, without_placeholders
from torchyard_core.engines.slurm.worker_group_jobs import ClusterJob
from torchyard_core.errors import RunFailed
from torchyard_core.formatting import counted
from torchyard_core.launch.calendar_interface import Reservation
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.launch import Launch, planned_replicas
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.launch.sweeps.sweep_launch import COORDINATOR, SweepRecords

MOST_SINGLE_JOBS = 1000
"""Maximum number of trials of a sweep whose trials are heterogeneous jobs. Each is submitted as a separate job."""


@dataclass
class SlurmSweepLaunch(SweepRecords, SlurmLaunch):
    """Launches a sweep as an array of jobs."""

    def _separated(self, planned: Plan) -> Plan:
        return planned  # A trial always is one job, even under a strategy that gives worker groups their own jobs.

    def _jobs_of(self, planned: Plan) -> list[ClusterJob]:
        """Returns the job of a trial. Raises RunFailed or NeverStarts if the sweep needs too many jobs."""
        job = ClusterJob("", tuple(components_of(planned)))
        most = self.description.most_in_array if self.description is not None else None
        hint = "Write a smaller number of `trials` to the search file."
        if len(job.components) > 1 and self._jobs > MOST_SINGLE_JOBS:
            message = (
                "its trials are heterogeneous jobs, which cannot be an array, and a sweep has at most "
                f"{MOST_SINGLE_JOBS} of them, not {self._jobs}."
            )
            raise RunFailed(message, code="too_many_trials", hint=hint)
        if len(job.components) == 1 and most is not None and self._jobs > most:
            message = f"an array of jobs of this cluster has at most {most} trials (MaxArraySize), not {self._jobs}."
            raise never_starts(self._cluster.cluster.name, message, hint)
        return [job]

    @property
    def _jobs(self) -> int:
        """The number of trials that remain to be run. Each is a job or an element of an array."""
        ended = self._sweep.ended
        return max(1, self._settings.number_of_trials - (0 if ended is None else ended.counted))

    @property
    def _parallel(self) -> int:
        return min(self._settings.parallel, self._jobs)

    def _request_check(self, job: ClusterJob) -> Check:
        cluster, text = self._cluster.cluster.name, request_text(job.components)
        trials = f"for each of {counted(self._jobs, 'trial')}, {self._parallel} side by side"
        if self._jobs == 1:
            trials = "for its trial"
        if len(job.components) == 1:
            return Check("looking", cluster, True, f"asks for {text} {trials}, as an array of jobs")
        message = (
            f"asks for {text} {trials}, as heterogeneous jobs, which start by backfill and are requeued as a whole"
        )
        return Check("looking", cluster, True, message, warning=True)

    def _batch_program(self, job: ClusterJob) -> str:
        return 'slurm-trial JOB-FOLDER "${SLURM_ARRAY_TASK_ID:-$1}"'

    def _array(self, job: ClusterJob) -> str:
        return f"1-{self._jobs}%{self._parallel}" if len(job.components) == 1 else ""

    def _submitted_text(self, answer: dict[str, Any]) -> str:
        jobs = answer["jobs"]
        several = f"jobs {jobs[0]} to {jobs[-1]}" if len(jobs) > 1 else f"array {jobs[0]}"
        return f"{several} submitted"

    def _planned(self, planned: Plan) -> list[dict[str, Any]]:
        return [{"name": COORDINATOR, "host": planned.primary, "gpus": []}]

    def _submission(self, planned: Plan, jobs: list[ClusterJob], root: str | None) -> dict[str, Any]:
        (job,) = jobs
        self._progress.report_check(_package_check(self._cluster.cluster.name))
        program, cluster = self.topology.program, self._cluster.cluster
        token = f"trial-run-{secrets.token_hex(8)}"
        own = self._record(planned, self._reserved, ())
        of_trial = {
            **Launch._record(self, planned, Reservation(), ()),
            "lineage": token,
            "replicas": with_gpu_types(without_placeholders(planned_replicas(planned)), planned),
            "sweep_run": self.run_id,
        }
        content = self._job(planned, jobs, root, (token, f"{self.name} trial", token), of_trial)
        content["sweep"] = {
            "run_id": self.run_id,
            "name": self.name,
            "run_token": token,
            "search": self._settings.as_message(),
            "study": self._sweep.study,
            "python": program.python or cluster.python or "python3",
            "setup": content["start"]["setup"],
            "env": program.env,
            "jobs": self._jobs,
            "parallel": self._parallel,
            "is_array": len(job.components) == 1,
        }
        return {
            "run_id": self.run_id,
            "script": self._script(self.run_id, job, is_only=True),
            "secrets": self.secret_values,
            "job": content,
            "sweep_run": {"run_id": self.run_id, "name": self.name, "record": own},
        }


def _package_check(cluster: str) -> Check:
    """Returns the checklist line about Optuna. Only a job on a node can check whether Optuna is installed there."""
    return Check("optuna", cluster, True, "the first trial looks for Optuna on its node; without it, the sweep fails")
