"""What was done to this host, when and for whom: `audit.jsonl` in the host's folder, appended and never changed.

What happens to a run is in the run's journal; here is what outlives it, or belongs to no run. An undeploy that succeeds
takes this file with it, as it takes all else; one that is refused stays noted.

The daemon notes its start here before it has imported anything heavy, so this file imports little too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torchyard_agent.protocol import paths
from torchyard_agent.protocol.attribution import asked

if TYPE_CHECKING:
    from torchyard_agent.unix_socket_rpc import Connection, Method

FULL = 256 * 1024
"""Bytes of `audit.jsonl`; then it becomes `audit.1.jsonl`, and the one that was that goes."""
MOST = 1000
"""Acts in one answer."""
_ACTS = {"retire": "retire", "undeploy": "undeploy", "run.remove": "remove", "run.abort": "take_back"}
"""Methods that are noted, by the name of the act."""
_STARTS = ("deploy", "upgrade", "start")


def note(agent_dir: str, node: str, what: str, by: object = "", **more: Any) -> None:
    """Appends a line. A disk that is full, or a folder that is gone, keeps nobody from the act itself."""
    path = _path(agent_dir, node)
    seconds = time.time()
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"
    line = json.dumps({"time": now, **asked(what, by, **more)}).encode() + b"\n"
    try:
        _make_room(path)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line)  # whole: two daemons, one of them leaving, may write at once
        finally:
            os.close(file)
    except FileNotFoundError:
        pass  # undeployed: there is no folder any more
    except OSError as error:
        print(f"{what} by {by or 'nobody named'} could not be noted in {path}: {error}", file=sys.stderr)


def note_start(agent_dir: str, node: str, version: str, sha256: str, by: object) -> None:
    """A daemon begins: the first one here, one of another archive than the last, or the same again."""
    before = next((act for act in reversed(list(_acts(agent_dir, node))) if act.get("what") in _STARTS), None)
    if before is None:
        note(agent_dir, node, "deploy", by, version=version, sha256=sha256)
    elif before.get("sha256") == sha256:
        note(agent_dir, node, "start", by, version=version, sha256=sha256)
    else:
        note(agent_dir, node, "upgrade", by, version=version, sha256=sha256, before=str(before.get("version")))


def read(agent_dir: str, node: str, last: int = MOST) -> list[dict[str, Any]]:
    """The last acts, oldest first. A line that was cut off by a full disk is left out."""
    acts = list(_acts(agent_dir, node))
    return acts[-max(1, min(last, MOST)) :]


def watch(agent_dir: str, node: str, methods: dict[str, Method]) -> dict[str, Method]:
    """The daemon's methods with `audit.read` among them; those that change the host note what they did."""
    from torchyard_agent.protocol.jsonrpc import RpcError

    def noted(what: str, method: Method) -> Method:
        async def answer(connection: Connection, params: dict[str, Any]) -> Any:
            by, run_id = params.get("by"), params.get("run_id")
            more = {"run_id": run_id} if run_id is not None else {}
            try:
                result = await method(connection, params)
            except RpcError as refusal:
                if what == "undeploy":  # it would have taken everything, this file included
                    note(agent_dir, node, what, by, refused=refusal.code)
                raise
            note(agent_dir, node, what, by, **more)
            return result

        return answer

    async def audit_read(connection: Connection, params: dict[str, Any]) -> Any:
        return read(agent_dir, node, int(params.get("last", MOST)))

    watched = {name: noted(_ACTS[name], method) if name in _ACTS else method for name, method in methods.items()}
    return {**watched, "audit.read": audit_read}


def _path(agent_dir: str, node: str) -> str:
    return os.path.join(paths.host_dir(agent_dir, node), "audit.jsonl")


def _older(path: str) -> str:
    return path[: -len(".jsonl")] + ".1.jsonl"


def _make_room(path: str) -> None:
    """Begins a new file where this one is full. Housekeeping, a process of its own, may be about to do the same."""
    if not _is_full(path):
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_full(path):
            os.replace(path, _older(path))
    except OSError:
        pass  # somebody else is at it, or the disk knows no locks: the next line tries again
    finally:
        os.close(folder)


def _is_full(path: str) -> bool:
    try:
        return os.stat(path).st_size >= FULL
    except FileNotFoundError:
        return False


def _acts(agent_dir: str, node: str) -> Iterator[dict[str, Any]]:
    path = _path(agent_dir, node)
    for name in (_older(path), path):
        try:
            with open(name, encoding="utf-8", errors="replace") as file:
                lines = file.readlines()
        except OSError:
            continue
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                act = json.loads(line)
                if isinstance(act, dict):
                    yield act
