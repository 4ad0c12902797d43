"""Old working folders leave the store. Never one that a run refers to, nor one that was used lately.

Other hosts may share the store, so the folders of all of them are looked at. A file goes once no snapshot that stays
has it; one that came just now may belong to a snapshot that is still being sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator

from torchyard_agent import snapshot_store
from torchyard_agent.protocol import paths

KEEP_S = 7 * 86400.0
KEEP_WHEN_SHORT_S = 86400.0
SHORT_SHARE = 0.1
"""With less of the disk free than this, snapshots are kept for a day only."""
FRESH_S = 86400.0
"""So long a file that no snapshot has may still be wanted by one on its way."""


def prune(agent_dir: str, now: float | None = None) -> int:
    """Removes what nobody needs; returns how many snapshots went. What cannot be removed stays."""
    now = time.time() if now is None else now
    store = paths.store_dir(agent_dir)
    try:
        about = os.statvfs(store)
        names = os.listdir(os.path.join(store, "snapshots"))
    except OSError:
        return 0
    keep_s = KEEP_WHEN_SHORT_S if about.f_bavail < SHORT_SHARE * about.f_blocks else KEEP_S
    try:
        used = used_by_runs(agent_dir)
    except OSError:
        return 0  # some host's runs cannot be looked at just now
    old = [root for root in names if root not in used and now - _used_at(agent_dir, root) > keep_s]
    for root in old:
        _remove_folder(paths.snapshot_dir(agent_dir, root))
    _prune_files(agent_dir, set(names) - set(old), now)
    return len(old)


def used_by_runs(agent_dir: str) -> set[str]:
    """Roots that any run of any host refers to, by its record. Raises OSError where it cannot be read."""
    found = set()
    for run in _folders(os.path.join(agent_dir, "hosts")):
        try:
            with open(os.path.join(run, "run.json"), encoding="utf-8") as file:
                root = json.load(file).get("snapshot")
        except (FileNotFoundError, NotADirectoryError, ValueError, AttributeError):
            continue
        if root:
            found.add(str(root))
    return found


def _folders(hosts: str) -> Iterator[str]:
    for host in _names(hosts):
        runs = os.path.join(hosts, host, "runs")
        for run in _names(runs):
            yield os.path.join(runs, run)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _used_at(agent_dir: str, root: str) -> float:
    folder = paths.snapshot_dir(agent_dir, root)
    for path in (os.path.join(folder, snapshot_store.MANIFEST), folder):
        with contextlib.suppress(OSError):
            return os.stat(path).st_mtime
    return float("inf")


def _prune_files(agent_dir: str, roots: set[str], now: float) -> None:
    wanted: set[str] = set()
    for root in roots:
        manifest = snapshot_store.read_manifest(agent_dir, root)
        if manifest is None and os.path.exists(
            os.path.join(paths.snapshot_dir(agent_dir, root), snapshot_store.MANIFEST)
        ):
            return  # not to be read just now: nothing of it may go
        wanted.update(entry["sha256"] for entry in manifest or [] if "sha256" in entry)
    for parent, _, names in os.walk(os.path.join(paths.store_dir(agent_dir), "files")):
        for name in names:
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                if name not in wanted and now - os.stat(path).st_mtime > FRESH_S:
                    os.unlink(path)


def _remove_folder(folder: str) -> None:
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
