"""Manages the checkpoint folders on this host's disk: checks that they are complete, removes and links them.

`torchyard_roles.checkpoints` writes the folders, such as `step-000000001200/`. A folder gets its final name when it is
complete. The file `checkpoint.json` in a folder lists the other files and their sizes. The agent does not interpret the
contents of these files.
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
"""Suffix that `newest` appends to the name of a checkpoint that the chief marked as the run's last one.

The name then differs from that of the unmarked checkpoint, so the checkpoint is copied again with its mark.
"""
ABOUT = "checkpoint.json"
PARTS = "parts"
"""Name of the folder with the parts that ranks and servers save on their own hosts."""
SCRATCH = ".carried-"
"""Prefix of the folders of incomplete checkpoints, which are being copied or linked."""
KEPT = 2
"""The number of copied checkpoints that are kept."""
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}|\.metadata")
"""The names that the files of a checkpoint may have. `.metadata` describes the parts of a sharded model."""
MAX_FILES = 10_000
MAX_ABOUT = 8 * 1024 * 1024


def checkpoints_dir(run_dir: str) -> str:
    """Returns the checkpoint folder in the run's outputs, from which desktops can download checkpoints.

    This folder is the value of TORCHYARD_CHECKPOINTS if the run's hosts share no folder.
    """
    return os.path.join(run_dir, "outputs", "checkpoints")


def is_file_name(name: object) -> bool:
    """Returns whether `name` is a valid file name in a checkpoint. A path that leads out of the folder is not valid."""
    return isinstance(name, str) and _FILE.fullmatch(name) is not None


def files_of(folder: str) -> dict[str, int] | None:
    """Returns the sizes of a checkpoint's files by name, or None if the checkpoint is incomplete.

    The last item is `checkpoint.json`.
    """
    read = _about(folder)
    if read is None:
        return None
    about, length = read
    try:
        sizes = {name: _size(entry) for name, entry in about["files"].items() if name != ABOUT}
        if not all(map(is_file_name, sizes)) or len(sizes) > MAX_FILES:
            return None
        for name, size in sizes.items():
            path = os.path.join(folder, name)
            if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) != size:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return {**sizes, ABOUT: length}


def first_missing(folder: str) -> str:
    """Returns the name of the first file of an incomplete checkpoint that is missing or has the wrong size."""
    read = _about(folder)
    files = read[0].get("files") if read is not None and isinstance(read[0], dict) else None
    if not isinstance(files, dict):
        return ABOUT
    for name, entry in files.items():
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
            if is_file_name(name) and os.path.isfile(path) and os.path.getsize(path) == _size(entry):
                continue
        return str(name)
    return ABOUT


def _about(folder: str) -> tuple[Any, int] | None:
    """Returns the contents and the size of `checkpoint.json`, or None if the file cannot be read or parsed."""
    try:
        with open(os.path.join(folder, ABOUT), "rb") as file:
            data = file.read(MAX_ABOUT)
        return json.loads(data), len(data)
    except (OSError, ValueError, RecursionError):
        return None


def _size(about: Any) -> int:
    """Returns a file's size from its entry in `checkpoint.json`: a number, or an object with `bytes` and a hash."""
    return int(about["bytes"]) if isinstance(about, dict) else int(about)


def newest(folder: str, run_id: str = "") -> str:
    """Returns the name of the newest complete checkpoint in `folder`, or "" if there is none.

    FINAL is appended to the name if the checkpoint is marked as the last one of the run `run_id`. Names sort by step.
    """
    for name in reversed(_names(folder)):
        if files_of(os.path.join(folder, name)) is not None:
            about = _about(os.path.join(folder, name))
            content = about[0] if about is not None else {}
            return name + FINAL if run_id and content.get("final") and content.get("run") == run_id else name
    return ""


def name_in(label: str) -> str | None:
    """Returns the folder name in a result of `newest`, or None if the result is not a checkpoint's name."""
    name = label[: -len(FINAL)] if label.endswith(FINAL) else label
    return name if NAME.fullmatch(name) else None


def _names(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if NAME.fullmatch(name))
    except OSError:
        return []


def keep_newest(folder: str, count: int = KEPT) -> None:
    """Removes all complete checkpoints except the newest `count`. Errors are ignored."""
    complete = [name for name in _names(folder) if files_of(os.path.join(folder, name)) is not None]
    for name in complete[: max(0, len(complete) - count)]:
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def scratch(folder: str, name: str) -> str:
    """Creates and returns the folder into which the checkpoint `name` is transferred.

    The folders of other transfers are removed.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    mine = os.path.join(folder, SCRATCH + name)
    for other in os.listdir(folder):
        if other.startswith(SCRATCH) and other != SCRATCH + name:
            shutil.rmtree(os.path.join(folder, other), ignore_errors=True)
    os.makedirs(mine, 0o700, exist_ok=True)
    return mine


def clear_scratch(folder: str) -> None:
    """Removes the folders of all incomplete transfers."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(SCRATCH):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def seed(old_run_dir: str, run_dir: str) -> str:
    """Links the newest complete checkpoint and the parts of ranks from an older run on this host into a new run.

    Files are hard-linked, because checkpoint files are never modified. If the file system does not support this, they
    are copied. Parts, such as a server's shard, are linked even if this host has no complete checkpoint.

    Returns:
        The checkpoint's name, or "" if the older run has no complete checkpoint on this host.

    Raises:
        OSError: A file cannot be linked or copied.
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
    except OSError:  # The target is on another file system, or the file system has no hard links.
        shutil.copyfile(source, target)
