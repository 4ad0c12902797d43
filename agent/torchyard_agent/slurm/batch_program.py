"""The batch program of a run's job.

The batch program starts a keeper on each node, sends the run's plan to the keepers, and may requeue the job. It
outlives the keepers.

It listens on a port, and passes the port and a secret for authentication to the keepers in the environment of `srun`.
All decisions about the run are made by the primary.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Mapping
from typing import Any

from torchyard_agent.keeper.link.gang_link import NETWORK_ERRORS, Listener, Message, Stream
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.messages import Prepared
from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.slurm import commands, interruption, job_folder, job_queue, run_plan

PORT, SECRET, SLOTS = "TORCHYARD_SLURM_PORT", "TORCHYARD_SLURM_SECRET", "TORCHYARD_SLURM_SLOTS"
"""Environment variables of the keepers: the batch program's port, the secret in hex, and the slots by node (JSON)."""
GROUP = "TORCHYARD_SLURM_GROUP"
"""Environment variable with the name of the worker group, set for the keepers' tasks of a group job."""
LEAVES = "Slurm ends its job"
"""The reason given when the nodes of a group job leave the run."""
TAKEN = "Slurm takes its nodes: it saves, and continues if Slurm starts it again"
"""The reason given for a run that ends because of SIGTERM, for example in a preemption or a requeue."""
ENDS_SOON = "Slurm ends its job soon: it saves, and continues in the same job"
"""The reason given for a run that ends because of SIGUSR1, before its time limit or in a preemption with notice."""
TIME_LEFT_WITHIN_S = 2.0
"""Timeout in seconds of the query for the time at which Slurm will kill the job."""
AFTER_REQUEUE_S = 60.0
"""Time in seconds that the batch program waits after `scontrol requeue` for Slurm to end it."""
KEEPERS_WITHIN_S = 180.0
"""Time limit in seconds for the preparation of all keepers, including copying the code to each node."""
LAUNCH_LEASE_S = 600.0
"""Launch lease in seconds of the keepers, during which a prepared keeper waits for the other keepers of the run."""
PRIMARY_ENDS_WITHIN_S = 60.0
"""Time limit in seconds for the primary to save and to report the run's end after srun has ended."""
LOOK_EVERY_S = 0.05
"""Interval in seconds at which the batch program checks whether the primary has ended."""

log = logging.getLogger(__name__)


def main(folder: str) -> int:
    """Runs the batch program of the job in `folder`. Returns the exit status."""
    set_up_process()
    return asyncio.run(Batch(folder).run())


def set_up_process() -> None:
    """Sets the format of the log, and gives new files to their owner alone. Called first in every batch program."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.umask(0o077)


class Batch:
    """The batch program of the job that has the run's primary.

    Args:
        folder: The job's folder.
        components: The components of the job, by default those in `job.json`.
    """

    started_file = "started.json"
    keeper_log = "keeper-%N.log"

    def __init__(self, folder: str, components: list[dict[str, Any]] | None = None):
        self._folder = folder
        self._job: dict[str, Any] = job_folder.read(folder, "job.json")
        self._run_id: str = self._job["run_id"]
        self._run_dir = os.path.dirname(folder)
        self._components: list[dict[str, Any]] = components or self._job["components"]
        self._slots: list[str] = [slot for component in self._components for slot in component["slots"]]
        self._primary = self._slots[0]
        self._secret = os.urandom(32)
        self._node_of: dict[str, str] = {}
        self._streams: dict[str, Stream] = {}
        self._connected: set[str] = set()
        """The slots whose keepers are connected."""
        self._prepared: dict[str, Prepared] = {}
        self._gpus: dict[str, list[str]] = {}
        self._problem = ""
        """The reason why the run cannot begin."""
        self._outcome: dict[str, Any] | None = None
        """The primary's report of the run's end."""
        self._has_begun = False
        self._request: Message | None = None
        """The last request to stop or to pause the run."""
        self._signal = 0
        """The signal by which Slurm announced the job's end, or 0."""
        self._kill_wait_s: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._srun: asyncio.subprocess.Process | None = None
        self._own = _own_id(os.environ)
        self._restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        self._log_start = interruption.log_size(folder)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._on_notice, signal.SIGUSR1)
        loop.add_signal_handler(signal.SIGTERM, self._on_notice, signal.SIGTERM)
        loop.add_signal_handler(signal.SIGUSR2, self._on_stop)
        if job_folder.view(self._run_dir, self._run_id)["ended"]:
            log.info("the run has ended before its job started")
            return 0
        await self._begin_start()
        if job_folder.read(self._folder, "stop.json"):  # A stop that was requested while the last start was ending.
            self._on_stop()
            return await self._finish(0)
        self._node_of = await self._nodes()
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as bound:
            bound.bind(("", 0))
            bound.listen(len(self._slots) + 16)
            listener = Listener({self._secret: self._on_keeper})
            await listener.open(bound)
            started = {"nodes": self._node_of, "job_id": self._own, "restart": self._restarts}
            started["step_of"] = os.environ["SLURM_JOB_ID"]
            job_folder.write(self._folder, self.started_file, {**started, "log_start": self._log_start})
            self._srun = await asyncio.create_subprocess_exec(
                *self._srun_command(),
                stdin=asyncio.subprocess.DEVNULL,
                env=self._environment(bound.getsockname()[1]),
                start_new_session=True,  # A signal to the batch program's process group must not end srun.
            )
            self._keep(self._read_kill_wait())
            late = loop.call_later(KEEPERS_WITHIN_S, self._check_keepers)
            code = await self._srun.wait()
            late.cancel()
            await self._wait_for_primary_end()
            listener.close()
        log.info("srun ended with %d; the run: %s", code, self._outcome or self._problem or "not reported")
        return await self._finish(code)

    async def _wait_for_primary_end(self) -> None:
        """Waits until the primary has reported the run's end, or has left.

        When Slurm loses a node, srun ends immediately with status 0, although keepers may not yet have been signalled
        or may still be saving. This program must not write to the journal while the primary may still write to it.
        """
        deadline = asyncio.get_running_loop().time() + PRIMARY_ENDS_WITHIN_S
        while self._outcome is None and self._primary in self._connected:
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(LOOK_EVERY_S)

    async def _begin_start(self) -> None:
        """Journals the interruption of the job's last start, if its batch program was killed before it could do so."""
        job_folder.remove(self._folder, job_folder.GANG)
        if self._restarts == 0:
            return
        known = job_folder.view(self._run_dir, self._run_id)["interruptions"]
        if not any((one["job"], one["restart"]) == (self._own, self._restarts - 1) for one in known):
            started = job_folder.read(self._folder, "started.json") or {}
            cause = await interruption.of_killed(self._own, self._folder, started)
            if job_folder.journal_interruption(self._run_dir, self._run_id, self._own, self._restarts - 1, cause):
                self._on_interruption(cause)

    async def _nodes(self) -> dict[str, str]:
        """Returns the node of each slot.

        The slots of a job component are assigned the component's nodes in the order of Slurm's node list.
        """
        found: dict[str, str] = {}
        several = len(self._components) > 1
        for number, component in enumerate(self._components):
            name = f"SLURM_JOB_NODELIST_HET_GROUP_{number}" if several else "SLURM_JOB_NODELIST"
            nodes = (await commands.output(["scontrol", "show", "hostnames", os.environ[name]])).split()
            found.update(zip(component["slots"], nodes))
        return found

    def _srun_command(self) -> list[str]:
        common = ["--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--cpu-bind=none"]
        common += [f"--output={self._folder}/{self.keeper_log}", "--open-mode=append", *self._job["srun_options"]]
        main = os.path.join(self._job["archive"], "torchyard_agent", "__main__.py")
        task = [sys.executable, "-I", "-S", main, "slurm-node", self._job["agent_dir"], self._run_id]
        command = ["srun"]
        several = len(self._components) > 1
        for number, component in enumerate(self._components):
            group = [f"--het-group={number}"] if several else []
            command += [*([":"] if number else []), *group, *common, *component["options"], *task]
        return command

    def _environment(self, port: int) -> dict[str, str]:
        slots = {node: slot for slot, node in self._node_of.items()}
        ours = {PORT: str(port), SECRET: self._secret.hex(), SLOTS: json.dumps(slots)}
        return {**os.environ, **ours, "TORCHYARD_KEEPER_LAUNCH_LEASE_S": str(LAUNCH_LEASE_S)}

    async def _on_keeper(self, stream: Stream, introduction: Message) -> None:
        """Prepares a keeper, begins the run once all keepers are prepared, and receives the keeper's reports."""
        slot = str(introduction["slot"])
        stream.keep_alive()
        self._streams[slot] = stream
        planned = self._job["gpus"].get(slot, [])
        given = [str(gpu) for gpu in introduction["gpus"]]
        self._gpus[slot] = given
        if len(given) < len(planned):
            self._give_up(f"Slurm gave {self._node_of[slot]} {len(given)} of {len(planned)} GPUs")
            return
        params = {**self._job["prepare"][slot], "secret": self._gang_secret, "gpus": given[: len(planned)]}
        stream.send({"op": "prepare", "params": params})
        self._connected.add(slot)
        try:
            while True:
                self._on_report(slot, await stream.receive())
        except NETWORK_ERRORS as error:
            log.info("the keeper of %s has left: %s", slot, error or type(error).__name__)
            self._connected.discard(slot)

    def _on_report(self, slot: str, report: Message) -> None:
        if "error" in report:
            self._give_up(f"{self._node_of[slot]}: {report['error']}")
        elif "prepared" in report:
            self._prepared[slot] = report["prepared"]
            if len(self._prepared) == len(self._slots) and not self._problem:
                self._begin()
        elif "ended" in report and slot == self._primary:
            self._outcome = report["ended"]
        elif "signalled" in report:  # With a GraceTime, a preemption signals only the keepers.
            self._on_notice(signal.SIGTERM)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_kill_wait(self) -> None:
        self._kill_wait_s = await interruption.kill_wait()

    def _on_notice(self, number: int) -> None:
        """Pauses the run, because Slurm has announced the job's end by a signal to this program or to the keepers."""
        if not self._signal:
            self._signal = number
            # The ranks may have received the signal as well, and may exit. The run is paused before Slurm has answered
            # how much time is left, because the primary would otherwise treat their exit as a failure.
            self._ask({"op": "pause", "reason": TAKEN if number == signal.SIGTERM else ENDS_SOON})
            self._keep(self._limit_grace(time.time()))

    async def _limit_grace(self, signalled: float) -> None:
        """Tells the primary how much time Slurm leaves for saving.

        Args:
            signalled: The time of the signal in seconds since 1970.
        """
        job = await job_queue.show(self._own, TIME_LEFT_WITHIN_S)
        kill_wait_s = self._kill_wait_s if self._signal == signal.SIGTERM else None  # SIGUSR1 does not begin KillWait.
        left_s = interruption.time_left(job, kill_wait_s, signalled)
        log.info("time left for saving: %s s", left_s)
        if left_s is not None and self._has_begun and self._request is not None:
            within_s = interruption.grace_of(left_s - (time.time() - signalled))
            self._ask({**self._request, "within_s": within_s})

    def _check_keepers(self) -> None:
        """Gives up the run if it has not begun and a keeper is not prepared yet."""
        missing = [slot for slot in self._slots if slot not in self._prepared]
        if missing and not self._has_begun:
            node = self._node_of[missing[0]]
            name = self.keeper_log.replace("%N", node)
            self._give_up(f"the keeper on {node} did not start within {KEEPERS_WITHIN_S:.0f} s: see {name}")

    @property
    def _gang_secret(self) -> str:
        """The key of the gang link in hex."""
        return self._secret.hex()

    @property
    def _secrets_folder(self) -> str:
        return self._folder

    def _begin(self) -> None:
        """Sends the run's plan to the primary, and the primary's address to the other keepers and to the group jobs."""
        self._has_begun = True
        later = [slot for group in self._job.get("groups", {}).values() for slot in run_plan.slots(group["components"])]
        absent = {slot: run_plan.absent(self._job["prepare"][slot], len(self._job["gpus"][slot])) for slot in later}
        prepared = {**self._prepared, **{slot: place for slot, (place, _) in absent.items()}}
        gpus = {**self._gpus, **{slot: names for slot, (_, names) in absent.items()}}
        members = run_plan.members([*self._slots, *later], prepared)
        start = run_plan.fill(self._job["start"], prepared, gpus)
        start["own_jobs"] = run_plan.own_jobs(self._job["start"], later)
        secrets = job_folder.read(self._secrets_folder, "secrets.json") or {}
        self._streams[self._primary].send({"op": "start", "params": {**start, "members": members, "secrets": secrets}})
        if later:
            job_folder.write(self._folder, job_folder.GANG, {"primary": members[0], "secret": self._secret.hex()})
        for slot in self._slots[1:]:
            self._streams[slot].send({"op": "join", "params": {"primary": members[0]}})
        if self._request is not None:
            self._ask(self._request)

    def _on_stop(self) -> None:
        """Stops the run on SIGUSR2. The reason is read from `stop.json` if a session without a bridge wrote it."""
        left = job_folder.read(self._folder, "stop.json") or {}
        self._ask({"op": "stop", "reason": str(left.get("reason") or "stopped with scancel")})

    def _ask(self, request: Message) -> None:
        """Asks the primary to stop or pause the run. Gives up the run if it has not begun."""
        log.info("asked: %s", request)
        self._request = request
        if self._has_begun:
            self._streams[self._primary].send(request)
        elif self._srun is not None:
            self._give_up("")

    def _give_up(self, problem: str) -> None:
        """Ends the keepers of a run that cannot begin. `problem` is "" if the run was asked to stop or pause."""
        self._problem = self._problem or problem
        for stream in self._streams.values():
            stream.send({"op": "abort"})
        if self._srun is not None and self._srun.returncode is None and len(self._streams) < len(self._slots):
            with contextlib.suppress(ProcessLookupError):
                self._srun.terminate()

    async def _finish(self, code: int) -> int:
        """Records the end of the run or, if it was interrupted, makes its job start again.

        Returns the exit status of the job.
        """
        job_folder.remove(self._folder, job_folder.GANG)
        asked = (self._request or {}).get("op")
        # The primary's report takes precedence: a keeper may have paused the run on a signal that it could not report.
        paused = asked == "pause" if self._outcome is None else self._outcome["paused"]
        # Without a report or a request, Slurm may have taken the nodes before it signalled this program.
        is_unexplained = self._outcome is None and not asked and not self._problem
        job = await job_queue.show(self._own) if paused or is_unexplained else None
        if job is not None and job.was_cancelled(self._restarts):
            why = f"its job {self._own} was cancelled in Slurm"
            job_folder.journal_end(self._run_dir, self._run_id, RunState.STOPPED, why)
        elif paused or (job is not None and job.interruption(self._restarts)):
            if await self._continue(job):
                return 1
            why = "its job may not be requeued, and no further job could be submitted"
            job_folder.journal_end(self._run_dir, self._run_id, RunState.STOPPED, why)
        elif asked == "stop" and self._outcome is None:
            job_folder.journal_end(self._run_dir, self._run_id, RunState.STOPPED, str((self._request or {})["reason"]))
        elif self._problem:
            job_folder.journal_end(self._run_dir, self._run_id, RunState.FAILED, self._problem)
        elif self._outcome is None:
            why = f"its keepers ended before they reported the run's end (srun ended with {code})"
            job_folder.journal_end(self._run_dir, self._run_id, RunState.FAILED, why)
        job_folder.remove(self._folder, "secrets.json")
        for job_id in job_folder.group_jobs(self._folder).values():
            with contextlib.suppress(RpcError):  # Running group jobs learn of the run's end from the primary.
                await commands.output(["scancel", "--state=PENDING", job_id])
        state = job_folder.view(self._run_dir, self._run_id)["state"]
        return 1 if state == RunState.FAILED.value else 0

    async def _continue(self, job: job_queue.Job | None) -> bool:
        """Requeues the job or, if Slurm may not requeue it, submits a successor that starts after this job's end.

        Returns False if the successor could not be submitted, otherwise True.
        """
        own = self._own
        log.info("the job is %s", job)
        # `scontrol` does not show that Slurm sent SIGUSR1 because of the time limit.
        default = "TIMEOUT" if self._signal == signal.SIGUSR1 else "REQUEUED"
        cause = interruption.of_ended(job, self._restarts, self._folder, self._log_start, default)
        metrics = (self._outcome or {}).get("metrics")
        job_folder.journal_interruption(self._run_dir, self._run_id, own, self._restarts, cause, metrics)
        if job is None or job.may_requeue:
            from torchyard_agent.slurm import reservations  # Needed only at the end of a job.

            try:
                await reservations.leave_if_ending(own)
                if job is None or not job.has_left(self._restarts):
                    await commands.output(["scontrol", "requeue", own])
            except RpcError as error:  # Slurm has already requeued the job.
                log.info("not requeued: %s", error.message)
            self._on_interruption(cause)
            # If Slurm has already requeued the job, for example after a node was lost for a moment, this program ends
            # immediately: Slurm does not start the job on a node where the batch program of its last start still runs.
            if job is None or not job.has_left(self._restarts):
                await asyncio.sleep(AFTER_REQUEUE_S)  # Slurm ends this program during the wait.
            return True
        try:
            successor = await job_queue.submit(f"--dependency=afterany:{own}", *self._submission)
        except RpcError as error:
            log.warning("no successor: %s", error.message)
            return False
        job_folder.note_submission(self._folder, successor)
        self._on_interruption(cause)
        return True

    def _on_interruption(self, cause: str) -> None:
        """Called after an interruption has been journaled. Does nothing; the batch program of a trial overrides it."""

    @property
    def _submission(self) -> list[str]:
        """The arguments of `sbatch` for a successor of this job."""
        return [os.path.join(self._folder, "job.sh")]


def _own_id(environ: Mapping[str, str]) -> str:
    """Returns the ID of this job: the whole job's ID if the job is heterogeneous, and `24_3` for element 3 of array 24.

    SLURM_JOB_ID is not used for an element, because for the last element it equals the array's ID, which denotes all
    elements.
    """
    if "SLURM_ARRAY_JOB_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ.get("SLURM_HET_JOB_ID") or environ["SLURM_JOB_ID"]
