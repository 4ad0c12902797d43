"""The runs of one slot of a cluster. Their states are read from shared files, the job queue, and the primary."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import tempfile
import time
from functools import partial
from typing import Any, Callable

from torchyard_agent.background_threads import in_a_thread
from torchyard_agent.daemon.runs import Runs
from torchyard_agent.daemon.subscriptions import Telemetry
from torchyard_agent.journal import JournalReader
from torchyard_agent.protocol import journal_replay, jsonrpc, paths
from torchyard_agent.protocol.attribution import attribution_entry, clean_name
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.slurm import (
    bridge,
    bridge_attempts,
    commands,
    interruption,
    job_folder,
    job_queue,
    sweep_folder,
    sweep_jobs,
)
from torchyard_agent.slurm.bridge_attempts import FailedAttempts
from torchyard_agent.slurm.job_queue import JobQueue
from torchyard_agent.unix_socket_rpc import Connection

FIRST_ANSWER_S = 15.0
EXIT_WITHIN_S = 2.0
WATCH_S = 5.0
"""Interval in seconds at which a session looks for runs whose jobs are waiting."""

log = logging.getLogger(__name__)


class ClusterRuns(Runs):
    """Runs whose keepers are tasks of Slurm jobs. Only the primary can be reached, by a bridge to its node."""

    poll_s = 1.0

    def __init__(self, agent_dir: str, cluster: str, slot: str, archive: str, queue: JobQueue):
        super().__init__(agent_dir, slot)
        self._cluster = cluster
        self._archive = archive
        self._queue = queue
        self.is_primary = slot == job_folder.primary_slot(cluster)
        self._connecting: dict[str, asyncio.Lock] = {}
        self._gone: set[str] = set()
        """Runs whose job has left the queue."""
        self._over: set[str] = set()
        """Runs that have ended, whose journals need not be read again."""
        self._views: dict[str, tuple[JournalReader, dict[str, Any]]] = {}
        """By ID of a run that has not ended: a reader of the primary's journal, and the state after the last read."""

    def folder(self, run_id: str) -> str:
        """Returns the path of the run's folder on this slot. The folder does not exist before the job's first start.

        Raises RpcError if the cluster does not know the run, or if the run has no such slot.
        """
        try:
            return super().folder(run_id)
        except RpcError:
            components = job_folder.read(self._job_folder(run_id), "job.json").get("components", [])
            if not any(self._node in component["slots"] for component in components):
                raise
            return paths.run_dir(self._agent_dir, self._node, run_id)

    def _job_folder(self, run_id: str) -> str:
        return job_folder.path(job_folder.run_dir(self._agent_dir, self._cluster, run_id))

    async def keeper(self, run_id: str) -> Connection | None:
        known = self._keepers.get(run_id)
        if known is not None and not known.closed:
            return known
        if not self.is_primary or (sweep_folder.sweep_of(run_id) and run_id not in self._listeners):
            return None  # A sweep may have many trials, so a trial is connected only while a desktop follows it.
        async with self._connecting.setdefault(run_id, asyncio.Lock()):
            known = self._keepers.get(run_id)
            if known is not None and not known.closed:
                return known
            return await self._connect(run_id)

    async def _connect(self, run_id: str) -> Connection | None:
        """Opens a bridge to the run's keeper, and returns the connection.

        Returns None if the run is not running, if a bridge failed to open only recently, or if no bridge can be opened.
        """
        run_dir = paths.run_dir(self._agent_dir, self._node, run_id)
        if run_id in self._gone or not os.path.lexists(paths.keeper_note(run_dir)) or self._has_run_ended(run_id):
            return None
        folder = job_folder.path(run_dir)
        started = job_folder.read(folder, "started.json")
        if not started or self._is_over(run_id, started):
            return None
        start, node = bridge_attempts.start_of(started), str(started["nodes"][self._node])
        failed = FailedAttempts.read(folder, start)
        if failed is not None and not failed.is_due(time.time()):
            return None
        job_id = str(started.get("step_of", started["job_id"]))
        step = bridge_attempts.step_command(self._archive, run_dir, job_id, node)
        connection, step_problem = await self._open(run_id, step)
        if connection is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, bridge_attempts.FILE))
            return connection
        log.info("no step of the job of %s: %s", run_id, step_problem)
        now = time.time()
        failed = FailedAttempts(start, failed.since if failed is not None else now, now, step_problem, "")
        if failed.allows_ssh(now):
            ssh = bridge_attempts.ssh_command(self._archive, run_dir, node)
            connection, ssh_problem = await self._open(run_id, ssh)
            log.info("SSH to the node of %s: %s", run_id, ssh_problem or "works")
            failed = failed._replace(ssh=ssh_problem, tried=0.0 if connection is not None else now)
        with contextlib.suppress(OSError):
            failed.write(folder)
        return connection

    def _is_over(self, run_id: str, started: dict[str, Any]) -> bool:
        """Returns whether Slurm has interrupted the start of the run's job that `started` describes."""
        start = str(started["job_id"]), started.get("restart", 0)
        return any((one["job"], one["restart"]) == start for one in self._view(run_id)["interruptions"])

    async def _open(self, run_id: str, command: list[str]) -> tuple[Connection | None, str]:
        """Starts a bridge. Returns the connection to the keeper, or None and the reason why there is none."""
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as errors:
            with theirs:
                try:
                    process = await asyncio.create_subprocess_exec(
                        *command,
                        stdin=theirs.fileno(),
                        stdout=theirs.fileno(),
                        stderr=errors,
                        env=commands.environment(os.environ),
                        start_new_session=True,
                    )
                except OSError as error:
                    ours.close()
                    return None, f"{command[0]}: {error.strerror}"
            connection = await self._adopt(run_id, ours, process)
            try:
                await connection.call("status", {}, timeout=FIRST_ANSWER_S)
            except RpcError as error:
                connection.close()
                with contextlib.suppress(asyncio.TimeoutError):  # The program may print its error only when it exits.
                    await asyncio.wait_for(process.wait(), EXIT_WITHIN_S)
                errors.seek(0)
                printed = errors.read(65536).decode(errors="replace")
                return None, bridge_attempts.error_in(printed) or error.message
        self._keepers[run_id] = connection

        def forget() -> None:
            self._keepers.pop(run_id, None)
            self._wake(run_id)

        connection.on_close.append(forget)
        return connection, ""

    def telemetry_problem(self, run_id: str) -> str:
        """Returns why live telemetry of a run is missing, as a clause, or "" if it is not missing."""
        folder = job_folder.path(paths.run_dir(self._agent_dir, self._node, run_id))
        started = job_folder.read(folder, "started.json")
        if not started or run_id in self._keepers or self._has_run_ended(run_id) or self._is_over(run_id, started):
            return ""
        failed = FailedAttempts.read(folder, bridge_attempts.start_of(started))
        return failed.problem if failed is not None else ""

    async def show(self, run_id: str) -> dict[str, Any]:
        shown = await super().show(run_id)
        if not shown["alive"] and not shown["ended"] and self._has_run_ended(run_id):
            shown = await super().show(run_id)  # The end was journaled after the first call had read the journal.
        problem = self.telemetry_problem(run_id) if shown["alive"] else ""
        waits = shown["state"] == RunState.WAITING.value
        jobs = self._jobs(run_id, is_alive=shown["alive"], waits=waits)
        # A waiting run has no nodes, and may start on other nodes than the last time.
        folder = job_folder.path(job_folder.run_dir(self._agent_dir, self._cluster, run_id))
        nodes = {} if waits else job_folder.nodes(folder)
        return {**shown, "telemetry_problem": problem, "jobs": jobs, "nodes": nodes}

    def _jobs(self, run_id: str, *, is_alive: bool, waits: bool) -> list[dict[str, str]]:
        """Returns the newest jobs of a run: `job_id`, `group`, `state` and `problem`, the one with the primary first.

        `group` is "" for the job with the primary. `state` is taken from the latest output of `squeue`. It is "" if it
        is unknown, or if the run waits and the output is older than the requeue of the run's job.
        """
        folder = job_folder.path(paths.run_dir(self._agent_dir, self._node, run_id))
        first = job_folder.job_id(folder)
        if not self.is_primary or not first:
            return []
        if sweep_folder.is_sweep(os.path.dirname(folder)):
            known = self._queue.job(run_id) if is_alive else None
            state = "" if known is None else known.state
            jobs = sweep_jobs.ids(folder)
            return [{"job_id": job_id, "group": "", "state": state, "problem": ""} for job_id in jobs]
        found = []
        for group, job_id in {"": first, **job_folder.group_jobs(folder)}.items():
            job = self._queue.job(f"{run_id}-{group}" if group else run_id) if is_alive else None
            problem = (job_folder.read(folder, f"{group}.json") or {}).get("problem", "") if group else ""
            is_outdated = job is not None and waits and not group and not job.is_pending
            state = "" if job is None or is_outdated else job.state
            found.append({"job_id": job_id, "group": group, "state": state, "problem": str(problem)})
        return found

    async def _adopt(self, run_id: str, ours: socket.socket, process: asyncio.subprocess.Process) -> Connection:
        """Returns a connection over the bridge `process`. It sends heartbeats, and closing it terminates the bridge."""
        loop = asyncio.get_running_loop()
        ours.setblocking(False)
        reader = asyncio.StreamReader(limit=jsonrpc.MAX_LINE)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, ours)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        connection = Connection(reader, writer, {}, lambda method, _: self._wake(run_id))

        async def beat() -> None:
            while True:
                await asyncio.sleep(bridge.HEARTBEAT_S)
                writer.write(bridge.HEARTBEAT)

        async def reap() -> None:
            await process.wait()
            connection.close()

        def end() -> None:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()

        connection.keep(loop.create_task(connection.serve()))
        connection.keep(loop.create_task(beat()))
        self._create_task(reap())
        connection.on_close.append(end)
        return connection

    async def is_open(self, run_id: str) -> bool:
        if self.is_primary and await self.keeper(run_id) is not None:
            return True
        if run_id in self._gone or self._has_run_ended(run_id):
            return False
        folder = self._job_folder(run_id)
        submitted = job_folder.read(folder, "submitted.json")
        if not submitted:
            return False
        await self._queue.refresh()
        if self._queue.job(run_id) is not None or self._queue.as_of <= float(submitted["at"]) + 1.0:
            return True
        if self._has_run_ended(run_id):
            return False
        if sweep_folder.is_sweep(os.path.dirname(folder)):
            return await self._has_sweep_jobs(run_id)
        job_id = job_folder.job_id(folder)
        state = await job_queue.ended_state(job_id)
        if state is None:
            return True
        if sweep_folder.sweep_of(run_id):
            sweep_jobs.end_lost_trial(self.folder(run_id), run_id, state)
            await self._update_trial(run_id)
            return False
        if state == "CANCELLED":
            self._end(run_id, f"its job {job_id} was cancelled in Slurm")
            return False
        self._gone.add(run_id)
        if state:
            self._queue.ends[run_id] = f"Slurm ended its job {job_id}: {state}"
        return False

    async def _has_sweep_jobs(self, run_id: str) -> bool:
        """Returns whether a sweep may still have jobs. If it certainly has none, ends the sweep."""
        run_dir = self.folder(run_id)
        try:
            if await sweep_jobs.live(run_dir):
                return True
        except RpcError as error:
            log.warning("the jobs of %s: %s", run_id, error.message)
            return True
        with contextlib.suppress(RpcError):  # An error is unlikely, because Slurm has just answered.
            await sweep_jobs.end_lost_trials(run_dir)
        await in_a_thread(self._locked, run_dir, partial(sweep_folder.end_without_jobs, run_dir, run_id))
        self._wake(run_id)
        return False

    async def _update_trial(self, run_id: str) -> None:
        """Updates the table of the sweep to which the run belongs. Does nothing if the run is not a trial."""
        sweep = sweep_folder.sweep_of(run_id)
        if sweep:
            run_dir = sweep_folder.sibling(self.folder(run_id), sweep)
            await in_a_thread(self._locked, run_dir, partial(sweep_folder.update_table, run_dir))
            self._wake(run_id)
            self._wake(sweep)

    def _locked(self, run_dir: str, action: Callable[[], None]) -> None:
        with sweep_folder.lock(run_dir):
            action()

    def _end(self, run_id: str, reason: str, asked: dict[str, Any] | None = None) -> None:
        """Journals that a run without a keeper was stopped, unless it had already ended, and removes its secrets."""
        run_dir = job_folder.run_dir(self._agent_dir, self._cluster, run_id)
        job_folder.journal_end(run_dir, run_id, RunState.STOPPED, reason, asked)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(job_folder.path(run_dir), "secrets.json"))
        self._wake(run_id)

    def logs_end(self, run_id: str) -> Callable[[], bool]:
        """Returns a function that tells whether the run has ended on all slots, or has lost its job.

        A slot without a keeper does not mean that its logs are complete: while a job waits in the queue, no slot has a
        keeper, but the logs grow again once the job starts.
        """
        return lambda: run_id in self._gone or self._has_run_ended(run_id)

    def _view(self, run_id: str) -> dict[str, Any]:
        """Returns the state of a run according to its primary's journal, of which only new entries are read."""
        if run_id not in self._views:
            run_dir = job_folder.run_dir(self._agent_dir, self._cluster, run_id)
            self._views[run_id] = JournalReader(run_dir), journal_replay.new_view(run_id)
        reader, view = self._views[run_id]
        for entry in reader.read():
            journal_replay.apply(view, entry)
        return view

    def _has_run_ended(self, run_id: str) -> bool:
        if run_id not in self._over and self._view(run_id)["ended"]:
            self._over.add(run_id)
            del self._views[run_id]
        return run_id in self._over

    def death(self, run_id: str) -> str:
        if run_id in self._queue.ends:
            return self._queue.ends[run_id]
        job_id = job_folder.job_id(self._job_folder(run_id))
        return f"its job {job_id} has left the queue before the run's end"

    def close(self) -> None:
        """Ends the bridges to keepers. The runs continue."""
        for keeper in list(self._keepers.values()):
            keeper.close()

    @property
    def open_ids(self) -> list[str]:
        """The runs whose keepers are connected."""
        return list(self._keepers)

    @property
    def followed_ids(self) -> list[str]:
        """The runs that the desktop follows."""
        return list(self._listeners)

    async def end_orphans(self, run_id: str) -> None:
        """Does nothing: Slurm ends the processes of a job."""

    async def forward(self, method: str, params: dict[str, Any]) -> Any:
        run_id = str(params["run_id"])
        self.folder(run_id)
        if method == "abort":
            return await self._abort(run_id)
        if method == "stop" and sweep_folder.is_sweep(self.folder(run_id)):
            return await self._stop_sweep(run_id, params)
        if await self.keeper(run_id) is not None:
            return await super().forward(method, params)
        if method != "stop":
            raise RpcError(f"the run {run_id} has no keeper at present", "run_over")
        return await self._stop_without_keeper(run_id, params)

    async def _abort(self, run_id: str) -> Any:
        """Cancels the jobs of a run that has not begun, and removes the run's folder. Otherwise raises RpcError."""
        run_dir = self.folder(run_id)
        if self._has_run_ended(run_id):
            raise RpcError(f"the run {run_id} is over on {self._cluster}", "run_over")
        folder = job_folder.path(run_dir)
        is_sweep = sweep_folder.is_sweep(run_dir)
        if job_folder.read(folder, "started.json") or (is_sweep and not self._waits(run_id)):
            raise RpcError(f"the run {run_id} has begun", "begun", "Stop it instead.")
        job_ids = sweep_jobs.ids(folder) if is_sweep else job_folder.job_ids(folder)
        if job_ids:
            await commands.output(["scancel", *job_ids])
        shutil.rmtree(run_dir, ignore_errors=True)
        return {}

    async def _stop_without_keeper(self, run_id: str, params: dict[str, Any]) -> Any:
        """Stops a run whose keeper cannot be reached.

        Signals the batch program of the run's job, or cancels the run's jobs if the job waits or `force` is given.
        """
        run_dir = self.folder(run_id)
        folder = job_folder.path(run_dir)
        job_id = job_folder.job_id(folder)
        if not await self.is_open(run_id) or not job_id:
            raise RpcError(f"the run {run_id} is over on {self._cluster}", "run_over")
        job = await job_queue.show(job_id)
        force, by, reason = _stop_request(params)
        # While a requeued job is leaving its nodes, its batch program no longer acts on signals.
        waits = job is not None and (job.is_pending or (job.state == "COMPLETING" and self._waits(run_id)))
        if job is not None and not waits and not force:
            job_folder.write(folder, "stop.json", {"reason": reason})
            await job_queue.cancel("-b", "-s", "USR2", job_id)
            return {}
        await commands.output(["scancel", *job_folder.job_ids(folder)])
        self._end(run_id, reason, attribution_entry("stop", by, force=force))
        await self._update_trial(run_id)
        if sweep := sweep_folder.sweep_of(run_id):
            await self._has_sweep_jobs(sweep)  # Ends the sweep if this was its last trial.
        return {}

    async def _stop_sweep(self, run_id: str, params: dict[str, Any]) -> Any:
        """Cancels the waiting jobs of a sweep, and stops its running trials. The last trial to end ends the sweep."""
        run_dir = self.folder(run_id)
        if self._has_run_ended(run_id):
            raise RpcError(f"the run {run_id} is over on {self._cluster}", "run_over")
        force, by, reason = _stop_request(params)
        asked = attribution_entry("stop", by, force=force)
        sweep_folder.note_stop(run_dir, reason)
        await in_a_thread(self._locked, run_dir, partial(sweep_folder.journal_stop, run_dir, run_id, reason, asked))
        await sweep_jobs.end_jobs(run_dir, force=force)
        active = [job.job_id for job in await sweep_jobs.live(run_dir) if job.is_active]
        if active:
            ending = partial(sweep_folder.end_waiting_trials, run_dir, run_id, active, reason)
        else:
            ending = partial(sweep_folder.end_without_jobs, run_dir, run_id)
        await in_a_thread(self._locked, run_dir, ending)
        self._wake(run_id)
        return {}

    async def watch_queue(self) -> None:
        """Journals why jobs are waiting, after each new query of the queue.

        Other tasks of the session, such as those that follow a run, may have made the query.
        """
        as_of = 0.0
        while True:
            done = self._gone | self._over
            live = [run_id for run_id in self.ids() if run_id not in done and self._is_live(run_id)]
            if live:
                await self._queue.refresh()
            if live and self._queue.as_of > as_of:
                as_of = self._queue.as_of
                for run_id in live:
                    await self._start_groups_now(run_id)
                    job = self._queue.job(run_id)
                    if job is None and sweep_folder.sweep_of(run_id):
                        await self.is_open(run_id)  # Ends a trial whose job was killed.
                    if job is not None and sweep_folder.is_sweep(self.folder(run_id)):
                        self._note_reason_of_sweep(run_id, job)
                    if job is None or not job.is_pending:
                        continue
                    if not self._waits(run_id):
                        await self._note_interruption(run_id, job.job_id)
                    self.note_reason(run_id, job)
                    if job.reason.strip("()") == "BeginTime":
                        await self._start_now(run_id, job)
            await asyncio.sleep(WATCH_S)

    async def _note_interruption(self, run_id: str, job_id: str) -> None:
        """Journals why Slurm requeued a job, if the job's batch program was killed before it could do so."""
        folder = job_folder.path(self.folder(run_id))
        started = job_folder.read(folder, "started.json")
        if not started:
            return
        cause = await interruption.of_killed(job_id, folder, started)
        job = await job_queue.show(job_id)
        if job is not None and job.is_pending and job.restarts:  # The output of `squeue` may be outdated.
            run_dir = self.folder(run_id)
            is_new = job_folder.journal_interruption(run_dir, run_id, job_id, job.restarts - 1, cause)
            if is_new and sweep_folder.sweep_of(run_id):
                sweep_folder.log_interruption(run_dir, run_id, cause)
            await self._update_trial(run_id)
            self._wake(run_id)

    async def _start_groups_now(self, run_id: str) -> None:
        """Makes the requeued jobs of worker groups start immediately while the first job runs."""
        first = self._queue.job(run_id)
        for group in job_folder.group_jobs(job_folder.path(self.folder(run_id))):
            job = self._queue.job(f"{run_id}-{group}")
            waits = job is not None and job.is_pending and job.reason.strip("()") == "BeginTime"
            if job is not None and waits and first is not None and first.is_active:
                with contextlib.suppress(RpcError):
                    await commands.output(["scontrol", "update", f"jobid={job.job_id}", "StartTime=now"])

    async def _start_now(self, run_id: str, job: job_queue.Job) -> None:
        """Makes a requeued job start immediately.

        By default, Slurm delays the start by two minutes, until the credential of the job's last start has expired.
        After the loss of a node, the delay is kept, because Slurm might start the job on the same node again. If that
        node still had a record of the job's last start, Slurm would hold the job and drain the node.
        """
        has_started = job_folder.read(job_folder.path(self.folder(run_id)), "started.json")
        if has_started and not self._has_lost_a_node(run_id):
            with contextlib.suppress(RpcError):
                await commands.output(["scontrol", "update", f"jobid={job.job_id}", "StartTime=now"])

    def _has_lost_a_node(self, run_id: str) -> bool:
        """Returns whether the run's last interruption was the loss of a node."""
        interruptions = self._view(run_id)["interruptions"]
        return bool(interruptions) and interruptions[-1]["cause"] == "NODE_FAIL"

    def _is_live(self, run_id: str) -> bool:
        """Returns whether the run has a job, and has not ended."""
        is_submitted = os.path.exists(os.path.join(job_folder.path(self.folder(run_id)), "submitted.json"))
        return is_submitted and not self._has_run_ended(run_id)

    def _waits(self, run_id: str) -> bool:
        return self._is_live(run_id) and self._view(run_id)["state"] == RunState.WAITING.value

    def note_reason(self, run_id: str, job: job_queue.Job | None) -> None:
        """Journals the reason why the run's job waits, preceded by the cause of the run's last interruption, if any."""
        if job is not None and job.is_pending and self._waits(run_id):
            interruptions = self._view(run_id)["interruptions"]
            cause = f"{interruptions[-1]['cause']}; " if interruptions else ""
            job_folder.journal_state(self.folder(run_id), RunState.WAITING, cause + job.sentence)
            self._wake(run_id)

    def _note_reason_of_sweep(self, run_id: str, job: job_queue.Job) -> None:
        """For a sweep that has begun, journals why none of its jobs is running, or that one is running again."""
        view = self._view(run_id)
        reason = job.sentence if job.is_pending else ""
        if view["state"] == RunState.RUNNING.value and view["reason"] != reason:
            job_folder.journal_state(self.folder(run_id), RunState.RUNNING, reason)
            self._wake(run_id)


def _stop_request(params: dict[str, Any]) -> tuple[bool, str, str]:
    """Returns whether a stop is forced, the name of the user who requests it (or ""), and the reason."""
    force, by = bool(params.get("force")), clean_name(params.get("by"))
    return force, by, str(params.get("reason") or (f"stopped by {by}" if by else "stopped on request"))


class ClusterTelemetry(Telemetry):
    """The telemetry of the primaries' nodes, sampled by their keepers."""

    def __init__(self, runs: ClusterRuns, slot: str):
        super().__init__(runs, None)  # type: ignore[arg-type]  # This class does not sample the login node.
        self._cluster_runs = runs
        self._slot = slot

    def watch(self, connection: Connection, interval_s: float) -> None:
        if self._cluster_runs.is_primary:
            super().watch(connection, interval_s)

    async def sample(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        problems = {run_id: self._cluster_runs.telemetry_problem(run_id) for run_id in self._cluster_runs.followed_ids}
        for run_id in self._cluster_runs.open_ids:
            keeper = await self._runs.keeper(run_id)
            if keeper is None:
                continue
            try:
                sample = await keeper.call("sample", {}, timeout=5.0)
            except RpcError:
                continue
            if not merged:
                merged = sample
            else:  # Two runs of the user may have their primaries on different nodes.
                merged["replicas"].update(sample["replicas"])
                merged["reports"].update(sample["reports"])
        unknown = dict.fromkeys(("cpus", "cpu", "memory_mb", "memory_used_mb"))
        empty = {"time": round(time.time(), 3), "host": unknown, "gpus": [], "replicas": {}, "reports": {}}
        missing = {run_id: why for run_id, why in problems.items() if why}
        return {**(merged or empty), "node": self._slot, "missing": missing}
