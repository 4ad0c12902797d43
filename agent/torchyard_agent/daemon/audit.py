"""The audit log of a host, `audit.jsonl`: administrative actions, each with its time and user.

The log records actions on the agent itself, and actions whose record must outlive the run, such as the removal of a
run. All other actions are recorded in the run's journal. Entries are only appended. A successful undeploy removes the
log. This module imports few others, because the daemon records its start before it imports large modules.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torchyard_agent.protocol import paths, timestamps
from torchyard_agent.protocol.attribution import attribution_entry

if TYPE_CHECKING:
    from torchyard_agent.unix_socket_rpc import Connection, Method

MAX_BYTES = 256 * 1024
"""Size in bytes at which `audit.jsonl` is renamed to `audit.1.jsonl`."""
MAX_ACTS = 1000
"""Maximum number of actions that one call of `audit.read` returns."""
_ACTS = {"retire": "retire", "undeploy": "undeploy", "run.remove": "remove", "run.abort": "take_back"}
"""The methods whose calls are recorded, and the names under which they are recorded."""
_STARTS = ("deploy", "upgrade", "start")


def note(agent_dir: str, node: str, what: str, by: object = "", **more: Any) -> None:
    """Appends an action to the log. Prints write errors. Does nothing if the agent's folder no longer exists."""
    path = _path(agent_dir, node)
    line = json.dumps({"time": timestamps.now(), **attribution_entry(what, by, **more)}).encode() + b"\n"
    try:
        _rotate(path)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # The line is written in a single call, because another daemon that is exiting may write at the same time.
            os.write(file, line)
        finally:
            os.close(file)
    except FileNotFoundError:
        pass  # The agent was undeployed, so its folder no longer exists.
    except OSError as error:
        print(f"{what} by {by or 'an unnamed user'} could not be noted in {path}: {error}", file=sys.stderr)


def note_start(agent_dir: str, node: str, version: str, sha256: str, by: object) -> None:
    """Records a daemon's start as `deploy`, `upgrade` or `start`.

    The first start on this host is a `deploy`, and a start from a new archive is an `upgrade`.
    """
    before = next((act for act in reversed(list(_acts(agent_dir, node))) if act.get("what") in _STARTS), None)
    more = {"version": version, "sha256": sha256}
    if before is None:
        note(agent_dir, node, "deploy", by, **more)
    elif before.get("sha256") == sha256:
        note(agent_dir, node, "start", by, **more)
    else:
        note(agent_dir, node, "upgrade", by, **more, before=str(before.get("version")))


def read(agent_dir: str, node: str, last: int = MAX_ACTS) -> list[dict[str, Any]]:
    """Returns the newest actions, at most `last`, in chronological order. Damaged lines are skipped."""
    acts = list(_acts(agent_dir, node))
    return acts[-max(1, min(last, MAX_ACTS)) :]


def watch(agent_dir: str, node: str, methods: dict[str, Method]) -> dict[str, Method]:
    """Wraps the daemon's methods to record calls in the log, and adds the method `audit.read`.

    Successful calls of the methods in _ACTS and failed calls of `undeploy` are recorded.
    """
    from torchyard_agent.protocol.jsonrpc import RpcError

    def noted(what: str, method: Method) -> Method:
        async def answer(connection: Connection, params: dict[str, Any]) -> Any:
            by, run_id = params.get("by"), params.get("run_id")
            more = {"run_id": run_id} if run_id is not None else {}
            try:
                result = await method(connection, params)
            except RpcError as refusal:
                # Only a failed undeploy can be recorded, because a successful one removes the log.
                if what == "undeploy":
                    note(agent_dir, node, what, by, refused=refusal.code)
                raise
            note(agent_dir, node, what, by, **more)
            return result

        return answer

    async def audit_read(connection: Connection, params: dict[str, Any]) -> Any:
        return read(agent_dir, node, int(params.get("last", MAX_ACTS)))

    watched = {name: noted(_ACTS[name], method) if name in _ACTS else method for name, method in methods.items()}
    return {**watched, "audit.read": audit_read}


def _path(agent_dir: str, node: str) -> str:
    return os.path.join(paths.host_dir(agent_dir, node), "audit.jsonl")


def _older(path: str) -> str:
    return path[: -len(".jsonl")] + ".1.jsonl"


def _rotate(path: str) -> None:
    """Renames the log to `audit.1.jsonl` if it is full. Several processes may call this function concurrently."""
    if not _is_full(path):
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_full(path):
            os.replace(path, _older(path))
    except OSError:
        pass  # Another process has the lock, or the file system does not support locks. The next call tries again.
    finally:
        os.close(folder)


def _is_full(path: str) -> bool:
    try:
        return os.stat(path).st_size >= MAX_BYTES
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
