"""The ways to open a bridge to a run's primary, and the record of failed attempts, which all sessions share.

A bridge is a step of the run's job. If none can be opened within STEP_ONLY_S, SSH to the primary's node is tried as
well. If that fails too, the session reads the run's state only from files, and live telemetry is missing.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from torchyard_agent.slurm import job_folder

RETRY_S = 2.0
"""Shortest time in seconds between two attempts to open a bridge while only steps of the job are tried."""
STEP_ONLY_VARIABLE = "TORCHYARD_BRIDGE_STEP_ONLY_S"
STEP_ONLY_S = 120.0
"""Time in seconds after the first failed attempt before SSH is tried. STEP_ONLY_VARIABLE overrides it."""
LATER_S = 60.0
"""Shortest time in seconds between two attempts to open a bridge once SSH has been tried and has failed."""
SSH_CONNECT_S = 10
FILE = "bridge.json"
_CONSEQUENCES = ("Exited with exit code", "forcing job termination", "Terminated", "Warning: Permanently added")
"""Substrings of lines that srun and ssh print without stating the cause of a failure."""


class FailedAttempts(NamedTuple):
    """The failed attempts to open a bridge to one start of a run's job."""

    start: str
    """The ID of the job and the number of its restarts. Attempts of an earlier start do not count."""
    since: float
    """The time of the first failed attempt in seconds since 1970."""
    tried: float
    """The time of the last failed attempt, or 0 if SSH works."""
    step: str
    """The error of the last bridge that was a step of the job."""
    ssh: str
    """The error of the last bridge over SSH, or "" if SSH was not tried or works."""

    @classmethod
    def read(cls, folder: str, start: str) -> FailedAttempts | None:
        """Returns the failed attempts for the start of the job named `start`, or None if none has failed."""
        found = job_folder.read(folder, FILE)
        try:
            record = cls(**{name: found[name] for name in cls._fields})
        except (KeyError, TypeError):
            return None
        return record if record.start == start else None

    def write(self, folder: str) -> None:
        job_folder.write(folder, FILE, self._asdict())

    def allows_ssh(self, now: float) -> bool:
        """Returns whether steps have failed for so long that SSH to the node is tried."""
        return now - self.since >= step_only_s()

    def is_due(self, now: float) -> bool:
        """Returns whether enough time has passed for another attempt to open a bridge."""
        return now - self.tried >= (LATER_S if self.ssh else RETRY_S)

    @property
    def problem(self) -> str:
        """Why live telemetry of the run is missing, as a clause, or "" if SSH works or has not been tried."""
        if not self.ssh:
            return ""
        ways = f"neither by a step of the job ({self.step}) nor by SSH ({self.ssh})"
        return f"no connection to the primary's node, {ways}"


def step_only_s(environ: Mapping[str, str] = os.environ) -> float:
    return float(environ.get(STEP_ONLY_VARIABLE) or STEP_ONLY_S)


def start_of(started: Mapping[str, Any]) -> str:
    """Returns a name for one start of a job: the job's ID and the number of its restarts, as in `started.json`."""
    return f"{started['job_id']}/{started.get('restart', 0)}"


def error_in(printed: str) -> str:
    """Returns the last line of a bridge's stderr that states why the bridge ended, or "" if there is none."""
    lines = [line.strip() for line in printed.splitlines()]
    lines = [line for line in lines if line and not any(word in line for word in _CONSEQUENCES)]
    return lines[-1] if lines else ""


def _bridge(archive: str, run_dir: str) -> list[str]:
    main = os.path.join(archive, "torchyard_agent", "__main__.py")
    return [sys.executable, "-I", "-S", main, "slurm-bridge", run_dir]


def step_command(archive: str, run_dir: str, job_id: str, node: str) -> list[str]:
    """Returns the command of a bridge that is a step of the job on one of its nodes."""
    # Without -u, srun buffers output until the next newline. Without --overlap, it waits for the keepers to end.
    options = ["--overlap", "-N1", "-n1", "-u", "-Q", "--gres=none", "--mem=0", "--mpi=none", "-w", node]
    return ["srun", f"--jobid={job_id}", *options, *_bridge(archive, run_dir)]


def ssh_command(archive: str, run_dir: str, node: str) -> list[str]:
    """Returns the command of a bridge over SSH to a node. It never prompts, and accepts only known host keys."""
    options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={SSH_CONNECT_S}"]
    return ["ssh", *options, node, shlex.join(_bridge(archive, run_dir))]
