"""The user's jobs in the cluster's queue. One call of `squeue` serves all runs, and is made at most every 30 s.

All sessions of the user on all login nodes share the answer through a file.
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


class Job(NamedTuple):
    """A job in the queue. `start` is the time in seconds since 1970 of its start, or Slurm's estimate, if known."""

    job_id: str
    state: str
    reason: str
    start: float | None
    nodes: str
    may_requeue: bool = True
    """Whether Slurm may start the job again. Like `restarts`, this is only known from `show`."""
    restarts: int = 0
    is_preempted: bool = False
    """Whether Slurm has begun to take the job's nodes for another job. Only known from `show`."""
    end: float | None = None
    """The time in seconds since 1970 at which Slurm will end the job, or ended it. Only known from `show`.

    It is the end of the time limit or, after a preemption with GraceTime, the end of that time.
    """

    @property
    def is_active(self) -> bool:
        """Whether the job has nodes."""
        return self.state in ("CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED")

    @property
    def is_pending(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "PD")

    def was_cancelled(self, restarts: int) -> bool:
        """Returns whether a user cancelled the job after this number of restarts.

        While the job is ending, its state is always COMPLETING. However, a requeue has already been counted in the
        job's number of restarts.
        """
        is_ending = self.state in ("CANCELLED", "COMPLETING")
        return is_ending and self.interruption(restarts) == ""

    def interruption(self, restarts: int) -> str:
        """Returns Slurm's name of what interrupted the job after this number of restarts, or "" if nothing did.

        While the job is ending, its state says nothing (see `was_cancelled`), but its other fields do. A preemption
        without GraceTime is reported as REQUEUED.
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
        reason = self.reason.strip("()") or "None"
        text = f"job {self.job_id} waits in the queue"
        text += "" if reason == "None" else f": {reason}"
        if self.start is not None and self.start > time.time():
            text += f"; Slurm expects its start at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(self.start))}"
        return text


EVERYONE = ("UserName", "EndTime")
"""Columns in addition to COLUMNS. The calendar needs them, which shows the jobs of all users."""
WANTED_S = 150.0
"""Time in seconds for which queries cover the jobs of all users after a calendar was requested."""


class JobQueue:
    """The queue as of the last answer of `squeue`."""

    def __init__(self, folder: str):
        self._file = os.path.join(folder, "queue.json")
        self._wanted = os.path.join(folder, "calendar-wanted")
        self.everyone_as_of = 0.0
        """The time of the last answer with the jobs of all users, or 0 before the first one."""
        self._everyone: list[list[str]] = []
        self._lock = asyncio.Lock()
        self._failures = 0
        self._problem = RpcError("squeue does not answer", "slurm_timeout")
        """The error of the last query that failed."""
        self._tried = float("-inf")
        self.as_of = 0.0
        """The time of the answer in seconds since 1970, or 0 before the first answer."""
        self._jobs: dict[str, Job] = {}
        self.ends: dict[str, str] = {}
        """How Slurm ended the jobs that left the queue before the end of their runs, by run."""

    async def refresh(self) -> bool:
        """Queries Slurm, unless the last answer is newer than EVERY_S. Returns whether there is a new answer."""
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
        """Returns the jobs of all users as far as the cluster shows them: ID, name, state, start, nodes, user and end.

        Until the next query, the answer is that of the last one. Raises RpcError if there is no answer.
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
            known = self._jobs.get(run_id)
            # Components of a heterogeneous job share its name, and so does a successor of an ending job.
            if known is None or (known.state in ("COMPLETING", "COMPLETED") and job.state not in ("COMPLETING",)):
                self._jobs[run_id] = job

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[bool]:
        """Yields whether no other session is querying Slurm at the moment."""
        lock = os.open(f"{self._file}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except OSError:
            yield False
        finally:
            os.close(lock)


async def show(job_id: str, timeout_s: float = commands.TIMEOUT_S) -> Job | None:
    """Returns a job as shown by `scontrol`, or None if Slurm no longer knows the job. This does not count as polling.

    Called only a few times per job: after its submission, when Slurm signals it, and when its keepers are no longer
    running.
    """
    try:
        text = await commands.output(["scontrol", "-o", "show", "job", job_id], timeout_s)
    except RpcError:
        return None
    found = commands.pairs(text.splitlines()[0])
    start = commands.seconds(found.get("StartTime", ""))
    state, reason, nodes = (found.get(name, "") for name in ("JobState", "Reason", "NodeList"))
    restarts = found.get("Restarts", "")
    requeues = found.get("Requeue") != "0"
    preempted = found.get("PreemptTime", "None") not in ("None", "N/A", "Unknown", "")
    count, end = int(restarts) if restarts.isdigit() else 0, commands.seconds(found.get("EndTime", ""))
    return Job(job_id, state, reason, start, nodes, requeues, count, preempted, end)


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
