"""The keepers of a sweep's trials, which are child processes of the sweep's keepers.

The coordinator of a sweep calls the trials' keepers through the sweep's primary (`TrialCalls`), which forwards calls
for other hosts over the gang link. On each host, the sweep's keeper starts the trials' keepers, and passes calls on to
them (`TrialKeepers`). The trials' keepers exit together with the sweep's keeper. They do not lock GPUs, because the
sweep's keeper holds the locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import sys
from functools import partial
from typing import Any, Callable

from torchyard_agent import unix_socket_rpc
from torchyard_agent.background_threads import in_a_thread
from torchyard_agent.journal import JournalReader
from torchyard_agent.keeper import control_socket
from torchyard_agent.keeper.link import messages
from torchyard_agent.keeper.processes import failure_diagnosis, orphans, process_control, rank_process
from torchyard_agent.keeper.processes.rank_supervisor import RankSupervisor
from torchyard_agent.protocol import journal_replay, paths
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.unix_socket_rpc import Connection

METHODS = ("start", "join", "stop", "abort", "renew")
"""The methods of a trial's keeper to which the coordinator's calls are forwarded unchanged."""
START_S = 20.0
"""Timeout in seconds for the start of a keeper."""
PREPARE_S = 120.0
CALL_S = 60.0
STATUS_S = 5.0

log = logging.getLogger(__name__)


class TrialKeepers:
    """The keepers of trials on this host.

    Args:
        ranks: The supervisor of the sweep's ranks on this host, which reaps the keepers.
    """

    def __init__(self, ranks: RankSupervisor):
        self._ranks = ranks
        self._runs_dir, self._sweep = os.path.split(ranks.place.folder)
        self._node_dir = os.path.dirname(self._runs_dir)
        self._keepers: dict[str, Connection] = {}
        self._pids: dict[str, int] = {}
        self._cleared: set[str] = set()

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Executes a call from the sweep's coordinator: `prepare`, `show`, or one of METHODS.

        Raises RpcError if the call fails.
        """
        params = dict(params)
        run_id = params.pop("run_id")
        # A coordinator may call only trials of its own sweep.
        if not isinstance(run_id, str) or not re.fullmatch(re.escape(self._sweep) + r"\.[0-9][0-9-]*", run_id):
            raise RpcError(f"{run_id!r} is no trial of {self._sweep}", "params")
        if method == "prepare":
            return await self._prepare(run_id, params)
        if method == "show":
            return await self._show(run_id)
        if method not in METHODS:
            raise RpcError(f"keepers of trials have no method {method}", "params")
        keeper = await self._keeper(run_id)
        if keeper is None:
            raise RpcError(f"the trial {run_id} is over on {self._ranks.place.host}", "run_over")
        return await keeper.call(method, params, timeout=CALL_S)

    async def _prepare(self, run_id: str, params: dict[str, Any]) -> Any:
        folder = os.path.join(self._runs_dir, run_id)
        keeper = await self._keeper(run_id) or await self._start(run_id, folder)
        return await keeper.call("prepare", {**params, "run_id": run_id}, timeout=PREPARE_S)

    async def _start(self, run_id: str, folder: str) -> Connection:
        if os.path.exists(os.path.join(folder, "run.json")):
            raise RpcError(f"there is a run {run_id} on {self._ranks.place.host} already", "run_exists")
        os.makedirs(folder, 0o700, exist_ok=True)
        with contextlib.suppress(OSError), open(paths.archive_note(self._ranks.place.folder)) as note:
            sha256 = note.read()
            with open(paths.archive_note(folder), "w") as copy:
                copy.write(sha256)
        agent_dir = os.path.dirname(os.path.dirname(self._node_dir))
        # Until the keeper responds, its output goes to `keeper.starting`. If the file were named `keeper.log`, the
        # daemon would list the folder as a run, and would conclude that the run's keeper had died.
        starting = os.path.join(folder, "keeper.starting")
        with open(starting, "ab") as output:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-c", _KEEPER),
                    *(rank_process.ARCHIVE, agent_dir, os.path.basename(self._node_dir), run_id),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
                preexec_fn=partial(_in_the_child, os.getpid()),
            )
        self._pids[run_id] = process.pid
        self._ranks.trial_keepers.add(process.pid)
        process.returncode = 0  # The supervisor reaps this process, so Popen must not wait for it.
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_S
        while loop.time() < deadline and self._is_alive(run_id):
            keeper = await self._keeper(run_id)
            if keeper is not None:
                os.rename(starting, os.path.join(folder, "keeper.log"))
                return keeper
            await asyncio.sleep(0.01)
        printed = failure_diagnosis.last_line(failure_diagnosis.read_tail(starting))
        where = self._ranks.place.host
        raise RpcError(f"the keeper of the trial did not start on {where}: {printed or 'no output'}", "keeper_failed")

    def _is_alive(self, run_id: str) -> bool:
        return self._pids.get(run_id) in self._ranks.trial_keepers

    async def _keeper(self, run_id: str) -> Connection | None:
        """Returns a connection to the trial's keeper, or None if the keeper has exited or has not yet started."""
        known = self._keepers.get(run_id)
        if known is not None and not known.closed:
            return known
        address = control_socket.read(os.path.join(self._runs_dir, run_id))
        if address is None or not self._is_alive(run_id):
            return None
        try:
            keeper = await unix_socket_rpc.connect(address)
        except (ConnectionRefusedError, FileNotFoundError, PermissionError):
            return None
        self._keepers[run_id] = keeper
        return keeper

    async def _show(self, run_id: str) -> dict[str, Any]:
        """Returns the trial's state, reason and metrics.

        Also returns whether the trial's keeper is running (`alive`), and whether its journal contains the run's end
        (`ended`).
        """
        folder = os.path.join(self._runs_dir, run_id)
        if not os.path.isdir(folder):
            return {"alive": False, "exists": False, "ended": False, "state": "", "reason": "", "metrics": {}}
        keeper = await self._keeper(run_id)
        if keeper is not None:
            with contextlib.suppress(RpcError):
                status = await keeper.call("status", {}, timeout=STATUS_S)
                return {**_summary(status), "alive": True, "exists": True, "ended": False}
        if self._is_alive(run_id):  # The keeper is starting, exiting or slow.
            return {"alive": True, "exists": True, "ended": False, "state": "", "reason": "", "metrics": {}}
        view = await in_a_thread(_replay, run_id, folder)
        if not view["ended"] and run_id not in self._cleared:
            self._cleared.add(run_id)
            await in_a_thread(orphans.end, folder)  # Children of ranks outlive a keeper that was killed.
        return {**_summary(view), "alive": False, "exists": True, "ended": bool(view["ended"])}


def _replay(run_id: str, folder: str) -> dict[str, Any]:
    return journal_replay.fold(run_id, JournalReader(folder).read())


def _summary(view: dict[str, Any]) -> dict[str, Any]:
    return {name: view[name] for name in ("state", "reason", "metrics")}


def _in_the_child(parent: int) -> None:
    process_control.die_with(parent)
    process_control.start_clean()


class TrialCalls:
    """Passes the coordinator's calls to the keepers of trials on all hosts of the sweep.

    Args:
        host: The primary's host.
        ranks: The supervisor of the sweep's ranks on the primary.
        send: Sends a message to a member.
        is_lost: Returns whether a member is lost.
    """

    def __init__(
        self,
        host: str,
        ranks: RankSupervisor,
        send: Callable[[str, messages.TrialRequest], None],
        is_lost: Callable[[str], bool],
    ):
        self._host = host
        self._own = TrialKeepers(ranks)
        self._send = send
        self._is_lost = is_lost
        self._number = 0
        self._waiting: dict[int, tuple[str, asyncio.Future[Any]]] = {}

    async def call(self, host: str, method: str, params: dict[str, Any]) -> Any:
        """Calls the keeper of a trial on `host`. Raises RpcError, with the code `host_lost` if the host is lost."""
        if host == self._host:
            return await self._own.call(method, params)
        if self._is_lost(host):
            raise _lost(host)
        self._number += 1
        number = self._number
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = host, answer
        self._send(host, messages.TrialRequest(number, method, params))
        try:
            return await asyncio.wait_for(answer, PREPARE_S + START_S)
        except asyncio.TimeoutError:
            raise RpcError(f"no answer of {host} to {method}", "timeout") from None
        finally:
            self._waiting.pop(number, None)

    def on_answer(self, host: str, message: messages.TrialAnswer) -> None:
        expected, answer = self._waiting.get(message.number, ("", None))
        if answer is None or expected != host or answer.done():
            return
        if message.error is None:
            answer.set_result(message.result)
        else:
            known = message.error
            answer.set_exception(RpcError(str(known["message"]), str(known["code"]), str(known.get("hint", ""))))

    def on_host_lost(self, host: str) -> None:
        for expected, answer in self._waiting.values():
            if expected == host and not answer.done():
                answer.set_exception(_lost(host))


async def answer_request(keepers: TrialKeepers, request: messages.TrialRequest) -> messages.TrialAnswer:
    """Executes a TrialRequest on a member, and returns the answer, which contains any error."""
    try:
        return messages.TrialAnswer(request.number, await keepers.call(request.method, request.params), None)
    except RpcError as error:
        known = {"message": str(error), "code": error.code, "hint": error.hint}
    except (OSError, KeyError, TypeError, ValueError) as error:
        log.exception("the request %s of a trial", request.method)
        known = {"message": f"{request.method}: {error!r}", "code": "internal"}
    return messages.TrialAnswer(request.number, None, known)


def _lost(host: str) -> RpcError:
    return RpcError(f"{host} was lost", "host_lost")


_KEEPER = """
import sys
archive, agent_dir, node, run_id = sys.argv[1:]
sys.path.insert(0, archive)
sys.modules["ssl"] = None
sys.dont_write_bytecode = True
from torchyard_agent.keeper.main import main
sys.exit(main(agent_dir, node, run_id))
"""
"""The Python code that the process of a trial's keeper executes.

Unlike the code in `daemon.runs`, this code does not fork, so the process remains a child of the sweep's keeper.
"""
