"""Checkpoints as they lie on this host's disk: which are complete, which go, and how a new run gets an old one's.

Programs write them (`torchyard_roles.checkpoints`): `step-000000001200/`, renamed into place once it is whole, with a
`checkpoint.json` that names its files and their sizes. Here they are files, whatever is in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from typing import Any

NAME = re.compile(r"step-\d{12}")
FINAL = "-final"
"""After the name of one that its chief has marked as the last of its run: it is carried once more, with the mark."""
ABOUT = "checkpoint.json"
PARTS = "parts"
"""What each rank and server keeps for itself, beside the checkpoints that are whole."""
SCRATCH = ".carried-"
"""Before the name of one that is on its way here."""
KEPT = 2
"""So many of those that were carried here stay."""
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")
MAX_FILES = 10_000
MAX_ABOUT = 8 * 1024 * 1024


def checkpoints_dir(run_dir: str) -> str:
    """TORCHYARD_CHECKPOINTS where the hosts share no folder: among the run's outputs, so that it can be fetched."""
    return os.path.join(run_dir, "outputs", "checkpoints")


def is_file_name(name: object) -> bool:
    """Whether it can name a checkpoint's file: never one elsewhere."""
    return isinstance(name, str) and _FILE.fullmatch(name) is not None


def files_of(folder: str) -> dict[str, int] | None:
    """Sizes by name of a complete checkpoint's files, `checkpoint.json` last; None where it is not complete."""
    read = _about(folder)
    if read is None:
        return None
    told, length = read
    try:
        sizes = {name: _size(about) for name, about in told["files"].items() if name != ABOUT}
        if not all(map(is_file_name, sizes)) or len(sizes) > MAX_FILES:
            return None
        for name, size in sizes.items():
            path = os.path.join(folder, name)
            if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) != size:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return {**sizes, ABOUT: length}


def _about(folder: str) -> tuple[Any, int] | None:
    """(what `checkpoint.json` says, its size); None where it cannot be read."""
    try:
        with open(os.path.join(folder, ABOUT), "rb") as file:
            data = file.read(MAX_ABOUT)
        return json.loads(data), len(data)
    except (OSError, ValueError, RecursionError):
        return None


def _size(about: Any) -> int:
    """A file's size: by itself, or with its hash beside it."""
    return int(about["bytes"]) if isinstance(about, dict) else int(about)


def newest(folder: str, run_id: str = "") -> str:
    """The newest complete checkpoint in `folder`, named by its folder; empty where there is none.

    With FINAL behind it where it is the last of the run `run_id`. A later one sorts after an earlier one.
    """
    for name in reversed(_names(folder)):
        if files_of(os.path.join(folder, name)) is not None:
            about = _about(os.path.join(folder, name))
            told = about[0] if about is not None else {}
            return name + FINAL if run_id and told.get("final") and told.get("run") == run_id else name
    return ""


def name_in(label: str) -> str | None:
    """The folder of what `newest` gave; None for what it cannot have given."""
    name = label[: -len(FINAL)] if label.endswith(FINAL) else label
    return name if NAME.fullmatch(name) else None


def _names(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if NAME.fullmatch(name))
    except OSError:
        return []


def keep_newest(folder: str, count: int = KEPT) -> None:
    """Removes complete checkpoints but the newest `count`. One that cannot be removed stays."""
    complete = [name for name in _names(folder) if files_of(os.path.join(folder, name)) is not None]
    for name in complete[: max(0, len(complete) - count)]:
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def scratch(folder: str, name: str) -> str:
    """Where a checkpoint lies while it is carried here. What is left of others that were goes."""
    os.makedirs(folder, 0o700, exist_ok=True)
    mine = os.path.join(folder, SCRATCH + name)
    for other in os.listdir(folder):
        if other.startswith(SCRATCH) and other != SCRATCH + name:
            shutil.rmtree(os.path.join(folder, other), ignore_errors=True)
    os.makedirs(mine, 0o700, exist_ok=True)
    return mine


def clear_scratch(folder: str) -> None:
    """Removes what was only half carried here."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(SCRATCH):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def seed(old_run_dir: str, run_dir: str) -> str:
    """Gives a new run the newest complete checkpoint of an older one on this host, and its ranks' parts.

    By hard link where the disk can: they are never written again, only removed. Returns the checkpoint's name, empty
    where the old run left none here (its parts are of use all the same: a server's shard). Raises OSError.
    """
    there, here = checkpoints_dir(old_run_dir), checkpoints_dir(run_dir)
    name = newest(there)
    if name:
        target = os.path.join(here, SCRATCH + name)
        os.makedirs(target, 0o700, exist_ok=True)
        for file in files_of(os.path.join(there, name)) or {}:
            _link(os.path.join(there, name, file), os.path.join(target, file))
        os.rename(target, os.path.join(here, name))
    for parent, _, files in os.walk(os.path.join(there, PARTS)):
        target = os.path.join(here, os.path.relpath(parent, there))
        os.makedirs(target, 0o700, exist_ok=True)
        for file in files:
            if is_file_name(file) and not os.path.islink(os.path.join(parent, file)):
                _link(os.path.join(parent, file), os.path.join(target, file))
    return name


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
