"""The checkpoint files of one server: its newest state, and its parts of the chief's complete checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchyard_roles.checkpoints import checkpoint_files

PAIR = ".pair-"
"""Separator between a server's name and the number of a pair. The name for the first pair has no number."""


def saves_own_state(strategy: str) -> bool:
    """Returns whether a server saves its own state at intervals, independently of the chief's checkpoints.

    Under downpour a lost server restarts alone, from the state that it saved itself. Under sandblaster the trainers
    restart too, and all of them resume from the chief's newest complete checkpoint.
    """
    return strategy == "downpour"


def name_of(server: str, pair: int) -> str:
    """Returns the name under which a server saves its state of a pair."""
    return f"{server}{PAIR}{pair}" if pair else server


def numbers(folder: Path, server: str) -> list[int]:
    """Returns the numbers of the pairs whose state a server has saved."""
    beside = [path.name.rpartition(PAIR)[2] for path in (folder / checkpoint_files.PARTS).glob(f"{server}{PAIR}*")]
    found = [0, *(int(number) for number in beside if number.isdecimal())]
    return sorted(each for each in found if (folder / checkpoint_files.PARTS / name_of(server, each)).is_dir())


class ServerCheckpoint:
    """The checkpoint files of one pair on server `index` of `count`. All methods are thread-safe.

    Args:
        folder: The checkpoint folder.
        name: The name of the part.
        run: The ID of the run.
    """

    def __init__(self, folder: Path, name: str, index: int, count: int, run: str) -> None:
        self._folder = folder
        self._name = name
        self._place = [index, count]
        self._run = run
        self._writing = threading.Lock()

    def write(self, state: Callable[[], dict[str, Any]], step: int | None, kept: Sequence[int]) -> None:
        """Saves this server's part of a checkpoint. Raises OSError if it cannot be written.

        Args:
            state: A function that returns the state. It is called with the lock held, so an older state never replaces
                a newer one.
            step: The step of the checkpoint, or None to save only the newest state for this server's restart.
            kept: The steps of the chief's complete checkpoints, whose parts are kept. If empty, the newest parts are
                kept. If several saves of the chief have failed, the parts of its last complete checkpoint may then be
                deleted.
        """
        with self._writing:
            whole = {**state(), "place": self._place, "run": self._run}
            try:
                checkpoint_files.write_part(self._folder, self._name, None, whole)
            except RuntimeError as error:  # torch wraps OSError in an error of its own.
                raise OSError((str(error).splitlines() or ["torch cannot write it"])[0]) from error
            if step is not None:
                checkpoint_files.keep_newest_part(self._folder, self._name, step)
                newest = checkpoint_files.part_steps(self._folder, self._name)[: checkpoint_files.KEPT]
                checkpoint_files.prune_parts(self._folder, self._name, {step, *kept} if kept else newest)

    def read(self, step: int | None) -> dict[str, Any] | None:
        """Returns this server's part of the checkpoint of `step`, saved by any run; by default, this run's newest part.

        Returns None if there is no such part.
        """
        saved = checkpoint_files.read_part(self._folder, self._name, step)
        if not isinstance(saved, dict) or saved.get("place") != self._place:
            return None
        if step is None and saved.get("run") != self._run:
            # Another run's newest part is not used: it contains generations of trainers that have ended, and its
            # parameters may differ from those in the checkpoint from which this run resumes.
            print(
                f"torchyard: {self._name} ignores its newest part, which belongs to another run: the chief sends the "
                "parameters that it has.",
                flush=True,
            )
            return None
        return saved
