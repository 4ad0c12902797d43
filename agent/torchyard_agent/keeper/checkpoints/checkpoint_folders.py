"""Checkpoint folders on this host's disk: completeness, removal, and inheritance by a new run.

`torchyard_roles.checkpoints` writes them: `step-000000001200/`, renamed into place once complete, with a
`checkpoint.json` that lists its files and their sizes. The agent does not read the other files' contents.
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
"""Suffix of a checkpoint that its chief has marked as the last of the run; it is copied again with the mark."""
ABOUT = "checkpoint.json"
PARTS = "parts"
"""Folder of the parts that ranks and servers save on their own hosts."""
SCRATCH = ".carried-"
"""Prefix of a folder whose transfer to this host is under way."""
KEPT = 2
"""The number of copied checkpoints that are kept."""
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")
MAX_FILES = 10_000
MAX_ABOUT = 8 * 1024 * 1024


def checkpoints_dir(run_dir: str) -> str:
    """TORCHYARD_CHECKPOINTS if the hosts share no folder: in the run's outputs, which desktops can fetch."""
    return os.path.join(run_dir, "outputs", "checkpoints")


def is_file_name(name: object) -> bool:
    """Whether this is a valid name of a checkpoint's file, which cannot lead out of the folder."""
    return isinstance(name, str) and _FILE.fullmatch(name) is not None


def files_of(folder: str) -> dict[str, int] | None:
    """Sizes by name of a complete checkpoint's files, `checkpoint.json` last; None if it is incomplete."""
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


def _about(folder: str) -> tuple[Any, int] | None:
    """(the contents of `checkpoint.json`, its size); None if it cannot be read."""
    try:
        with open(os.path.join(folder, ABOUT), "rb") as file:
            data = file.read(MAX_ABOUT)
        return json.loads(data), len(data)
    except (OSError, ValueError, RecursionError):
        return None


def _size(about: Any) -> int:
    """A file's size from its entry, which is a number or an object with `bytes` and a hash."""
    return int(about["bytes"]) if isinstance(about, dict) else int(about)


def newest(folder: str, run_id: str = "") -> str:
    """The name of the newest complete checkpoint in `folder`; empty if there is none. Names sort by step.

    FINAL is appended if it is marked as the last of the run `run_id`.
    """
    for name in reversed(_names(folder)):
        if files_of(os.path.join(folder, name)) is not None:
            about = _about(os.path.join(folder, name))
            content = about[0] if about is not None else {}
            return name + FINAL if run_id and content.get("final") and content.get("run") == run_id else name
    return ""


def name_in(label: str) -> str | None:
    """The folder name in a result of `newest`; None if the text is not such a result."""
    name = label[: -len(FINAL)] if label.endswith(FINAL) else label
    return name if NAME.fullmatch(name) else None


def _names(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if NAME.fullmatch(name))
    except OSError:
        return []


def keep_newest(folder: str, count: int = KEPT) -> None:
    """Removes complete checkpoints except the newest `count`; failures are ignored."""
    complete = [name for name in _names(folder) if files_of(os.path.join(folder, name)) is not None]
    for name in complete[: max(0, len(complete) - count)]:
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def scratch(folder: str, name: str) -> str:
    """Creates the folder for a transfer of `name`, and removes those of other transfers."""
    os.makedirs(folder, 0o700, exist_ok=True)
    mine = os.path.join(folder, SCRATCH + name)
    for other in os.listdir(folder):
        if other.startswith(SCRATCH) and other != SCRATCH + name:
            shutil.rmtree(os.path.join(folder, other), ignore_errors=True)
    os.makedirs(mine, 0o700, exist_ok=True)
    return mine


def clear_scratch(folder: str) -> None:
    """Removes the folders of incomplete transfers."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(SCRATCH):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def seed(old_run_dir: str, run_dir: str) -> str:
    """Links an older run's newest complete checkpoint on this host, and its ranks' parts, into a new run.

    The files are never written again, so hard links suffice where the file system has them. Returns the checkpoint's
    name; empty if there is none here (parts are linked all the same, such as a server's shard). Raises OSError.
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
