"""The record of a host's agent version, which prevents an older desktop from downgrading the agent.

The daemon writes the record. If there were no record, an older desktop would start its own daemon after the newer
daemon was killed or the host was rebooted. The record is in the host's own folder, because hosts with a shared home
folder may be upgraded one by one.
"""

from __future__ import annotations

import contextlib
import json
import os

from torchyard_agent.protocol import paths
from torchyard_agent.protocol.version_order import version_order

NOTE = "agent.json"


def note(agent_dir: str, node: str, version: str, sha256: str) -> None:
    """Records that this host's daemon runs from the unpacked archive `sha256`. Write errors are ignored."""
    path = os.path.join(paths.host_dir(agent_dir, node), NOTE)
    with contextlib.suppress(OSError):
        # The modification time marks the archive as used, which delays its garbage collection.
        os.utime(paths.archive_dir(agent_dir, sha256))
    if noted(path) == (version, sha256):
        return
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump({"version": version, "sha256": sha256}, file)
        os.replace(f"{path}.new", path)


def noted(path: str) -> tuple[str, str]:
    """Returns the version and SHA-256 of a record. Both are empty if the record is missing or damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return str(found["version"]), str(found["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


def newer_than(agent_dir: str, node: str, version: str) -> str | None:
    """Returns the SHA-256 of the recorded agent if it is newer than `version` and its archive exists, else None."""
    newest, sha256 = noted(os.path.join(paths.host_dir(agent_dir, node), NOTE))
    if version_order(newest) <= version_order(version):
        return None
    is_there = os.path.isfile(os.path.join(paths.archive_dir(agent_dir, sha256), "torchyard_agent", "__main__.py"))
    return sha256 if is_there else None
