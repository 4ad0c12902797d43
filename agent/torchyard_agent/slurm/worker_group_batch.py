"""The batch program of the job of one worker group.

An asynchronous strategy has a job for each worker group, so that groups start, fail and are preempted independently.
The first job of the run has the primary, the servers and the chief's group. The keepers of the other jobs join the
primary's gang link, whose address and key are in `gang.json` in the job's folder, and leave it when Slurm ends their
job:

    first job      ──runs──> gang.json ──────────────────────────────────────────────> ends: gang.json is removed
    group's job    ──waits for gang.json──> keepers join ──signal──> keepers leave ──> requeued until the run has ended

If the first job is interrupted, the keepers of all groups learn of this from the primary, and their jobs are requeued.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from typing import Any

from torchyard_agent.keeper.link.gang_link import Message
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.messages import JoinFromOwnJob
from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.slurm import commands, job_folder, job_queue
from torchyard_agent.slurm.batch_program import AFTER_REQUEUE_S, GROUP, KEEPERS_WITHIN_S, LEAVES, Batch, set_up_process

LOOK_EVERY_S = 1.0
"""Interval in seconds at which `gang.json` is read, and at which a connection to the primary is tried."""
ASK_EVERY_S = 15.0
"""Interval in seconds at which Slurm is asked whether the first job runs."""
CONNECT_WITHIN_S = 5.0
WORKED_S = 120.0
"""Keepers that ran longer than this time in seconds are considered to have worked, and their job is requeued."""

log = logging.getLogger(__name__)


def main(folder: str, group: str) -> int:
    """Runs the batch program of the job of the worker group `group` in `folder`. Returns the exit status."""
    set_up_process()
    return asyncio.run(GroupBatch(folder, group).run())


class GroupBatch(Batch):
    """The batch program of the job of a worker group, such as `group-1`."""

    def __init__(self, folder: str, group: str):
        super().__init__(folder, job_folder.read(folder, "job.json")["groups"][group]["components"])
        self._group = group
        self._gang: dict[str, Any] = {}
        self._begun_at = 0.0
        self.started_file = f"{group}.started.json"
        self.keeper_log = f"{group}-%N.log"

    async def run(self) -> int:
        job_folder.remove(self._folder, f"{self._group}.json")
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2):
            asyncio.get_running_loop().add_signal_handler(number, self._on_notice, number)
        waits = await self._wait_for_primary()
        return await super().run() if waits is None else waits

    async def _wait_for_primary(self) -> int | None:
        """Waits until the primary can be reached, and then returns None.

        If the primary cannot be reached, requeues the job, unless the run or its first job has ended, and returns the
        exit status of the job.
        """
        loop = asyncio.get_running_loop()
        deadline, ask_at = loop.time() + KEEPERS_WITHIN_S, 0.0
        while loop.time() < deadline and not self._signal:
            if job_folder.view(self._run_dir, self._run_id)["ended"]:
                return 0
            if loop.time() >= ask_at:
                ask_at = loop.time() + ASK_EVERY_S
                first = await job_queue.show(job_folder.job_id(self._folder))
                if first is None or not (first.is_pending or first.is_active):
                    log.info("the first job of the run has ended: %s", first)
                    return 0
                if first.is_pending:
                    break
            self._gang = job_folder.read(self._folder, job_folder.GANG)
            if self._gang and await self._answers(self._gang["primary"]):
                return None
            await asyncio.sleep(LOOK_EVERY_S)
        log.info("the primary cannot be reached, so the nodes are given back")
        return await self._requeue()

    async def _answers(self, primary: dict[str, Any]) -> bool:
        """Returns whether the primary accepts connections. If its job was killed, `gang.json` outlives the primary."""
        try:
            opening = asyncio.open_connection(primary["address"], int(primary["gang_port"]))
            _, writer = await asyncio.wait_for(opening, CONNECT_WITHIN_S)
        except (OSError, asyncio.TimeoutError):
            return False
        writer.close()
        return True

    async def _begin_start(self) -> None:
        """Does nothing: the journal belongs to the first job."""

    @property
    def _gang_secret(self) -> str:
        return str(self._gang["secret"])

    def _environment(self, port: int) -> dict[str, str]:
        return {**super()._environment(port), GROUP: self._group}

    def _begin(self) -> None:
        """Sends the primary's address to the keepers."""
        self._has_begun = True
        self._begun_at = asyncio.get_running_loop().time()
        for stream in self._streams.values():
            stream.send({"op": "join", "params": JoinFromOwnJob(primary=self._gang["primary"], own_job=True)})

    def _on_notice(self, number: int) -> None:
        """Makes the keepers leave the run, because Slurm has announced the job's end."""
        self._signal = number
        self._ask({"op": "leave", "reason": LEAVES})

    def _on_stop(self) -> None:
        self._on_notice(signal.SIGUSR2)

    def _ask(self, request: Message) -> None:
        log.info("asked: %s", request)
        if self._has_begun:
            for stream in self._streams.values():
                stream.send(request)
        elif self._srun is not None:
            self._give_up("")

    async def _have_failed(self) -> bool:
        """Returns whether the keepers ended by themselves soon after they began, although the primary continues."""
        worked_s = asyncio.get_running_loop().time() - self._begun_at
        if self._signal or not self._has_begun or worked_s > WORKED_S:
            return False
        state = job_folder.view(self._run_dir, self._run_id)["state"]
        first = await job_queue.show(job_folder.job_id(self._folder))
        goes_on = state in (RunState.STARTING.value, RunState.RUNNING.value, RunState.RESTARTING.value)
        return goes_on and first is not None and first.is_active and await self._answers(self._gang["primary"])

    async def _finish(self, code: int) -> int:
        """Requeues the job, unless the run has ended, the job was cancelled, or its keepers have failed.

        Returns the exit status of the job.
        """
        if job_folder.view(self._run_dir, self._run_id)["ended"]:
            return 0
        job = await job_queue.show(self._own)
        if job is not None and job.was_cancelled(self._restarts):
            log.info("the job was cancelled in Slurm")
            return 0
        is_interrupted = job is not None and job.interruption(self._restarts) != ""
        if not self._problem and not is_interrupted and await self._have_failed():
            self._problem = f"its keepers could not join the run: see {self.keeper_log.replace('%N', '*')}"
        if self._problem:
            log.error("%s", self._problem)
            job_folder.write(self._folder, f"{self._group}.json", {"problem": self._problem})
            return 1
        return await self._requeue()

    async def _requeue(self) -> int:
        """Requeues the job, or submits a successor. Returns the exit status of this job."""
        job = await job_queue.show(self._own)
        if job is None or job.may_requeue:
            from torchyard_agent.slurm import reservations  # Needed only at the end of a job.

            with contextlib.suppress(RpcError):  # Slurm may have requeued the job already.
                await reservations.leave_if_ending(self._own)
                if job is None or not job.has_left(self._restarts):
                    await commands.output(["scontrol", "requeue", self._own])
            if job is None or not job.has_left(self._restarts):
                await asyncio.sleep(AFTER_REQUEUE_S)  # Slurm ends this program during the wait.
            return 1
        script = os.path.join(self._folder, f"{self._group}.sh")
        successor = await job_queue.submit(f"--dependency=afterany:{self._own}", script)
        job_folder.note_group(self._folder, self._group, successor)
        return 0
