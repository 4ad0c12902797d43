"""Removes the agent from a host, unless the agent's folder contains other files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from typing import Any

from torchyard_agent.daemon import garbage_collection_trigger, systemd_unit
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.telemetry.procfs import each_process

_OWN_NAMES = frozenset({"store", "hosts"})
RETRY_S = 10.0
"""Longest time in seconds for which the removal of a folder is retried while other processes write into it."""


def remove_everything(agent_dir: str, node: str) -> dict[str, Any]:
    """Removes this host's folder and, if no other host uses the store, the whole folder of the agent.

    Empty parent folders that were created for the agent are also removed. Raises RpcError if the agent's folder
    contains files of other programs.

    Returns:
        {"removed": folder, "shared_with": [nodes]}, where the nodes are the hosts that still use the store.
    """
    foreign = sorted(name for name in _names(agent_dir) - _OWN_NAMES if not name.startswith(".nfs"))
    if foreign:
        raise RpcError(
            f"{agent_dir} contains files that are not Torchyard's: {', '.join(foreign[:5])}",
            "not_ours",
            "Move them elsewhere, then undeploy again.",
        )
    systemd_unit.remove(agent_dir)
    _end_helpers(agent_dir)
    _close_log()
    _remove(paths.host_dir(agent_dir, node))
    hosts = os.path.dirname(paths.host_dir(agent_dir, node))
    shared_with = sorted(_names(hosts))
    if not shared_with:
        parents = _created_parents(agent_dir)
        _remove(paths.store_dir(agent_dir))
        for folder in (hosts, agent_dir):
            if not _names(folder):
                # Another host with the same home folder may have removed the folder.
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(folder)
        if not os.path.exists(agent_dir):
            for folder in parents:
                with contextlib.suppress(OSError):  # The folder may contain other files now.
                    os.rmdir(folder)
    return {"removed": agent_dir, "shared_with": shared_with}


def _created_parents(agent_dir: str) -> list[str]:
    """Returns the parent folders that `bootstrap.create_store` created for the agent, innermost first."""
    try:
        with open(os.path.join(paths.store_dir(agent_dir), "made.json"), encoding="utf-8") as file:
            return [str(folder) for folder in json.load(file) if agent_dir.startswith(f"{folder}/")]
    except (OSError, ValueError):
        return []


def _end_helpers(agent_dir: str) -> None:
    """Ends bytecode compilation and garbage collection, because they would create folders again."""
    deadline = time.monotonic() + RETRY_S
    while time.monotonic() < deadline:
        helpers = list(_helpers(agent_dir))
        if not helpers:
            return
        for pid in helpers:
            with contextlib.suppress(OSError):  # The process may already have exited.
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.05)


def _helpers(agent_dir: str) -> Iterator[int]:
    """Yields the PIDs of the daemon's background processes that run from this store."""
    store, title = os.fsencode(paths.store_dir(agent_dir)) + b"/", garbage_collection_trigger.TITLE.encode()
    for pid, line in each_process("cmdline"):
        if store in line and (b"/daemon/bytecode.py" in line or title in line):
            yield pid


def _names(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def _close_log() -> None:
    """Redirects the daemon's output to /dev/null, because on NFS an open file prevents the removal of its folder."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def _remove(folder: str) -> None:
    """Removes a folder. Retries for RETRY_S, because other processes may write into the folder or remove it.

    Raises OSError if the folder still cannot be removed.
    """
    deadline = time.monotonic() + RETRY_S
    while os.path.isdir(folder):
        try:
            shutil.rmtree(folder)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
