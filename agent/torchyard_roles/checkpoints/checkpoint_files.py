"""Checkpoint files: their format, completeness and deletion.

    <root>/step-000000001200/        atomic: renamed into place when it is complete
        model.pt  optimizer.pt  extra.pt
        checkpoint.json              {"step", "epoch", "final", "run", "fingerprint", "strategy",
                                      "files": {name: bytes}, "time"}
        .metadata  __0_0.distcp …    in place of model.pt if the model is sharded over ranks (`sharded_files`)
    <root>/parts/<who>/step-….pt     the state of a rank or a server for that checkpoint
    <root>/parts/<who>/newest.pt     the newest state of a server, for a restart of the server alone
    <root>/.saving-…                 being written, or left by a killed process

The .pt files are read with torch.load(weights_only=True), so a checkpoint from an unknown source cannot run code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torchyard_roles.checkpoints import sharded_files

KEPT = 3
"""The number of complete checkpoints that are kept."""
UNFINISHED_MAX_AGE_S = 3600.0
"""Time in seconds since the last write to an unfinished save after which the save is deleted."""
ABOUT = "checkpoint.json"
PARTS = "parts"
NEWEST = "newest"
FILES = ("model.pt", "optimizer.pt", "extra.pt")
SHARDED_FILES = ("optimizer.pt", "extra.pt", sharded_files.METADATA)
"""The files that a sharded checkpoint must contain besides the ranks' parts of the model."""
UNFINISHED = ".saving-"
_NAME = re.compile(r"step-(\d{12})")


class Checkpoint(NamedTuple):
    """A complete checkpoint on disk."""

    folder: Path
    step: int
    about: dict[str, Any]
    """The contents of checkpoint.json."""

    @property
    def is_sharded(self) -> bool:
        """Whether the model is sharded.

        The ranks have then written their parts of the model to separate files.
        """
        return sharded_files.METADATA in self.about["files"]

    def load(self, name: str, *, whole: bool = True) -> Any:
        """Loads one of FILES, with tensors on the CPU. Raises Damaged if it cannot be read.

        Args:
            whole: Whether to also load the tensors that are divided among the files of the ranks.
        """
        if not (self.is_sharded and whole):
            return load(self.folder / name)
        if name == "model.pt":
            return _undamaged(sharded_files.METADATA, lambda: sharded_files.full_model(self.folder))
        content = load(self.folder / name)
        if name == "optimizer.pt":
            return _undamaged(sharded_files.METADATA, lambda: sharded_files.full_optimizer(self.folder, content))
        return content


class Damaged(Exception):
    """Raised when a checkpoint is incomplete or a file cannot be read. The message is a clause without a period."""


def name_of(step: int) -> str:
    return f"step-{step:012d}"


def load(path: Path) -> Any:
    """Loads a file that was written by torch.save(), with tensors on the CPU. Raises Damaged if it cannot be read."""
    import torch

    return _undamaged(path.name, lambda: torch.load(path, map_location="cpu", weights_only=True))


def _undamaged(name: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BaseException as error:  # DCP wraps read errors in its own subclass of BaseException.
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise Damaged(f"{name} cannot be read ({first})") from error


def step_of(folder: Path) -> int | None:
    """Returns the step of a checkpoint's folder, or None if the folder's name has another form."""
    found = _NAME.fullmatch(folder.name)
    return int(found[1]) if found else None


def steps(root: Path) -> list[int]:
    """Returns the steps for which a checkpoint folder exists, complete or not, newest first."""
    try:
        names = [_NAME.fullmatch(entry.name) for entry in os.scandir(root) if entry.is_dir()]
    except OSError:
        return []
    return sorted((int(found[1]) for found in names if found), reverse=True)


def read(root: Path, step: int) -> Checkpoint:
    """Reads the checkpoint of a step, without loading its tensors. Raises Damaged if the checkpoint is incomplete."""
    folder = root / name_of(step)
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        files = {str(name): int(size) for name, size in about["files"].items()}
        recorded = int(about["step"])
    except FileNotFoundError as error:
        raise Damaged(f"it has no {ABOUT}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Damaged(f"{ABOUT} cannot be read") from error
    if recorded != step:
        raise Damaged(f"{ABOUT} is of step {recorded}")
    for name in FILES if sharded_files.METADATA not in files else SHARDED_FILES:
        if name not in files:
            raise Damaged(f"{ABOUT} names no {name}")
    for name, size in files.items():
        try:
            actual = (folder / Path(name).name).stat().st_size
        except (OSError, ValueError):  # A file name that contains a NUL raises ValueError.
            raise Damaged(f"{name} is missing") from None
        if actual != size:
            raise Damaged(f"{name} has {actual} of {size} bytes")
    return Checkpoint(folder, step, about)


def complete(root: Path) -> list[Checkpoint]:
    """Returns all complete checkpoints, newest first."""
    found = []
    for step in steps(root):
        try:
            found.append(read(root, step))
        except Damaged:
            continue
    return found


def write(root: Path, step: int, contents: Mapping[str, Any], about: Mapping[str, Any]) -> Checkpoint:
    """Writes a checkpoint and renames it into place. It replaces an earlier checkpoint of the same step.

    Args:
        contents: The states to save, by file name.
        about: Additional entries of checkpoint.json.

    Raises:
        OSError, RuntimeError: A file cannot be written.
    """
    unfinished = begin(root, step, f"{socket.gethostname()}-{os.getpid()}")
    return complete_with(root, step, unfinished, contents, about)


def unfinished_folder(root: Path, step: int, who: str) -> Path:
    """Returns the folder in which the process `who` writes an unfinished checkpoint."""
    return root / f"{UNFINISHED}{name_of(step)}-{who}"


def begin(root: Path, step: int, who: str) -> Path:
    """Creates an empty folder for an unfinished checkpoint, and returns its path. Raises OSError if this fails."""
    unfinished = unfinished_folder(root, step, who)
    root.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    return unfinished


def complete_with(
    root: Path, step: int, unfinished: Path, contents: Mapping[str, Any], about: Mapping[str, Any]
) -> Checkpoint:
    """Writes the last files of an unfinished checkpoint, and renames its folder into place.

    Args:
        unfinished: A folder that begin() returned. It may already contain files.
        contents: As in write().

    Raises:
        OSError, RuntimeError: A file cannot be written.
    """
    try:
        sizes = {path.name: path.stat().st_size for path in unfinished.iterdir()}
        sizes |= {name: _write_tensors(unfinished / name, content) for name, content in contents.items()}
        whole = {**about, "step": step, "files": sizes, "time": time.time()}
        _write_text(unfinished / ABOUT, json.dumps(whole))
        _move_into_place(unfinished, root / name_of(step))
    except BaseException:  # The folder is also removed after KeyboardInterrupt and SystemExit.
        shutil.rmtree(unfinished, ignore_errors=True)  # Removing the folder frees the space if the disk is full.
        raise
    return Checkpoint(root / name_of(step), step, whole)


def mark_final(root: Path, step: int, run: str) -> None:
    """Marks a checkpoint as the last one of a run. Raises OSError, or Damaged if the checkpoint is incomplete."""
    found = read(root, step)
    unfinished = found.folder / f"{UNFINISHED}{ABOUT}"
    _write_text(unfinished, json.dumps({**found.about, "final": True, "run": run}))
    unfinished.replace(found.folder / ABOUT)


def prune(root: Path, kept: int = KEPT) -> None:
    """Deletes all but the newest `kept` complete checkpoints, and old unfinished saves."""
    there = complete(root)
    if len(there) >= kept:
        oldest = there[kept - 1].step
        for step in steps(root):
            if step < oldest:
                shutil.rmtree(root / name_of(step), ignore_errors=True)
    _delete_unfinished(root)


def part_path(root: Path, who: str, step: int | None) -> Path:
    """Returns the path of the part that `who` saves at `step`, or of its newest part if `step` is None."""
    return root / PARTS / who / f"{NEWEST if step is None else name_of(step)}.pt"


def write_part(root: Path, who: str, step: int | None, state: Any) -> None:
    """Saves the state of `who` (such as `worker-1.0` or `ps-0`) at `step`, or as the newest part if `step` is None.

    Raises OSError or RuntimeError if the file cannot be written.
    """
    path = part_path(root, who, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{UNFINISHED}{path.name}-{os.getpid()}")
    try:
        _write_tensors(unfinished, state)
        unfinished.replace(path)
    except BaseException:  # The file is also removed after KeyboardInterrupt and SystemExit.
        unfinished.unlink(missing_ok=True)
        raise


def keep_newest_part(root: Path, who: str, step: int) -> None:
    """Saves the newest part of `who` also as its part of `step`, by a hard link if possible.

    Raises OSError if the part cannot be linked or copied.
    """
    path = part_path(root, who, step)
    unfinished = path.with_name(f"{UNFINISHED}{path.name}-{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    try:
        os.link(part_path(root, who, None), unfinished)
    except OSError:  # Not all file systems have hard links.
        shutil.copyfile(part_path(root, who, None), unfinished)
    unfinished.replace(path)


def read_part(root: Path, who: str, step: int | None) -> Any:
    """Returns the state that write_part() saved, or None if there is none. Logs and ignores a damaged part."""
    path = part_path(root, who, step)
    try:
        return load(path) if path.exists() else None
    except Damaged as damage:
        print(f"torchyard: the part of {who} in {path.parent} is ignored: {damage}.", flush=True)
        return None


def part_steps(root: Path, who: str) -> list[int]:
    """Returns the steps for which `who` saved a part, newest first."""
    found = [_NAME.fullmatch(path.stem) for path in (root / PARTS / who).glob("step-*.pt")]
    return sorted((int(one[1]) for one in found if one), reverse=True)


def prune_parts(root: Path, who: str, keep: Iterable[int]) -> None:
    """Deletes the parts of `who` except those of the steps in `keep`, and old unfinished saves of `who`."""
    kept = set(keep)
    for step in part_steps(root, who):
        if step not in kept:
            part_path(root, who, step).unlink(missing_ok=True)
    _delete_unfinished(root / PARTS / who)


def _delete_unfinished(folder: Path) -> None:
    for unfinished in folder.glob(f"{UNFINISHED}*"):
        if time.time() - _last_written(unfinished) > UNFINISHED_MAX_AGE_S:
            if unfinished.is_dir():
                shutil.rmtree(unfinished, ignore_errors=True)
            else:
                unfinished.unlink(missing_ok=True)


def _write_tensors(path: Path, content: Any) -> int:
    import torch

    with path.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())  # Without fsync(), the renamed file could be empty after a power failure.
        return file.tell()


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _move_into_place(unfinished: Path, place: Path) -> None:
    if place.exists():
        old = unfinished.with_name(unfinished.name + "-old")
        place.rename(old)
        unfinished.rename(place)
        shutil.rmtree(old, ignore_errors=True)
    else:
        unfinished.rename(place)
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _last_written(folder: Path) -> float:
    try:
        return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return time.time()  # A file was renamed or deleted during the scan, so the folder is still in use.
