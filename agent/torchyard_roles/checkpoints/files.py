"""Checkpoints on disk: their format, which are complete, and which are cleared away.

    <root>/step-000000001200/        there as a whole or not at all: it is renamed into place when complete
        model.pt  optimizer.pt  extra.pt
        checkpoint.json              {"step", "epoch", "final", "run", "fingerprint", "strategy",
                                      "files": {name: bytes}, "time"}
    <root>/parts/<who>/step-….pt     what a rank or a server keeps of its own for that checkpoint
    <root>/parts/<who>/newest.pt     a server's last of all, for one that is started again alone
    <root>/.saving-…                 one that is being written, or whose writer was killed

Everything is read with torch.load(weights_only=True): a checkpoint may come from anywhere, and runs no code here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

KEPT = 3
"""Complete checkpoints that stay."""
LEFTOVER_S = 3600.0
"""A cut-short save that nobody has written to for so long is cleared away: its writer is gone."""
ABOUT = "checkpoint.json"
PARTS = "parts"
NEWEST = "newest"
FILES = ("model.pt", "optimizer.pt", "extra.pt")
UNFINISHED = ".saving-"
_NAME = re.compile(r"step-(\d{12})")


class Checkpoint(NamedTuple):
    """A complete one."""

    folder: Path
    step: int
    about: dict[str, Any]
    """checkpoint.json."""

    def load(self, name: str) -> Any:
        """One of FILES, its tensors on the CPU. Raises Damaged."""
        return load(self.folder / name)


class Damaged(Exception):
    """A file cannot be read as what it should be; the message is half a sentence."""


def name_of(step: int) -> str:
    return f"step-{step:012d}"


def load(path: Path) -> Any:
    """What torch.save wrote, tensors on the CPU. Raises Damaged."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for a file that is cut short
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise Damaged(f"{path.name} cannot be read ({first})") from error


def steps(root: Path) -> list[int]:
    """Those that a folder is there for, complete or not, newest first."""
    try:
        names = [_NAME.fullmatch(entry.name) for entry in os.scandir(root) if entry.is_dir()]
    except OSError:
        return []
    return sorted((int(found[1]) for found in names if found), reverse=True)


def read(root: Path, step: int) -> Checkpoint:
    """The checkpoint of a step. Raises Damaged, saying why, where it isn't complete. Loads no tensor."""
    folder = root / name_of(step)
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        files = {str(name): int(size) for name, size in about["files"].items()}
        said = int(about["step"])
    except FileNotFoundError as error:
        raise Damaged(f"it has no {ABOUT}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Damaged(f"{ABOUT} cannot be read") from error
    if said != step:
        raise Damaged(f"{ABOUT} is of step {said}")
    for name in FILES:
        if name not in files:
            raise Damaged(f"{ABOUT} names no {name}")
    for name, size in files.items():
        try:
            there = (folder / Path(name).name).stat().st_size
        except (OSError, ValueError):  # ValueError: a name with a NUL
            raise Damaged(f"{name} is missing") from None
        if there != size:
            raise Damaged(f"{name} has {there} of {size} bytes")
    return Checkpoint(folder, step, about)


def complete(root: Path) -> list[Checkpoint]:
    """All complete ones, newest first."""
    found = []
    for step in steps(root):
        try:
            found.append(read(root, step))
        except Damaged:
            continue
    return found


def write(root: Path, step: int, contents: Mapping[str, Any], about: Mapping[str, Any]) -> Checkpoint:
    """A new checkpoint from `contents` (FILES → what to save), whole or not at all. Raises OSError or RuntimeError.

    One of the same step that is there already is replaced.
    """
    root.mkdir(parents=True, exist_ok=True)
    unfinished = root / f"{UNFINISHED}{name_of(step)}-{socket.gethostname()}-{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        sizes = {name: _write_tensors(unfinished / name, content) for name, content in contents.items()}
        whole = {**about, "step": step, "files": sizes, "time": time.time()}
        _write_text(unfinished / ABOUT, json.dumps(whole))
        _move_into_place(unfinished, root / name_of(step))
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)  # it may be what fills the disk
        raise
    return Checkpoint(root / name_of(step), step, whole)


def mark_final(root: Path, step: int, run: str) -> None:
    """Note that the run's training came to its end with this checkpoint. Raises OSError and Damaged."""
    found = read(root, step)
    unfinished = found.folder / f"{UNFINISHED}{ABOUT}"
    _write_text(unfinished, json.dumps({**found.about, "final": True, "run": run}))
    unfinished.replace(found.folder / ABOUT)


def prune(root: Path, kept: int = KEPT) -> None:
    """Clear away all but the newest complete ones, what is broken and older than them, and old leftovers."""
    there = complete(root)
    if len(there) >= kept:
        oldest = there[kept - 1].step
        for step in steps(root):
            if step < oldest:
                shutil.rmtree(root / name_of(step), ignore_errors=True)
    _clear_leftovers(root)


# What a rank or a server keeps of its own


def part_path(root: Path, who: str, step: int | None) -> Path:
    """None: the newest, of whatever step."""
    return root / PARTS / who / f"{NEWEST if step is None else name_of(step)}.pt"


def write_part(root: Path, who: str, step: int | None, state: Any) -> None:
    """Put away what `who` (`worker-1.0`, `ps-0`) needs to go on after `step`. Raises OSError or RuntimeError."""
    path = part_path(root, who, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{UNFINISHED}{path.name}-{os.getpid()}")
    try:
        _write_tensors(unfinished, state)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def keep_newest_part(root: Path, who: str, step: int) -> None:
    """The newest is the part of `step` too, which needs no second copy. Raises OSError."""
    path = part_path(root, who, step)
    unfinished = path.with_name(f"{UNFINISHED}{path.name}-{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    try:
        os.link(part_path(root, who, None), unfinished)
    except OSError:  # a file system without hard links
        shutil.copyfile(part_path(root, who, None), unfinished)
    unfinished.replace(path)


def read_part(root: Path, who: str, step: int | None) -> Any:
    """What write_part() has put away; None where there is nothing that can be read, which a line says."""
    path = part_path(root, who, step)
    try:
        return load(path) if path.exists() else None
    except Damaged as damage:
        print(f"torchyard: the part of {who} in {path.parent} is passed over: {damage}.", flush=True)
        return None


def part_steps(root: Path, who: str) -> list[int]:
    """The steps that `who` has a part of, newest first."""
    found = [_NAME.fullmatch(path.stem) for path in (root / PARTS / who).glob("step-*.pt")]
    return sorted((int(one[1]) for one in found if one), reverse=True)


def prune_parts(root: Path, who: str, keep: Iterable[int]) -> None:
    """Clear away the parts of all other steps than these."""
    kept = set(keep)
    for step in part_steps(root, who):
        if step not in kept:
            part_path(root, who, step).unlink(missing_ok=True)
    _clear_leftovers(root / PARTS / who)


def _clear_leftovers(folder: Path) -> None:
    for leftover in folder.glob(f"{UNFINISHED}*"):
        if time.time() - _last_written(leftover) > LEFTOVER_S:
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)


def _write_tensors(path: Path, content: Any) -> int:
    import torch

    with path.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())  # renamed before the bytes are down, it could be complete and empty after a power cut
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
        return time.time()  # its writer is at work
