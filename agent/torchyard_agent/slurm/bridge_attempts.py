"""The ways to open a bridge to a run's primary, and the record of failed attempts, which all sessions share.

A bridge is a step of the run's job. If none can be opened within STEP_ONLY_S, SSH to the primary's node is tried as
well. If that fails too, the session reads the run from its files alone, and live telemetry is missing.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from torchyard_agent.slurm import job_folder

RETRY_S = 2.0
"""Shortest time in seconds between two attempts while only steps are tried."""
STEP_ONLY_VARIABLE = "TORCHYARD_BRIDGE_STEP_ONLY_S"
STEP_ONLY_S = 120.0
"""Time in seconds from the first failed attempt during which only steps are tried, unless the variable overrides it."""
LATER_S = 60.0
"""Shortest time in seconds between two attempts after that."""
SSH_CONNECT_S = 10
FILE = "bridge.json"
_CONSEQUENCES = ("Exited with exit code", "forcing job termination", "Terminated", "Warning: Permanently added")
"""Parts of lines of srun and ssh that give no reason."""


class FailedAttempts(NamedTuple):
    """The failed attempts to open a bridge to one start of a run's job."""

    start: str
    """The ID of the job and the number of its restarts. Attempts of an earlier start do not count."""
    since: float
    """The time of the first failed attempt in seconds since 1970."""
    tried: float
    """The time of the last failed attempt, or 0 if SSH works."""
    step: str
    """The error of the last step."""
    ssh: str
    """The error of the last SSH connection, or "" if it was not tried or works."""

    @classmethod
    def read(cls, folder: str, start: str) -> FailedAttempts | None:
        """Returns the failed attempts for this start, or None if none has failed."""
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
        """Returns whether it is time for another attempt."""
        return now - self.tried >= (LATER_S if self.ssh else RETRY_S)

    @property
    def problem(self) -> str:
        """Why live telemetry is missing, as a clause; "" if it is not, or if steps are still being tried."""
        if not self.ssh:
            return ""
        ways = f"neither by a step of the job ({self.step}) nor by SSH ({self.ssh})"
        return f"no connection to the primary's node, {ways}"


def step_only_s(environ: Mapping[str, str] = os.environ) -> float:
    return float(environ.get(STEP_ONLY_VARIABLE) or STEP_ONLY_S)


def start_of(started: Mapping[str, Any]) -> str:
    """Returns the name of a start of a job, from `started.json`."""
    return f"{started['job_id']}/{started.get('restart', 0)}"


def error_in(printed: str) -> str:
    """Returns the line on stderr that says why a bridge ended; "" if there is none."""
    lines = [line.strip() for line in printed.splitlines()]
    lines = [line for line in lines if line and not any(word in line for word in _CONSEQUENCES)]
    return lines[-1] if lines else ""


def _bridge(archive: str, run_dir: str) -> list[str]:
    main = os.path.join(archive, "torchyard_agent", "__main__.py")
    return [sys.executable, "-I", "-S", main, "slurm-bridge", run_dir]


def step_command(archive: str, run_dir: str, job_id: str, node: str) -> list[str]:
    """Returns the command of a bridge that is a step of the job on one of its nodes."""
    # Without -u, srun holds back bytes after the last newline. Without --overlap, it waits for the keepers to end.
    options = ["--overlap", "-N1", "-n1", "-u", "-Q", "--gres=none", "--mem=0", "--mpi=none", "-w", node]
    return ["srun", f"--jobid={job_id}", *options, *_bridge(archive, run_dir)]


def ssh_command(archive: str, run_dir: str, node: str) -> list[str]:
    """Returns the command of a bridge over SSH to a node. It asks no questions, and trusts the keys that ssh trusts."""
    options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={SSH_CONNECT_S}"]
    return ["ssh", *options, node, shlex.join(_bridge(archive, run_dir))]
