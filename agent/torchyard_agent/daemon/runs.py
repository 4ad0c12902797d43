"""The runs of this host and their keepers. Runs that have begun do not depend on the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from typing import Any, Callable

from torchyard_agent import unix_socket_rpc
from torchyard_agent.journal import JournalReader
from torchyard_agent.keeper import control_socket as keeper_address
from torchyard_agent.keeper.processes import failure_diagnosis, orphans
from torchyard_agent.protocol import journal_replay, paths
from torchyard_agent.protocol.jsonrpc import METHOD_NOT_FOUND, RpcError
from torchyard_agent.protocol.run_states import KEEPER_DIED
from torchyard_agent.telemetry.procfs import boot_id
from torchyard_agent.unix_socket_rpc import Connection

KEEPER_DEADLINE_S = 20.0
"""Timeout in seconds for the start of a keeper, which takes 0.1 s on an idle host."""
EXIT_DEADLINE_S = 10.0
"""Timeout in seconds for the exit of a keeper after its run ended or was aborted."""
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Runs:
    """Starts keepers, connects to running keepers, and reads the records of ended runs."""

    poll_s = 5.0
    """Interval in seconds at which a journal is read even without a notification of its growth."""

    def __init__(self, agent_dir: str, node: str):
        self._agent_dir = agent_dir
        self._node = node
        self._keepers: dict[str, Connection] = {}
        self._starting: dict[str, asyncio.Event] = {}
        """An event for each run whose keeper is being started. It is set once the keeper has answered or failed."""
        self._launching = 0
        """Number of pending requests to prepare or begin a run."""
        self._warm: set[str] = set()
        """Launches for which `warm` was called, but not yet `prepare`."""
        self._prepared: set[str] = set()
        """Launches for which `prepare` was called on this host, and which have not begun."""
        self._ending_warm: dict[str, asyncio.Task[None]] = {}
        """Tasks that end the keepers of abandoned launches."""
        self._aborted: set[str] = set()
        self._exited: set[str] = set()
        """Runs whose keepers have exited, so that later calls need not look for these keepers."""
        self._cleared: set[str] = set()
        self._ended: dict[str, dict[str, list[int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """References to background tasks, since the event loop holds only weak references to them."""
        self._listeners: dict[str, list[asyncio.Event]] = {}
        self._records: dict[str, dict[str, Any]] = {}

    def folder(self, run_id: str) -> str:
        """Returns the run's folder on this host. Raises RpcError if the run is unknown here."""
        folder = paths.run_dir(self._agent_dir, self._node, _checked(run_id))
        if not os.path.isdir(folder):
            raise RpcError(f"there is no run {run_id} on {self._node}", "no_run")
        return folder

    def ids(self) -> list[str]:
        """Returns the IDs of all runs that have a folder on this host, oldest first.

        An ID begins with the time of the launch.
        """
        try:
            with os.scandir(paths.runs_dir(self._agent_dir, self._node)) as entries:
                return sorted(
                    entry.name
                    for entry in entries
                    if _RUN_ID.fullmatch(entry.name) and entry.is_dir() and paths.is_run(entry.path)
                )
        except FileNotFoundError:
            return []

    async def warm(self, params: dict[str, Any]) -> Any:
        """Starts the run's keeper, which starts the interpreters of its ranks (see `messages.Warm`)."""
        self._warm.add(_checked(params["run_id"]))
        keeper = await self._start_keeper(params)
        return await keeper.call("warm", params)

    def end_warm(self, run_id: str) -> None:
        """Ends the keeper of a launch, and its interpreters. Called if the desktop disconnects before `prepare`."""
        if run_id in self._warm:
            self._warm.discard(run_id)
            task = self._ending_warm[run_id] = asyncio.get_running_loop().create_task(self._end_warm(run_id))
            task.add_done_callback(lambda _: self._ending_warm.pop(run_id))

    async def _end_warm(self, run_id: str) -> None:
        await self._wait_for_start(run_id)
        while (keeper := await self.keeper(run_id)) is not None:
            with contextlib.suppress(RpcError):
                await keeper.call("abort", {}, timeout=EXIT_DEADLINE_S)
            await asyncio.sleep(0.02)

    async def prepare(self, params: dict[str, Any]) -> Any:
        """Starts the run's keeper, unless `warm` has started it, and forwards `params` to the keeper."""
        run_id = _checked(params["run_id"])
        if params.pop("anew", False):  # The desktop adds this host again after an abort.
            self._aborted.discard(run_id)
        with self.launching():
            keeper = await self._warm_keeper(run_id)
            if keeper is None or not await self._has_renewed(run_id, keeper):
                keeper = await self._start_keeper(params)
            params.pop("archive", None)
            self._prepared.add(run_id)
            return await keeper.call("prepare", params, timeout=120.0)

    async def _warm_keeper(self, run_id: str) -> Connection | None:
        """Returns the keeper that `warm` has started, or None if there is none."""
        await self._wait_for_start(run_id)
        if run_id in self._ending_warm:
            await asyncio.wait({self._ending_warm[run_id]})
        if run_id not in self._warm:
            return None
        self._warm.discard(run_id)
        return await self.keeper(run_id)

    async def _has_renewed(self, run_id: str, keeper: Connection) -> bool:
        """Renews the launch lease of a keeper. Returns False if this failed, in which case the keeper has exited."""
        try:
            await keeper.call("renew", {})
        except RpcError as error:
            if error.code not in ("lease_lapsed", "disconnected"):
                return True  # The keeper may belong to an older agent, which does not have the method `renew`.
        else:
            return True
        while await self.keeper(run_id) is not None:
            await asyncio.sleep(0.02)
        return False

    async def _start_keeper(self, params: dict[str, Any]) -> Connection:
        """Starts the run's keeper from the archive that the desktop has deployed."""
        run_id = _checked(params["run_id"])
        archive = paths.archive_dir(self._agent_dir, str(params.pop("archive")))
        folder = paths.run_dir(self._agent_dir, self._node, run_id)
        if run_id in self._aborted:  # The desktop sends its requests concurrently, so the abort may arrive first.
            raise RpcError("the run was aborted before it was prepared", "aborted")
        started = self._starting[run_id] = asyncio.Event()
        self._exited.discard(run_id)
        try:
            return await self._spawn_keeper(run_id, folder, archive)
        finally:
            del self._starting[run_id]
            started.set()

    async def _wait_for_start(self, run_id: str) -> None:
        """Waits until the run's keeper has started, if it is being started. Otherwise returns immediately."""
        if run_id in self._starting:
            await self._starting[run_id].wait()

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """Returns a context manager that counts a launch request as pending while it is active."""
        self._launching += 1
        try:
            yield
        finally:
            self._launching -= 1

    async def wait_for_launches(self, within_s: float) -> None:
        """Waits at most `within_s` until all launches that this host is preparing have begun or been abandoned."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while (self._launching or any(map(self.is_alive, self._prepared))) and loop.time() < deadline:
            await asyncio.sleep(0.02)

    async def _spawn_keeper(self, run_id: str, folder: str, archive: str) -> Connection:
        if not os.path.isdir(archive):
            # Garbage collection removed the archive while the desktop was connected, because the archive was not in
            # use.
            raise RpcError(f"the desktop's agent is not on {self._node} any more", "no_archive", "Connect again.")
        os.makedirs(folder, 0o700, exist_ok=True)
        with contextlib.suppress(OSError):
            # The garbage collection of each host with the same home folder reads the archive's modification time and
            # this note, to find out that the archive is in use.
            os.utime(archive)
            with open(paths.archive_note(folder), "w") as note:
                note.write(os.path.basename(archive))
        with open(os.path.join(folder, "keeper.log"), "ab") as log:
            # The keeper forks once more. It is then a child of init and outlives this daemon.
            launcher = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _KEEPER, archive, self._agent_dir, self._node, run_id],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
        await asyncio.get_running_loop().run_in_executor(None, launcher.wait)
        deadline = asyncio.get_running_loop().time() + KEEPER_DEADLINE_S
        while asyncio.get_running_loop().time() < deadline:
            keeper = await self.keeper(run_id)
            if keeper is not None:
                return keeper
            await asyncio.sleep(0.01)
        printed = failure_diagnosis.last_line(failure_diagnosis.read_tail(os.path.join(folder, "keeper.log")))
        raise RpcError(
            f"the run keeper did not start on {self._node}: {printed or 'it printed nothing'}",
            "keeper_failed",
            f"Its whole log is {folder}/keeper.log.",
        )

    async def begin(self, method: str, params: dict[str, Any]) -> Any:
        """Forwards `start` or `join` to the run's keeper. After that, the run does not depend on the desktop."""
        run_id = str(params["run_id"])
        self._prepared.discard(run_id)
        try:
            with self.launching():
                return await self.forward(method, params)
        except RpcError as error:
            if error.code not in ("run_over", "disconnected"):  # The keeper has exited before or during the call.
                raise
            raise RpcError(
                f"{self._node} gave up the launch of run {run_id}: it was cancelled, or its desktop had not renewed it "
                "in time",
                "run_over",
                "Launch it again.",
            ) from None

    def abort_unbegun(self, run_id: str) -> None:
        """Aborts a run that has not begun. Called if its desktop disconnects after `prepare`."""

        async def abort() -> None:
            with contextlib.suppress(RpcError):  # The keeper has exited, or the desktop has already aborted the run.
                await self.forward("abort", {"run_id": run_id})

        if run_id in self._prepared:
            self._prepared.discard(run_id)
            self._create_task(abort())

    def _create_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def forward(self, method: str, params: dict[str, Any]) -> Any:
        """Calls a method of the run's keeper and returns the answer. Raises RpcError if the keeper has exited."""
        run_id = _checked(params.pop("run_id"))
        if method == "abort":
            self._aborted.add(run_id)
        # An abort may arrive before its `prepare` has been handled, and must find the keeper.
        await self._wait_for_start(run_id)
        keeper = await self.keeper(run_id)
        if keeper is None:
            raise RpcError(f"the run {run_id} is over on {self._node}", "run_over")
        try:
            return await keeper.call(method, params, timeout=60.0)
        except RpcError as error:
            if error.number != METHOD_NOT_FOUND:
                raise
            raise RpcError(
                f"the run {run_id} was started by another version of the agent, whose keeper does not know {method}",
                "keeper_does_not_know",
                "Its keeper stays as it is for as long as the run lives.",
            ) from None

    async def keeper(self, run_id: str) -> Connection | None:
        """Returns a connection to the run's keeper, or None if the keeper has exited or has not yet started."""
        known = self._keepers.get(run_id)
        if known is not None and not known.closed:
            return known
        if run_id in self._exited:
            return None
        address = keeper_address.read(paths.run_dir(self._agent_dir, self._node, run_id))
        try:
            if address is None:
                raise FileNotFoundError
            keeper = await unix_socket_rpc.connect(address, lambda method, _: self._wake(run_id))
        except (ConnectionRefusedError, FileNotFoundError, PermissionError):
            # PermissionError: the keeper has exited, and another user has bound its address.
            if run_id not in self._starting:
                self._exited.add(run_id)
            return None
        self._keepers[run_id] = keeper

        def forget() -> None:
            self._keepers.pop(run_id, None)
            self._wake(run_id)
            self._create_task(self._on_keeper_exit(run_id))

        keeper.on_close.append(forget)
        return keeper

    async def is_open(self, run_id: str) -> bool:
        """Returns whether the run has a keeper on this host or, on a cluster, whether its job is in the queue."""
        return await self.keeper(run_id) is not None

    async def is_running(self, run_id: str) -> bool:
        """Returns whether the run has a keeper on this host.

        The keeper of an ended run is first given EXIT_DEADLINE_S to exit.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + EXIT_DEADLINE_S
        while await self.is_open(run_id):
            if not self._has_ended(run_id) or loop.time() > deadline:
                return True
            await asyncio.sleep(0.02)
        return False

    def _has_ended(self, run_id: str) -> bool:
        return bool(journal_replay.fold(run_id, JournalReader(self.folder(run_id)).read())["ended"])

    def planned_gpus(self, run_id: str) -> set[str]:
        """Returns the UUIDs of the run's GPUs on all hosts, according to its record."""
        replicas = self._record_of(run_id).get("replicas")
        planned = replicas if isinstance(replicas, list) else []
        return {str(gpu) for replica in planned for gpu in replica.get("gpus", [])}

    def person_of(self, run_id: str) -> str:
        """Returns the person who booked GPUs for the run or launched it, according to its record, or "" if unknown."""
        return str(self._record_of(run_id).get("person") or "")

    def _record_of(self, run_id: str) -> dict[str, Any]:
        """Returns `replicas` and `person` of the run's record, which the desktop sent. The values are cached."""
        if run_id not in self._records:
            if len(self._records) > 100:
                self._records.clear()
            found = read_record(paths.run_dir(self._agent_dir, self._node, _checked(run_id))).get("record")
            known = found if isinstance(found, dict) else {}
            kept = {"replicas": known.get("replicas"), "person": known.get("person")}
            if not known:
                return kept  # The record is not cached, because the run may still be in preparation.
            self._records[run_id] = kept
        return self._records[run_id]

    def is_starting(self, run_id: str) -> bool:
        """Returns whether the run's keeper is being started."""
        return run_id in self._starting

    def is_alive(self, run_id: str) -> bool:
        """Returns whether the run's keeper was alive when it was last looked up, and is still connected."""
        return run_id in self._keepers

    def logs_end(self, run_id: str) -> Callable[[], bool]:
        """Returns a function that tells whether the run's logs will not grow any further.

        The logs of an ended replica may still grow, because the replica may be restarted.
        """
        reader = JournalReader(self.folder(run_id))
        ended = False

        def has_ended() -> bool:
            nonlocal ended
            for event in reader.read():
                ended = journal_replay.is_ended_after(event, ended)
            return ended or not self.is_alive(run_id)

        return has_ended

    def listen(self, run_id: str) -> asyncio.Event:
        """Returns an event that is set when the run's journal may have grown or its keeper has exited."""
        event = asyncio.Event()
        self._listeners.setdefault(run_id, []).append(event)
        return event

    def unlisten(self, run_id: str, event: asyncio.Event) -> None:
        self._listeners[run_id].remove(event)
        if not self._listeners[run_id]:
            del self._listeners[run_id]

    async def show(self, run_id: str) -> dict[str, Any]:
        """Returns the run's record, and the state that follows from its journal."""
        folder = self.folder(run_id)
        # If this method did not wait, a run that is being launched would look like a run whose keeper has died.
        await self._wait_for_start(run_id)
        keeper = await self.keeper(run_id)
        metrics: dict[str, Any] = {}
        silent = False
        if keeper is not None:
            try:
                metrics = (await keeper.call("status", {}, timeout=5.0)).get("metrics", {})
            except RpcError:
                silent = not keeper.closed  # A keeper that answers too slowly is still alive.
                keeper = keeper if silent else None
        # The journal is read after the keeper was looked up. If the keeper exits in between, its last entries are
        # therefore included.
        view = journal_replay.fold(run_id, JournalReader(folder).read())
        view["metrics"].update(metrics)
        alive = keeper is not None or await self.is_open(run_id)
        if not alive and not view["ended"]:
            await self.end_orphans(run_id)
        view["replicas"] = list(view["replicas"].values())
        return {
            **view,
            "alive": alive,
            "silent": silent,
            "died": self.death(run_id),
            "record": read_record(folder),
        }

    def death(self, run_id: str) -> str:
        """Returns, as a clause, why a run has no keeper although its end is not recorded."""
        before = read_record(self.folder(run_id)).get("boot_id")
        if before and before != boot_id():
            return f"{self._node} was rebooted: its replicas and the run's secrets are gone; launch it again"
        return KEEPER_DIED

    async def end_orphans(self, run_id: str) -> None:
        """Ends the processes of a run whose keeper was killed.

        After a keeper is killed, the kernel kills the ranks (PDEATHSIG), but not the ranks' children.

        This method has no effect while the run has a keeper, or if it was called before.
        """
        folder = self.folder(run_id)
        if run_id in self._cleared or await self.keeper(run_id) is not None:
            return
        self._cleared.add(run_id)
        await self.end_processes(run_id, folder)

    async def end_processes(self, run_id: str, folder: str) -> None:
        """Ends all processes whose environment contains the run's folder, and records them for `take_ended`."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(None, orphans.find, folder)
        if found:
            stuck = await loop.run_in_executor(None, orphans.end, folder)
            self._ended[run_id] = {"ended": [pid for pid in found if pid not in stuck], "left": stuck}

    def take_ended(self) -> dict[str, dict[str, list[int]]]:
        """Returns the PIDs of each run's processes that were ended since the last call (`ended`) or remain (`left`)."""
        ended, self._ended = self._ended, {}
        return ended

    async def list(self) -> list[dict[str, Any]]:
        """Returns a summary of each run. Launches that have not reached `prepare` are not included."""
        lines = []
        for run_id in self.ids():
            if run_id in self._warm:
                continue
            try:
                shown = await self.show(run_id)
            except (RpcError, OSError):
                continue  # The run's folder may just have been removed.
            record = shown["record"]
            state = {name: shown[name] for name in ("state", "reason", "as_of", "alive", "silent", "died")}
            about = {"name": record.get("name", ""), "record": record.get("record", {})}
            lines.append({"run_id": run_id, **about, **state})
        return lines

    async def remove(self, run_id: str) -> None:
        """Removes a run's folder. Raises RpcError if the run is alive."""
        folder = self.folder(run_id)
        if await self.is_running(run_id):
            raise RpcError(f"the run {run_id} is still alive", "run_alive", "Stop it first.", run_id=run_id)
        await asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, folder)

    async def _on_keeper_exit(self, run_id: str) -> None:
        """Ends the remaining processes of a run if its keeper exited before the run's end."""
        with contextlib.suppress(RpcError):  # The run's folder may have been removed too.
            if not self._has_ended(run_id):
                await self.end_orphans(run_id)

    def _wake(self, run_id: str) -> None:
        for event in self._listeners.get(run_id, []):
            event.set()


_KEEPER = """
import os, sys
archive, agent_dir, node, run_id = sys.argv[1:]
if os.fork():
    os._exit(0)
sys.path.insert(0, archive)
sys.modules["ssl"] = None
sys.dont_write_bytecode = True
from torchyard_agent.keeper.main import main
sys.exit(main(agent_dir, node, run_id))
"""
"""The Python code that the process of a keeper executes.

The code prevents asyncio from importing ssl (2 MB, 10 ms), which no keeper needs. It also disables the writing of
bytecode, because only `daemon.bytecode` may write bytecode into an archive.
"""


def _checked(run_id: object) -> str:
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise RpcError(f"{run_id!r} is no run ID", "params")
    return run_id


def read_record(folder: str) -> dict[str, Any]:
    """Returns the contents of a run's `run.json`, or {} if the file is missing or damaged."""
    try:
        with open(os.path.join(folder, "run.json"), encoding="utf-8") as file:
            record = json.load(file)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("record", {}), dict) else {}
