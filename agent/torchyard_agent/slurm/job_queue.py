"""The user's jobs in the cluster's queue. `squeue` is called for all runs at once, and at most every 30 s.

All sessions of the user, on all login nodes, share its output through a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import getpass
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.slurm import commands, job_folder

EVERY_S = 30.0
LONGEST_PAUSE_S = 300.0
"""The longest pause in seconds between two queries. Each failed query doubles the pause."""
COLUMNS = ("JobArrayID", "Name", "State", "Reason", "StartTime", "NodeList")
NEVER = ("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints")
"""Reasons that Slurm gives for jobs that cannot start in the cluster's current configuration."""


UNKNOWN = "nvalid job id"
"""Part of the error message of Slurm's commands for a job that Slurm does not know, or has forgotten."""


class Job(NamedTuple):
    """A job in the queue. `start` is the time in seconds since 1970 of its start, or Slurm's estimate, if known."""

    job_id: str
    state: str
    reason: str
    start: float | None
    nodes: str
    may_requeue: bool = True
    """Whether Slurm may start the job again. Like `restarts`, only known from `show`."""
    restarts: int = 0
    is_preempted: bool = False
    """Whether Slurm has begun to take the job's nodes for another job. Only known from `show`."""
    end: float | None = None
    """The time in seconds since 1970 at which Slurm will end the job, or ended it. Only known from `show`.

    It is the end of the time limit or, after a preemption with GraceTime, the end of the GraceTime.
    """

    @property
    def is_active(self) -> bool:
        """Whether the job has nodes."""
        return self.state in ("CONFIGURING", "RUNNING", "SIGNALING", "COMPLETING", "SUSPENDED")

    @property
    def is_pending(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "PD")

    def was_cancelled(self, restarts: int) -> bool:
        """Returns whether a user cancelled the job after this number of restarts.

        While a job is ending, its state is COMPLETING whether it was cancelled or requeued. In the case of a requeue,
        however, Slurm has already increased the job's number of restarts.
        """
        is_ending = self.state in ("CANCELLED", "COMPLETING")
        return is_ending and self.interruption(restarts) == ""

    def has_left(self, restarts: int) -> bool:
        """Returns whether the start of the job after this number of restarts no longer has nodes.

        A node that Slurm has lost does not count, even if processes of the job are still running on the node.
        """
        return self.is_pending or (self.restarts > restarts and self.state != "COMPLETING")

    def interruption(self, restarts: int) -> str:
        """Returns Slurm's name for what interrupted the job after this number of restarts, or "" if nothing did.

        While the job is ending, its state does not show the cause (see `was_cancelled`), but its other fields do. A
        preemption without GraceTime is reported as REQUEUED.
        """
        if self.is_preempted:
            return "PREEMPTED"
        if self.reason.startswith("NodeDown"):
            return "NODE_FAIL"
        if self.reason == "TimeLimit":
            return "TIMEOUT"
        if self.state in ("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"):
            return self.state
        return "REQUEUED" if self.restarts > restarts else ""

    @property
    def sentence(self) -> str:
        """Returns the reason why the job waits, for users."""
        reason = self.reason.strip("()").replace(",_", ", ").replace("_", " ") or "None"
        text = f"job {self.job_id} waits in the queue"
        text += "" if reason == "None" else f": {reason}"
        if self.start is not None and self.start > time.time():
            text += f"; Slurm expects its start at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(self.start))}"
        return text


EVERYONE = ("UserName", "EndTime")
"""Columns in addition to COLUMNS for the calendar, which shows the jobs of all users."""
WANTED_S = 150.0
"""Time in seconds after a request for the calendar during which queries cover the jobs of all users."""


class JobQueue:
    """The user's jobs according to the latest output of `squeue`."""

    def __init__(self, folder: str):
        self._file = os.path.join(folder, "queue.json")
        self._wanted = os.path.join(folder, "calendar-wanted")
        self.everyone_as_of = 0.0
        """The time of the latest output with the jobs of all users, in seconds since 1970, or 0 if there is none."""
        self._everyone: list[list[str]] = []
        self._lock = asyncio.Lock()
        self._failures = 0
        self._problem = RpcError("squeue does not answer", "slurm_timeout")
        """The error of the last query that failed."""
        self._tried = float("-inf")
        self.as_of = 0.0
        """The time of the latest output in seconds since 1970, or 0 if there is none."""
        self._jobs: dict[str, Job] = {}
        self.ends: dict[str, str] = {}
        """How Slurm ended the jobs that left the queue before the end of their runs, by run."""

    async def refresh(self) -> bool:
        """Queries Slurm, unless the latest output is newer than EVERY_S or a query has failed recently.

        Returns whether there is newer output than before, which may come from another session's query.
        """
        async with self._lock:
            before = self.as_of
            self._read()
            pause = min(EVERY_S * 2**self._failures, LONGEST_PAUSE_S)
            if time.time() - self.as_of >= EVERY_S and time.monotonic() - self._tried >= pause:
                self._tried = time.monotonic()
                with self._exclusively() as is_first:
                    if is_first:
                        await self._ask()
            return self.as_of > before

    def job(self, run_id: str) -> Job | None:
        """Returns the job of a run, or None if it was not in the queue at `as_of`."""
        return self._jobs.get(run_id)

    async def everyone(self) -> list[list[str]]:
        """Returns the ID, name, state, start, nodes, user and end of all users' jobs that this user may see.

        The data may be up to WANTED_S old. Raises RpcError if Slurm does not respond.
        """
        with open(self._wanted, "w"):
            os.utime(self._wanted)
        deadline = time.monotonic() + EVERY_S + 5.0
        await self.refresh()
        while time.time() - self.everyone_as_of > WANTED_S and time.monotonic() < deadline:
            if self._failures:
                raise self._problem
            await asyncio.sleep(0.5)  # The last query covered only the jobs of this user.
            await self.refresh()
        if time.time() - self.everyone_as_of > WANTED_S:
            raise self._problem
        return self._everyone

    async def _ask(self) -> None:
        form = ",".join(f"{name}:|" for name in (*COLUMNS, *EVERYONE))
        everyone = self._is_calendar_wanted()
        user = getpass.getuser()
        try:
            text = await commands.output(["squeue", "-h", *([] if everyone else ["-u", user]), "-O", form])
        except RpcError as error:
            self._failures += 1
            self._problem = error
            return
        self._failures = 0
        asked = time.time()
        rows = commands.table(text, len(COLUMNS) + len(EVERYONE))
        found = [row[:6] for row in rows if row[6] == user and row[1].startswith(job_folder.NAME_PREFIX)]
        kept = {"as_of": asked, "jobs": found}
        if everyone:
            kept["everyone"] = [[*row[:3], *row[4:]] for row in rows]
        job_folder.write(os.path.dirname(self._file), os.path.basename(self._file), kept)
        self._use(asked, found)
        self._use_everyone(kept)

    def _is_calendar_wanted(self) -> bool:
        try:
            return time.time() - os.stat(self._wanted).st_mtime < WANTED_S
        except OSError:
            return False

    def _use_everyone(self, kept: dict[str, Any]) -> None:
        if isinstance(kept.get("everyone"), list):
            self.everyone_as_of, self._everyone = float(kept["as_of"]), kept["everyone"]

    def _read(self) -> None:
        kept = job_folder.read(os.path.dirname(self._file), os.path.basename(self._file))
        with contextlib.suppress(KeyError, TypeError, ValueError):
            if float(kept["as_of"]) > self.as_of:
                self._use(float(kept["as_of"]), kept["jobs"])
                self._use_everyone(kept)
                self._failures = 0

    def _use(self, as_of: float, rows: list[list[str]]) -> None:
        self.as_of = as_of
        self._jobs = {}
        for job_id, name, state, reason, start, nodes in rows:
            run_id = name[len(job_folder.NAME_PREFIX) :]
            job = Job(job_id, state, reason, commands.seconds(start), nodes)
            # The job of a trial, `sweep.3`, is also one of the jobs of its sweep.
            for each in (run_id, run_id.rpartition(".")[0]):
                known = self._jobs.get(each)
                if each and (known is None or _replaces(job, known, is_sweep=each != run_id)):
                    self._jobs[each] = job

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[bool]:
        """Tries to lock the queue's file. Yields False if another session, which is querying Slurm, holds the lock."""
        lock = os.open(f"{self._file}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except OSError:
            yield False
        finally:
            os.close(lock)


def _replaces(job: Job, known: Job, *, is_sweep: bool) -> bool:
    """Returns whether `job` replaces `known` as the job whose state is shown for a run.

    A run may have several jobs of its name: the components of a heterogeneous job, or an ending job and its successor.
    A sweep is shown as running if one of its jobs is.
    """
    if known.is_pending and job.is_active and (is_sweep or job.state != "COMPLETING"):
        return True
    return not is_sweep and known.state in ("COMPLETING", "COMPLETED") and job.state not in ("COMPLETING",)


async def submit(*arguments: str) -> str:
    """Runs `sbatch` with these arguments. Returns the ID of the job or of the array. Raises RpcError if it fails."""
    said = await commands.output(["sbatch", "--parsable", *arguments])
    return said.strip().splitlines()[-1].split(";")[0]


async def cancel(*arguments: str) -> None:
    """Runs `scancel` with these options and job IDs. Raises RpcError if it fails, but not for jobs that have ended."""
    code, text, errors = await commands.outcome(["scancel", *arguments])
    said = (errors.strip() or text.strip()).splitlines()
    # scancel prints nothing about a job that is already completing.
    if code and said and UNKNOWN not in errors:
        raise RpcError(f"scancel: {said[-1].removeprefix('scancel: ')}", "slurm_failed")


async def show(job_id: str, timeout_s: float = commands.TIMEOUT_S) -> Job | None:
    """Returns a job as shown by `scontrol`, or None if Slurm no longer knows the job or does not answer.

    For an array, returns an element that has nodes, if there is one.

    Each call queries Slurm. The load is small, because there are only a few calls per job: after the job's submission,
    when Slurm signals the job, and when its keepers are no longer running.
    """
    try:
        found = await show_all(job_id, timeout_s)
    except RpcError:
        return None
    return next((job for job in found if job.is_active), found[0]) if found else None


async def show_all(job_id: str, timeout_s: float = commands.TIMEOUT_S) -> list[Job]:
    """Returns the job with this ID or, for an array, its elements. Waiting elements count as one job: `24_[3-9%2]`.

    Returns [] if Slurm no longer knows the job. Raises RpcError if Slurm does not answer.
    """
    try:
        text = await commands.output(["scontrol", "-o", "show", "job", job_id], timeout_s)
    except RpcError as error:
        if UNKNOWN not in error.message:
            raise
        return []
    return [_shown(job_id, line) for line in text.splitlines() if line.strip()]


def _shown(job_id: str, line: str) -> Job:
    """Parses a line of `scontrol -o show job`."""
    found = commands.pairs(line)
    if "ArrayTaskId" in found:
        tasks = found["ArrayTaskId"]
        job_id = f"{found['ArrayJobId']}_{tasks if tasks.isdigit() else f'[{tasks}]'}"
    start = commands.seconds(found.get("StartTime", ""))
    state, reason, nodes = (found.get(name, "") for name in ("JobState", "Reason", "NodeList"))
    restarts = found.get("Restarts", "")
    requeues = found.get("Requeue") != "0"
    preempted = found.get("PreemptTime", "None") not in ("None", "N/A", "Unknown", "")
    count, end = int(restarts) if restarts.isdigit() else 0, commands.seconds(found.get("EndTime", ""))
    return Job(job_id, state, reason, start, nodes, requeues, count, preempted, end)


async def ended_state(job_id: str) -> str | None:
    """Returns the final state of a job that has left the queue, such as TIMEOUT, or "" if it is unknown.

    Returns None if the job is in the queue, or if Slurm does not answer.
    """
    try:
        found = await show_all(job_id)
    except RpcError:
        return None
    if any(job.is_pending or job.is_active for job in found):
        return None
    return found[0].state if found else await accounted_state(job_id)


async def accounted_state(job_id: str) -> str:
    """Returns the last state of a job that slurmctld has forgotten, such as TIMEOUT, or "" if it is unknown.

    slurmctld forgets a job a few minutes after its end (MinJobAge). With `-D`, `sacct` also prints the earlier starts
    of a job that was requeued; the last line is that of the newest start.
    """
    states = await accounted_states(job_id)
    return states[-1] if states else ""


async def accounted_states(job_id: str, timeout_s: float = commands.TIMEOUT_S) -> list[str]:
    """Returns the last state of each start of a job, oldest first, or [] if the cluster has no accounting."""
    try:
        text = await commands.output(["sacct", "-n", "-X", "-D", "-P", "-j", job_id, "-o", "State"], timeout_s)
    except RpcError:
        return []
    return [line.split()[0] for line in text.splitlines() if line.strip()]  # A state may be `CANCELLED by 1000`.
