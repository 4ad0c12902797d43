"""The batch step of a run's job.

It starts a keeper on each node, passes the run to the keepers, and may requeue the job.

The batch program outlives the keepers. It listens on a port of its own. The keepers receive this port and the
generation's secret through the environment of `srun`. All decisions about the run are made by the primary.
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
from collections.abc import Coroutine
from typing import Any

from torchyard_agent.keeper.link.gang_link import NETWORK_ERRORS, Listener, Message, Stream
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.messages import Prepared
from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.slurm import commands, interruption, job_folder, job_queue, run_plan

PORT, SECRET, SLOTS = "TORCHYARD_SLURM_PORT", "TORCHYARD_SLURM_SECRET", "TORCHYARD_SLURM_SLOTS"
"""The variables of the nodes' tasks: the batch program's port, the secret in hex, and the slots by node (JSON)."""
GROUP = "TORCHYARD_SLURM_GROUP"
"""The variable with the worker group, if the nodes' tasks belong to a job of a worker group."""
LEAVES = "Slurm ends its job"
"""Why the nodes of a worker group leave the run."""
TAKEN = "Slurm takes its nodes: it saves, and continues when it gets nodes again"
"""The reason given for a run that ends because of SIGTERM, for example in a preemption or a requeue."""
ENDS_SOON = "Slurm ends its job soon: it saves, and continues in the same job"
"""The reason given for a run that ends because of SIGUSR1, before its time limit or in a preemption with notice."""
TIME_LEFT_WITHIN_S = 2.0
"""Time in seconds that Slurm may take to say how much time it leaves for saving."""
AFTER_REQUEUE_S = 60.0
"""Time in seconds within which Slurm ends the batch program after `scontrol requeue`."""
KEEPERS_WITHIN_S = 180.0
"""Time limit in seconds for the preparation of all keepers, including copying the code to each node."""
LAUNCH_LEASE_S = 600.0
"""Time in seconds for which keepers wait for the slowest keeper."""

log = logging.getLogger(__name__)


def main(folder: str, group: str = "") -> int:
    """Runs the job in `folder`, or that of a worker group, on the nodes of this allocation. Returns its exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.umask(0o077)
    if group:
        from torchyard_agent.slurm.worker_group_batch import GroupBatch  # It imports this module.

        return asyncio.run(GroupBatch(folder, group).run())
    return asyncio.run(Batch(folder).run())


class Batch:
    """The batch step of the job that has the run's primary.

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
        self._own = os.environ.get("SLURM_HET_JOB_ID") or os.environ["SLURM_JOB_ID"]
        """The ID of this job; of a heterogeneous job, the ID of all its components together."""
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
        self._node_of = await self._nodes()
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as bound:
            bound.bind(("", 0))
            bound.listen(len(self._slots) + 16)
            listener = Listener({self._secret: self._on_keeper})
            await listener.open(bound)
            started = {"nodes": self._node_of, "job_id": os.environ["SLURM_JOB_ID"], "restart": self._restarts}
            job_folder.write(self._folder, self.started_file, {**started, "log_start": self._log_start})
            self._srun = await asyncio.create_subprocess_exec(
                *self._srun_command(),
                stdin=asyncio.subprocess.DEVNULL,
                env=self._environment(bound.getsockname()[1]),
                start_new_session=True,  # A signal to the batch step's processes must not end srun.
            )
            self._keep(self._read_kill_wait())
            late = loop.call_later(KEEPERS_WITHIN_S, self._check_keepers)
            code = await self._srun.wait()
            late.cancel()
            listener.close()
        log.info("srun ended with %d; the run: %s", code, self._outcome or self._problem or "not reported")
        return await self._finish(code)

    async def _begin_start(self) -> None:
        """Journals why the job starts again, if the batch program of its last start was killed before it could."""
        job_folder.remove(self._folder, job_folder.GANG)
        if self._restarts == 0:
            return
        known = job_folder.view(self._run_dir, self._run_id)["interruptions"]
        if not any((one["job"], one["restart"]) == (self._own, self._restarts - 1) for one in known):
            started = job_folder.read(self._folder, "started.json") or {}
            cause = await interruption.of_killed(self._own, self._folder, started)
            job_folder.journal_interruption(self._run_dir, self._run_id, self._own, self._restarts - 1, cause)

    async def _nodes(self) -> dict[str, str]:
        """Returns the node of each slot.

        The slots of a job component get its nodes in the order of Slurm's node list.
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
        try:
            while True:
                self._on_report(slot, await stream.receive())
        except NETWORK_ERRORS as error:
            log.info("the keeper of %s has left: %s", slot, error or type(error).__name__)

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
            # The ranks may have received the signal as well, and end. This must not be taken for a failure of the run
            # until Slurm has answered how much time is left.
            self._ask({"op": "pause", "reason": TAKEN if number == signal.SIGTERM else ENDS_SOON})
            self._keep(self._limit_grace(time.time()))

    async def _limit_grace(self, signalled: float) -> None:
        """Tells the primary how much time Slurm leaves for saving.

        Args:
            signalled: The time of the signal in seconds since 1970.
        """
        job = await job_queue.show(self._own, TIME_LEFT_WITHIN_S)
        kill_wait_s = self._kill_wait_s if self._signal == signal.SIGTERM else None  # SIGUSR1 is always a notice.
        left_s = interruption.time_left(job, kill_wait_s, signalled)
        log.info("time left for saving: %s s", left_s)
        if left_s is not None and self._has_begun and self._request is not None:
            within_s = interruption.grace_of(left_s - (time.time() - signalled))
            self._ask({**self._request, "within_s": within_s})

    def _check_keepers(self) -> None:
        """Gives up the run if a keeper is missing."""
        missing = [slot for slot in self._slots if slot not in self._prepared]
        if missing and not self._has_begun:
            node = self._node_of[missing[0]]
            name = self.keeper_log.replace("%N", node)
            self._give_up(f"the keeper on {node} did not start within {KEEPERS_WITHIN_S:.0f} s: see {name}")

    @property
    def _gang_secret(self) -> str:
        """The key of the gang link in hex."""
        return self._secret.hex()

    def _begin(self) -> None:
        """Sends the run to the primary, and the primary's address to the other keepers and to the jobs of groups."""
        self._has_begun = True
        later = [slot for group in self._job.get("groups", {}).values() for slot in run_plan.slots(group["components"])]
        absent = {slot: run_plan.absent(self._job["prepare"][slot], len(self._job["gpus"][slot])) for slot in later}
        prepared = {**self._prepared, **{slot: place for slot, (place, _) in absent.items()}}
        gpus = {**self._gpus, **{slot: names for slot, (_, names) in absent.items()}}
        members = run_plan.members([*self._slots, *later], prepared)
        start = run_plan.fill(self._job["start"], prepared, gpus)
        start["own_jobs"] = run_plan.own_jobs(self._job["start"], later)
        secrets = job_folder.read(self._folder, "secrets.json") or {}
        self._streams[self._primary].send({"op": "start", "params": {**start, "members": members, "secrets": secrets}})
        if later:
            job_folder.write(self._folder, job_folder.GANG, {"primary": members[0], "secret": self._secret.hex()})
        for slot in self._slots[1:]:
            self._streams[slot].send({"op": "join", "params": {"primary": members[0]}})
        if self._request is not None:
            self._ask(self._request)

    def _on_stop(self) -> None:
        """Stops the run for the reason that a session without a bridge has left, if such a session sent the signal."""
        left = job_folder.read(self._folder, "stop.json") or {}
        self._ask({"op": "stop", "reason": str(left.get("reason") or "stopped with scancel")})

    def _ask(self, request: Message) -> None:
        """Asks the primary to stop or pause the run. If the run has not begun, it is given up."""
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
        """Records the end of the run, or lets it continue. Returns the exit status of the job."""
        job_folder.remove(self._folder, job_folder.GANG)
        asked = (self._request or {}).get("op")
        # A keeper that could not report its signal has paused the run itself.
        paused = asked == "pause" if self._outcome is None else self._outcome["paused"]
        job = await job_queue.show(self._own) if paused else None
        if job is not None and job.was_cancelled(self._restarts):
            why = f"its job {self._own} was cancelled in Slurm"
            job_folder.journal_end(self._run_dir, self._run_id, RunState.STOPPED, why)
        elif paused:
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
            with contextlib.suppress(RpcError):  # Running ones learn the end from the primary.
                await commands.output(["scancel", "--state=PENDING", job_id])
        state = job_folder.view(self._run_dir, self._run_id)["state"]
        return 1 if state == RunState.FAILED.value else 0

    async def _continue(self, job: job_queue.Job | None) -> bool:
        """Requeues the job, or submits a successor that waits for this job's end. Returns whether either worked."""
        own = self._own
        log.info("the job is %s", job)
        # Before the time limit, Slurm does nothing to the job but send a signal.
        default = "TIMEOUT" if self._signal == signal.SIGUSR1 else "REQUEUED"
        cause = interruption.of_ended(job, self._restarts, self._folder, self._log_start, default)
        job_folder.journal_interruption(self._run_dir, self._run_id, own, self._restarts, cause)
        if job is None or job.may_requeue:
            try:
                await commands.output(["scontrol", "requeue", own])
            except RpcError as error:  # Slurm has already requeued the job.
                log.info("not requeued: %s", error.message)
            await asyncio.sleep(AFTER_REQUEUE_S)  # Slurm ends this program during the wait.
            return True
        script = os.path.join(self._folder, "job.sh")
        try:
            said = await commands.output(["sbatch", "--parsable", f"--dependency=afterany:{own}", script])
        except RpcError as error:
            log.warning("no successor: %s", error.message)
            return False
        job_folder.note_submission(self._folder, said.strip().split(";")[0])
        return True
