"""A desktop's session on a cluster's login node. It serves JSON-RPC over the SSH channel while the channel is open.

There is no daemon on a login node. The methods that concern a run have a parameter `node`, which is the run's slot. One
session serves all slots.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shlex
import shutil
import socket
import sys
import threading
from typing import Any, Callable

from torchyard_agent import __version__, unix_socket_rpc
from torchyard_agent.daemon.main import OLDEST_PROTOCOL
from torchyard_agent.daemon.rpc_methods import Methods
from torchyard_agent.journal import Journal
from torchyard_agent.protocol import PROTOCOL, paths
from torchyard_agent.protocol.attribution import attribution_entry
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.slurm import (
    calendar,
    commands,
    description,
    job_folder,
    job_queue,
    reservations,
    submission_check,
    sweep_jobs,
)
from torchyard_agent.slurm.cluster_runs import ClusterRuns, ClusterTelemetry
from torchyard_agent.slurm.job_queue import JobQueue
from torchyard_agent.ssh_bridge import relay
from torchyard_agent.unix_socket_rpc import Connection, Method

Params = dict[str, Any]

LOOK_EVERY_S = 0.3
LOOK_FOR_S = 4.0
"""Time in seconds for which a waiting job is observed after its submission, to reject a job that can never start."""
_NUMBER = ' "${SLURM_ARRAY_TASK_ID:-$1}"'
"""Shell word that expands to a sweep job's number: the array index or, without an array, the script's argument."""
SUBMISSION = "@submission@"
"""Placeholder in the script for the command that runs the batch program. The desktop does not know this command."""

log = logging.getLogger(__name__)


def main(
    agent_dir: str,
    sha256: str,
    cluster: str,
    answer: Callable[[dict[str, object]], None],
    settle: Callable[[], None],
) -> int:
    """Serves the desktop until it disconnects. `settle` unpacks the agent's archive, from which jobs run."""
    if not re.fullmatch(r"\w[\w-]*", cluster):
        answer({"error": f"{cluster!r} is no name of a cluster", "folder": agent_dir})
        return 1
    try:
        settle()
        folder = paths.host_dir(agent_dir, job_folder.primary_slot(cluster))
        os.makedirs(folder, 0o700, exist_ok=True)
        log_file = os.open(os.path.join(folder, "session.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        answer({"error": f"the session could not be started: {error}", "folder": agent_dir})
        return 1
    with os.fdopen(log_file, "w") as stream:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=stream)
        ours, theirs = socket.socketpair()
        answer({"ready": True, "ssh_connection": os.environ.get("SSH_CONNECTION", "")})

        def pass_on() -> None:
            with contextlib.suppress(OSError):
                relay(ours)
            ours.close()

        threading.Thread(target=pass_on, name="relay", daemon=True).start()
        asyncio.run(_Session(agent_dir, sha256, cluster).serve(theirs))
    return 0


class _Session:
    def __init__(self, agent_dir: str, sha256: str, cluster: str):
        self._agent_dir = agent_dir
        self._archive = paths.archive_dir(agent_dir, sha256)
        self._cluster = cluster
        self._primary = job_folder.primary_slot(cluster)
        self._hello = {
            "version": __version__,
            "protocol": PROTOCOL,
            "oldest_protocol": OLDEST_PROTOCOL,
            "sha256": sha256,
            "pid": os.getpid(),
            "node": self._primary,
        }
        self._queue = JobQueue(paths.host_dir(agent_dir, self._primary))
        self._slots: dict[str, tuple[ClusterRuns, dict[str, Method]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, client: socket.socket) -> None:
        connections: set[Connection] = set()
        own = {
            "hello": self.hello,
            "cluster.describe": self.describe,
            "cluster.calendar": self.calendar,
            "reservations.read": self.reservations,
            "reservations.reserve": self.reserve,
            "reservations.release": self.release,
            "run.submit": self.submit,
            "run.nodes": self.nodes,
        }
        _, of_primary = self._slot(self._primary)
        methods: dict[str, Method] = {name: self._of_slot(name) for name in of_primary}
        await unix_socket_rpc.adopt(client, b"", {**methods, **own}, connections)
        (connection,) = connections
        closed = asyncio.Event()
        connection.on_close.append(closed.set)
        self._keep(self._runs.watch_queue())
        await closed.wait()
        for task in self._tasks:
            task.cancel()
        for runs, _ in self._slots.values():
            runs.close()

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the session failed", exc_info=task.exception())

    @property
    def _runs(self) -> ClusterRuns:
        return self._slot(self._primary)[0]

    def _slot(self, slot: str) -> tuple[ClusterRuns, dict[str, Method]]:
        """Returns the runs and the methods of a slot."""
        if slot not in self._slots:
            if not re.fullmatch(re.escape(self._cluster) + r"\.[1-9]\d{0,5}", slot):
                raise RpcError(f"{slot} is no node of a run on {self._cluster}", "params")
            runs = ClusterRuns(self._agent_dir, self._cluster, slot, self._archive, self._queue)
            telemetry = ClusterTelemetry(runs, slot)
            table = Methods(self._agent_dir, {**self._hello, "node": slot}, runs, telemetry, lambda: None).table()
            served = ("run.", "logs.", "files.", "checkpoints.", "model.", "state.", "snapshot.", "telemetry.")
            self._slots[slot] = runs, {name: method for name, method in table.items() if name.startswith(served)}
        return self._slots[slot]

    def _of_slot(self, name: str) -> Method:
        async def answer(connection: Connection, params: Params) -> Any:
            _, methods = self._slot(str(params.pop("node", self._primary)))
            return await methods[name](connection, params)

        return answer

    async def hello(self, connection: Connection, params: Params) -> Any:
        return self._hello

    async def describe(self, connection: Connection, params: Params) -> Any:
        partition = params.get("partition")
        runs_dir = paths.runs_dir(self._agent_dir, self._primary)
        return await description.describe(None if partition is None else str(partition), runs_dir)

    async def calendar(self, connection: Connection, params: Params) -> Any:
        partition = params.get("partition")
        return await calendar.read(self._queue, None if partition is None else str(partition))

    async def reservations(self, connection: Connection, params: Params) -> Any:
        return await reservations.read()

    async def reserve(self, connection: Connection, params: Params) -> Any:
        nodes = [str(node) for node in params["nodes"]]
        await reservations.reserve(str(params["booking_id"]), nodes, float(params["start"]), float(params["end"]))
        return {}

    async def release(self, connection: Connection, params: Params) -> Any:
        await reservations.release(str(params["booking_id"]))
        return {}

    async def nodes(self, connection: Connection, params: Params) -> Any:
        """Returns the nodes of a run's current or last start by slot, or {} before the first start."""
        return job_folder.nodes(job_folder.path(self._runs.folder(str(params["run_id"]))))

    async def submit(self, connection: Connection, params: Params) -> Any:
        """Writes the run's job folder, checks the requests for nodes, and submits the first job and the group jobs.

        If reservations delay the run, `waits` in the answer describes them, as returned by `submission_check.check`.

        Raises RpcError (`never_starts`) if the cluster can never satisfy a request.
        """
        run_id = str(params["run_id"])
        run_dir = job_folder.run_dir(self._agent_dir, self._cluster, run_id)
        if os.path.exists(run_dir):
            raise RpcError(f"there is a run {run_id} on {self._cluster} already", "run_exists")
        folder = job_folder.path(run_dir)
        os.makedirs(folder, 0o700)
        try:
            script = self._write(folder, run_dir, params)
            groups = {group: self._write_group(folder, group, text) for group, text in params.get("groups", {}).items()}
            tested = [await submission_check.check(each) for each in (script, *groups.values())]
            if sweep := params["job"].get("sweep"):
                await sweep_jobs.submit(folder, sweep)
                job_id = sweep_jobs.ids(folder)[0]
            else:
                job_id = await job_queue.submit(script)
                job_folder.note_submission(folder, job_id)
            for group, each in groups.items():
                job_folder.note_group(folder, group, await job_queue.submit(f"--dependency=after:{job_id}", each))
            self._journal(run_dir, params, job_id)
            await self._look_at(run_id, job_id)
        except BaseException:  # The jobs must also be cancelled if this request is cancelled.
            with contextlib.suppress(RpcError):
                if submitted := [*sweep_jobs.ids(folder), *job_folder.group_jobs(folder).values()]:
                    await commands.output(["scancel", *submitted])
            shutil.rmtree(run_dir, ignore_errors=True)
            raise
        jobs = job_folder.group_jobs(folder)
        answer: dict[str, Any] = {"job_id": job_id, "group_jobs": jobs, "jobs": sweep_jobs.ids(folder)}
        answer["waits"] = next((waits for waits in tested if waits is not None), None)
        return {**answer, "run_dir": run_dir, "script": await _read(script)}

    def _write_group(self, folder: str, group: str, text: str) -> str:
        """Writes the script of the job of a worker group. Returns its path."""
        if not re.fullmatch(r"group-[1-9]\d{0,5}", group):
            raise RpcError(f"{group} is no worker group", "params")
        return self._write_script(folder, f"{group}.sh", text, group)

    def _write(self, folder: str, run_dir: str, params: Params) -> str:
        """Writes the files of the job. Returns the path of the script."""
        job = {**params["job"], "run_id": params["run_id"], "agent_dir": self._agent_dir, "archive": self._archive}
        job_folder.write(folder, "job.json", job)
        job_folder.write(folder, "secrets.json", params["secrets"])
        record = {**params["job"]["prepare"][self._primary], **params.get("sweep_run", {}), "host": self._primary}
        job_folder.write(run_dir, "run.json", record)
        if params["job"].get("sweep"):
            # Nodes may see a new file up to a minute late, but see changes of an existing file without this delay.
            job_folder.write(folder, "stop.json", {})
            # A job of an array reads its number from the environment. For a single job, it is the script's argument.
            script = self._write_script(folder, "job.sh", str(params["script"]), program="slurm-trial", more=_NUMBER)
        else:
            script = self._write_script(folder, "job.sh", str(params["script"]))
        with contextlib.suppress(OSError):
            os.utime(self._archive)  # Garbage collection uses the modification time as the time of the last use.
            with open(paths.archive_note(run_dir), "w") as note:
                note.write(os.path.basename(self._archive))
        return script

    def _write_script(
        self, folder: str, name: str, text: str, *arguments: str, program: str = "slurm-batch", more: str = ""
    ) -> str:
        """Writes a script that runs a batch program with these arguments, and `more` shell words. Returns its path."""
        main = os.path.join(self._archive, "torchyard_agent", "__main__.py")
        command = shlex.join([sys.executable, "-I", "-S", main, program, folder, *arguments]) + more
        script = os.path.join(folder, name)
        with open(os.open(script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "w", encoding="utf-8") as file:
            file.write(text.replace(SUBMISSION, command).replace("@job@", folder))
        return script

    def _journal(self, run_dir: str, params: Params, job_id: str) -> None:
        """Writes the first entries of the run's journal, to which the primary appends later."""
        record = params["job"]["prepare"][self._primary]["record"]
        journal = Journal(os.path.join(run_dir, "journal.jsonl"), lambda: None)
        journal.write("asked", **attribution_entry("launch", record.get("launched_from")))
        journal.write("run_state", state=RunState.WAITING.value, reason=f"job {job_id} waits in the queue")
        journal.close()

    async def _look_at(self, run_id: str, job_id: str) -> None:
        """Journals the reason why a new job is waiting. Raises RpcError and cancels the job if it can never start."""
        deadline = asyncio.get_running_loop().time() + LOOK_FOR_S
        while asyncio.get_running_loop().time() < deadline:
            job = await job_queue.show(job_id)
            if job is None or not job.is_pending:
                return
            if job.reason in job_queue.NEVER:
                await commands.output(["scancel", job_id])
                message = f"the cluster can never start this run: {job.reason}"
                raise RpcError(
                    message, "never_starts", "Ask for fewer or other nodes, less time, or another partition."
                )
            if job.reason not in ("None", ""):
                self._runs.note_reason(run_id, job)
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
