"""The runs of this host: starts and finds their keepers. No run depends on this module once it has begun."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from torchyard_agent import unix_socket_rpc
from torchyard_agent.journal import JournalReader
from torchyard_agent.keeper import control_socket as keeper_address
from torchyard_agent.keeper.processes import orphans
from torchyard_agent.protocol import journal_replay, paths
from torchyard_agent.protocol.jsonrpc import METHOD_NOT_FOUND, RpcError
from torchyard_agent.telemetry.procfs import boot_id
from torchyard_agent.unix_socket_rpc import Connection

KEEPER_DEADLINE_S = 20.0
"""The time for a keeper to answer; starting one takes 0.1 s on an idle host."""
LEAVES_WITHIN_S = 10.0
"""The time for a keeper to exit once its run has ended."""
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Runs:
    """Starts keepers, connects to running ones, and reads the records of ended runs."""

    def __init__(self, agent_dir: str, node: str):
        self._agent_dir = agent_dir
        self._node = node
        self._keepers: dict[str, Connection] = {}
        self._rising: dict[str, asyncio.Event] = {}
        """Runs whose keepers are being started; set once they answer or have failed."""
        self._launching = 0
        """The number of unanswered requests to prepare or begin a run."""
        self._warm: set[str] = set()
        """Launches before `prepare` whose keepers have started interpreters."""
        self._prepared: set[str] = set()
        """Launches that hold GPUs and ports here and have not begun."""
        self._cooling: dict[str, asyncio.Task[None]] = {}
        """Tasks that end the keepers of abandoned launches."""
        self._aborted: set[str] = set()
        self._over: set[str] = set()
        """Runs whose keepers have exited: they are not looked up at every sample."""
        self._cleared: set[str] = set()
        self._ended: dict[str, dict[str, list[int]]] = {}
        self._burials: set[asyncio.Task[None]] = set()
        self._listeners: dict[str, list[asyncio.Event]] = {}
        self._records: dict[str, dict[str, Any]] = {}

    def folder(self, run_id: str) -> str:
        """The run's folder on this host. Raises RpcError if there is none."""
        folder = paths.run_dir(self._agent_dir, self._node, _checked(run_id))
        if not os.path.isdir(folder):
            raise RpcError(f"there is no run {run_id} on {self._node}", "no_run")
        return folder

    def ids(self) -> list[str]:
        """All runs with a folder here, oldest first: an ID begins with its time."""
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
        """Starts the run's keeper and, in it, the interpreters of its ranks (see `messages.Warm`)."""
        self._warm.add(_checked(params["run_id"]))
        keeper = await self._raise_keeper(params)
        return await keeper.call("warm", params)

    def cool(self, run_id: str) -> None:
        """Ends the warm interpreters of a desktop that has disconnected."""
        if run_id in self._warm:
            self._warm.discard(run_id)
            cooling = self._cooling[run_id] = asyncio.get_running_loop().create_task(self._cool(run_id))
            cooling.add_done_callback(lambda _: self._cooling.pop(run_id))

    async def _cool(self, run_id: str) -> None:
        if run_id in self._rising:
            await self._rising[run_id].wait()
        while (keeper := await self.keeper(run_id)) is not None:
            with contextlib.suppress(RpcError):
                await keeper.call("abort", {}, timeout=LEAVES_WITHIN_S)
            await asyncio.sleep(0.02)

    async def prepare(self, params: dict[str, Any]) -> Any:
        """Starts the run's keeper, unless `warm` has, and forwards `params` to it."""
        run_id = _checked(params["run_id"])
        with self.launching():
            keeper = await self._warm_keeper(run_id)
            if keeper is None or not await self._has_renewed(run_id, keeper):
                keeper = await self._raise_keeper(params)
            params.pop("archive", None)
            self._prepared.add(run_id)
            return await keeper.call("prepare", params, timeout=120.0)

    async def _warm_keeper(self, run_id: str) -> Connection | None:
        """The keeper that `warm` has started, which the launch takes over."""
        if run_id in self._rising:
            await self._rising[run_id].wait()
        if run_id in self._cooling:
            await asyncio.wait({self._cooling[run_id]})
        if run_id not in self._warm:
            return None
        self._warm.discard(run_id)
        return await self.keeper(run_id)

    async def _has_renewed(self, run_id: str, keeper: Connection) -> bool:
        """Renews a keeper's lease. Returns False if the keeper has exited because it had expired."""
        try:
            await keeper.call("renew", {})
        except RpcError as error:
            if error.code not in ("lease_lapsed", "disconnected"):
                return True  # a keeper of an older desktop lacks the method
        else:
            return True
        while await self.keeper(run_id) is not None:
            await asyncio.sleep(0.02)
        return False

    async def _raise_keeper(self, params: dict[str, Any]) -> Connection:
        """Starts the run's keeper from the archive that the desktop has deployed."""
        run_id = _checked(params["run_id"])
        archive = paths.archive_dir(self._agent_dir, str(params.pop("archive")))
        folder = paths.run_dir(self._agent_dir, self._node, run_id)
        if run_id in self._aborted:  # the desktop's requests are concurrent: its abort may arrive first
            raise RpcError("the run was aborted before it was prepared", "aborted")
        up = self._rising[run_id] = asyncio.Event()
        self._over.discard(run_id)
        try:
            return await self._start_keeper(run_id, folder, archive)
        finally:
            del self._rising[run_id]
            up.set()

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """Counts a launch's request until it is answered."""
        self._launching += 1
        try:
            yield
        finally:
            self._launching -= 1

    async def let_begin(self, within_s: float) -> None:
        """Waits until all launches in preparation here have begun or were abandoned, at most `within_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while (self._launching or any(map(self.is_alive, self._prepared))) and loop.time() < deadline:
            await asyncio.sleep(0.02)

    async def _start_keeper(self, run_id: str, folder: str, archive: str) -> Connection:
        if not os.path.isdir(archive):  # removed as unused while the desktop stayed connected
            raise RpcError(f"the desktop's agent is not on {self._node} any more", "no_archive", "Connect again.")
        os.makedirs(folder, 0o700, exist_ok=True)
        with contextlib.suppress(OSError):  # read by garbage collection, on all hosts that share the home
            os.utime(archive)
            with open(paths.archive_note(folder), "w") as note:
                note.write(os.path.basename(archive))
        with open(os.path.join(folder, "keeper.log"), "ab") as log:
            # By its second fork the keeper is no child of this daemon, which it outlives.
            launcher = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _KEEPER, archive, self._agent_dir, self._node, run_id],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
        await asyncio.get_running_loop().run_in_executor(None, launcher.wait)
        return await self._connect_when_up(run_id, folder)

    async def begin(self, method: str, params: dict[str, Any]) -> Any:
        """Forwards `start` or `join`, after which the run does not depend on the desktop."""
        run_id = str(params["run_id"])
        self._prepared.discard(run_id)
        try:
            with self.launching():
                return await self.forward(method, params)
        except RpcError as error:
            if error.code not in ("run_over", "disconnected"):  # the keeper has exited, before the call or during it
                raise
            raise RpcError(
                f"{self._node} gave up the launch of run {run_id}: it was cancelled, or its desktop had not renewed it "
                "in time",
                "run_over",
                "Launch it again.",
            ) from None

    def take_back(self, run_id: str) -> None:
        """Aborts a prepared run that has not begun when its desktop has disconnected."""
        if run_id in self._prepared:
            self._prepared.discard(run_id)
            taking_back = asyncio.get_running_loop().create_task(self._take_back(run_id))
            self._burials.add(taking_back)
            taking_back.add_done_callback(self._burials.discard)

    async def _take_back(self, run_id: str) -> None:
        with contextlib.suppress(RpcError):  # it has exited, or the desktop has aborted it
            await self.forward("abort", {"run_id": run_id})

    async def forward(self, method: str, params: dict[str, Any]) -> Any:
        """The answer of the run's keeper. Raises RpcError if the keeper has exited."""
        run_id = _checked(params.pop("run_id"))
        if method == "abort":
            self._aborted.add(run_id)
        if run_id in self._rising:  # an abort that overtook its prepare must find the keeper
            await self._rising[run_id].wait()
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
        """A connection to the run's keeper; None if it has exited."""
        known = self._keepers.get(run_id)
        if known is not None and not known.closed:
            return known
        if run_id in self._over:
            return None
        address = keeper_address.read(paths.run_dir(self._agent_dir, self._node, run_id))
        try:
            if address is None:
                raise FileNotFoundError
            keeper = await unix_socket_rpc.connect(address, lambda method, _: self._wake(run_id))
        except (
            ConnectionRefusedError,
            FileNotFoundError,
            PermissionError,
        ):  # or another user has bound a dead keeper's name
            if run_id not in self._rising:
                self._over.add(run_id)
            return None
        self._keepers[run_id] = keeper

        def forget() -> None:
            self._keepers.pop(run_id, None)
            self._wake(run_id)
            burying = asyncio.get_running_loop().create_task(self._on_keeper_exit(run_id))
            self._burials.add(burying)
            burying.add_done_callback(self._burials.discard)

        keeper.on_close.append(forget)
        return keeper

    async def goes_on(self, run_id: str) -> bool:
        """Whether the run has a keeper here and goes on. Waits for a keeper to exit if its run has ended."""
        loop = asyncio.get_running_loop()
        gone_by = loop.time() + LEAVES_WITHIN_S
        while await self.keeper(run_id) is not None:
            has_ended = journal_replay.fold(run_id, JournalReader(self.folder(run_id)).read())["ended"]
            if not has_ended or loop.time() > gone_by:
                return True
            await asyncio.sleep(0.02)
        return False

    def planned_gpus(self, run_id: str) -> set[str]:
        """UUIDs of the GPUs of the whole run on all hosts, from its record."""
        replicas = self._record_of(run_id).get("replicas")
        planned = replicas if isinstance(replicas, list) else []
        return {str(gpu) for replica in planned for gpu in replica.get("gpus", [])}

    def person_of(self, run_id: str) -> str:
        """The person who booked for or launched the run, from its record; empty if unknown."""
        return str(self._record_of(run_id).get("person") or "")

    def _record_of(self, run_id: str) -> dict[str, Any]:
        """The run's record from the desktop; cached, since it never changes."""
        if run_id not in self._records:
            if len(self._records) > 100:
                self._records.clear()
            found = _record(paths.run_dir(self._agent_dir, self._node, _checked(run_id))).get("record")
            known = found if isinstance(found, dict) else {}
            kept = {"replicas": known.get("replicas"), "person": known.get("person")}
            if not known:
                return kept  # the run is being prepared
            self._records[run_id] = kept
        return self._records[run_id]

    def is_rising(self, run_id: str) -> bool:
        """Whether the run's keeper is being started."""
        return run_id in self._rising

    def is_alive(self, run_id: str) -> bool:
        """Whether the run's keeper was alive at the last look-up and its connection is still open."""
        return run_id in self._keepers

    def listen(self, run_id: str) -> asyncio.Event:
        """An event that is set whenever the run's journal may have grown or its keeper has exited."""
        event = asyncio.Event()
        self._listeners.setdefault(run_id, []).append(event)
        return event

    def unlisten(self, run_id: str, event: asyncio.Event) -> None:
        self._listeners[run_id].remove(event)
        if not self._listeners[run_id]:
            del self._listeners[run_id]

    async def show(self, run_id: str) -> dict[str, Any]:
        """The run's record and the state replayed from its journal."""
        folder = self.folder(run_id)
        if run_id in self._rising:  # otherwise a launch would look like a run whose keeper died
            await self._rising[run_id].wait()
        keeper = await self.keeper(run_id)
        metrics: dict[str, Any] = {}
        silent = False
        if keeper is not None:
            try:
                metrics = (await keeper.call("status", {}, timeout=5.0)).get("metrics", {})
            except RpcError:
                silent = not keeper.closed  # a slow keeper has not exited
                keeper = keeper if silent else None
        # Read after the keeper was looked up, so that the last entries of one that has just exited are seen.
        view = journal_replay.fold(run_id, JournalReader(folder).read())
        view["metrics"].update(metrics)
        if keeper is None and not view["ended"]:
            await self.clear_up_after(run_id)
        view["replicas"] = list(view["replicas"].values())
        return {
            **view,
            "alive": keeper is not None,
            "silent": silent,
            "died": self.death(run_id),
            "record": _record(folder),
        }

    def death(self, run_id: str) -> str:
        """How a run without an end lost its keeper, as a sentence."""
        before = _record(self.folder(run_id)).get("boot_id")
        if before and before != boot_id():
            return f"{self._node} was rebooted: its replicas and the run's secrets are gone; launch it again"
        return "its keeper died"

    async def clear_up_after(self, run_id: str) -> None:
        """Ends processes of a run whose keeper died: PDEATHSIG ends its ranks, but not their children."""
        folder = self.folder(run_id)
        if run_id in self._cleared or await self.keeper(run_id) is not None:
            return
        self._cleared.add(run_id)
        await self.end_leftovers(run_id, folder)

    async def end_leftovers(self, run_id: str, folder: str) -> None:
        """Ends all processes that name the run's folder in their environment, and notes them for the next launch."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(None, orphans.find, folder)
        if found:
            stuck = await loop.run_in_executor(None, orphans.end, folder)
            self._ended[run_id] = {"ended": [pid for pid in found if pid not in stuck], "left": stuck}

    def take_ended(self) -> dict[str, dict[str, list[int]]]:
        """By run, the PIDs that were ended since the last call (`ended`) and those that remain (`left`)."""
        ended, self._ended = self._ended, {}
        return ended

    async def list(self) -> list[dict[str, Any]]:
        """A summary of each run."""
        lines = []
        for run_id in self.ids():
            if run_id in self._warm:
                continue  # a launch before `prepare`
            try:
                shown = await self.show(run_id)
            except (RpcError, OSError):
                continue  # its folder has just been removed
            record = shown["record"]
            lines.append(
                {
                    "run_id": run_id,
                    "name": record.get("name", ""),
                    "state": shown["state"],
                    "reason": shown["reason"],
                    "as_of": shown["as_of"],
                    "alive": shown["alive"],
                    "silent": shown["silent"],
                    "died": shown["died"],
                    "record": record.get("record", {}),
                }
            )
        return lines

    async def remove(self, run_id: str) -> None:
        """Removes a run's folder. Raises RpcError while the run is alive."""
        folder = self.folder(run_id)
        if await self.goes_on(run_id):
            raise RpcError(f"the run {run_id} is still there", "run_alive", "Stop it first.", run_id=run_id)
        await asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, folder)

    async def _on_keeper_exit(self, run_id: str) -> None:
        """Ends the remaining processes of a run whose keeper died before the run's end."""
        with contextlib.suppress(RpcError):  # its folder has been removed too
            if not journal_replay.fold(run_id, JournalReader(self.folder(run_id)).read())["ended"]:
                await self.clear_up_after(run_id)

    def _wake(self, run_id: str) -> None:
        for event in self._listeners.get(run_id, []):
            event.set()

    async def _connect_when_up(self, run_id: str, folder: str) -> Connection:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KEEPER_DEADLINE_S
        while loop.time() < deadline:
            keeper = await self.keeper(run_id)
            if keeper is not None:
                return keeper
            await asyncio.sleep(0.01)
        raise RpcError(
            f"the run keeper did not start on {self._node}: {_last_line(os.path.join(folder, 'keeper.log'))}",
            "keeper_failed",
            f"Its whole log is {folder}/keeper.log.",
        )


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
"""The code of a keeper's process. It skips ssl, which asyncio would import (2 MB, 10 ms) and no keeper needs.
Only `daemon.bytecode` writes bytecode.
"""


def _checked(run_id: object) -> str:
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise RpcError(f"{run_id!r} is no run ID", "params")
    return run_id


def _record(folder: str) -> dict[str, Any]:
    try:
        with open(os.path.join(folder, "run.json"), encoding="utf-8") as file:
            record = json.load(file)
    except (OSError, ValueError):  # possibly empty after a power cut
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("record", {}), dict) else {}


def _last_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().strip().splitlines()
    except OSError as error:
        return str(error)
    return lines[-1] if lines else "it printed nothing"
