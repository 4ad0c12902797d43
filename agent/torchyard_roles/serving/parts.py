"""A server's shard on disk: one file a saved step, and the newest of all for a server that is started again alone.

    <checkpoints>/parts/ps-0/step-000000001200.pt     saved when the chief says so, with its checkpoint of that step
    <checkpoints>/parts/ps-0/newest.pt                the same, or a later one of the server's own

Written to a temporary name and renamed, so that nobody ever reads half a file; read with `weights_only`.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

KEPT = 3
"""As many steps as there are checkpoints of the chief's; where it names none."""
NEWEST = "newest.pt"


def save(folder: Path, replica: str, step: int | None, state: dict[str, Any], kept: Sequence[int] = ()) -> None:
    """Write a shard: for a checkpoint of `step`, or (None) for this server alone. Raises OSError where it cannot.

    `kept`: the steps of the chief's complete checkpoints, whose parts stay. Only the chief knows them: were the newest
    parts kept instead, those of the last complete checkpoint would go where its own save fails often enough.
    """
    place = folder / "parts" / replica
    place.mkdir(parents=True, exist_ok=True)
    unfinished = place / f".unfinished-{os.getpid()}"
    link = place / f".link-{os.getpid()}"
    try:
        with unfinished.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        if step is not None:
            link.unlink(missing_ok=True)
            try:
                os.link(unfinished, link)
            except OSError:  # a file system without hard links
                link.write_bytes(unfinished.read_bytes())
            link.replace(place / name_of(step))
        unfinished.replace(place / NEWEST)
    finally:
        unfinished.unlink(missing_ok=True)
        link.unlink(missing_ok=True)
    if step is None:
        return
    there = sorted(place.glob("step-*.pt"))
    staying = {name_of(each) for each in (step, *kept)} if kept else {path.name for path in there[-KEPT:]}
    for path in there:
        if path.name not in staying:
            path.unlink(missing_ok=True)


def load(folder: Path, replica: str, step: int | None) -> dict[str, Any] | None:
    """The shard of a checkpoint, or (None) the server's newest. None where there is none, or none that loads."""
    path = folder / "parts" / replica / (NEWEST if step is None else name_of(step))
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, EOFError, pickle.UnpicklingError) as error:
        print(f"torchyard: {path} cannot be read and is passed over: {error}", flush=True)
        return None
    return state if isinstance(state, dict) else None


def name_of(step: int) -> str:
    return f"step-{step:012d}.pt"
