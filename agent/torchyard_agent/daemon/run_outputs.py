"""Gives desktops access to the files that a run wrote on this host."""

from __future__ import annotations

import base64
import fnmatch
import os
from typing import Any

from torchyard_agent import snapshot_store
from torchyard_agent.daemon.runs import read_record
from torchyard_agent.protocol.jsonrpc import RpcError

PIECE = 512 * 1024
"""Maximum number of bytes of a file in one answer."""
INCOMPLETE = (".saving-", ".carried-")
"""Prefixes of checkpoint folders that are being written on this host or copied to it.

The folders are renamed when they are complete.
"""


def list_files(run_dir: str, pattern: str, agent_dir: str) -> list[dict[str, Any]]:
    """Returns the files of `outputs/`, `logs/` and `work/` whose path or name matches `pattern`, with their sizes.

    If there is no pattern, the result contains all files of `outputs/` and `logs/`, and the files of `work/` that the
    run created or changed, except bytecode. Symbolic links and incomplete checkpoints are omitted.
    """
    root = read_record(run_dir).get("snapshot")
    manifest = snapshot_store.read_manifest(agent_dir, root) if root else None
    sent: dict[str, dict[str, Any]] = {entry["path"]: entry for entry in manifest or []}
    found = []
    checkpoints = os.path.join(run_dir, "outputs", "checkpoints")
    for folder in ("outputs", "logs", "work"):
        for parent, folders, names in os.walk(os.path.join(run_dir, folder)):
            if parent == checkpoints:
                folders[:] = [name for name in folders if not name.startswith(INCOMPLETE)]
            for name in sorted(names):
                path = os.path.join(parent, name)
                below = os.path.relpath(path, run_dir)
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                if pattern:
                    wanted = fnmatch.fnmatch(below, pattern) or fnmatch.fnmatch(name, pattern)
                else:
                    wanted = folder != "work" or not _is_as_sent(path, os.path.relpath(below, "work"), sent)
                if wanted:
                    found.append({"path": below, "size": os.path.getsize(path)})
    return found


def read_file(run_dir: str, path: str, offset: int) -> dict[str, Any]:
    """Returns a part of one of the run's files, starting at `offset`.

    Raises RpcError if the file is outside the run's folder.
    """
    whole = os.path.realpath(os.path.join(run_dir, path))
    if not whole.startswith(os.path.realpath(run_dir) + os.sep):
        raise RpcError(f"{path} lies outside the run's folder", "outside")
    try:
        return read_piece(whole, offset)
    except FileNotFoundError:
        raise RpcError(f"the run has no file {path} any more", "no_file") from None


def read_piece(path: str, offset: int) -> dict[str, Any]:
    """Returns a part of a file, starting at `offset`, as {"data" (base64), "next", "size"}.

    Raises OSError if the file cannot be read.
    """
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(PIECE)
        size = os.fstat(file.fileno()).st_size
    return {"data": base64.b64encode(data).decode(), "next": offset + len(data), "size": size}


def _is_as_sent(path: str, below: str, sent: dict[str, dict[str, Any]]) -> bool:
    if "__pycache__" in below.split(os.sep):
        return True
    entry = sent.get(below)
    return (
        entry is not None
        and "sha256" in entry
        and os.path.getsize(path) == entry["size"]
        and snapshot_store.hash_file(path) == entry["sha256"]
    )
