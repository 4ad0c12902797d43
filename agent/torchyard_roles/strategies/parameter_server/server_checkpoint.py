"""What one server keeps on disk: its newest part, and those of the chief's complete checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchyard_roles.checkpoints import files

PAIR = ".pair-"
"""Before the number of a pair, in the names of all parts but the first pair's."""


def name_of(server: str, pair: int) -> str:
    """What a server's part of a pair is called among the parts."""
    return f"{server}{PAIR}{pair}" if pair else server


def numbers(folder: Path, server: str) -> list[int]:
    """The pairs that a server has kept parts of."""
    beside = [path.name.rpartition(PAIR)[2] for path in (folder / files.PARTS).glob(f"{server}{PAIR}*")]
    found = [0, *(int(number) for number in beside if number.isdecimal())]
    return sorted(each for each in found if (folder / files.PARTS / name_of(server, each)).is_dir())


class ServerCheckpoint:
    """Server `index` of `count`, whose part is called `name`, in the run with the ID `run`; `folder` is where
    checkpoints are.

    Any thread may write.
    """

    def __init__(self, folder: Path, name: str, index: int, count: int, run: str) -> None:
        self._folder = folder
        self._name = name
        self._place = [index, count]
        self._run = run
        self._writing = threading.Lock()

    def write(self, state: Callable[[], dict[str, Any]], step: int | None, kept: Sequence[int]) -> None:
        """For a checkpoint of `step`, or (None) for the server alone. Raises OSError.

        `state` is called once nobody else writes: what was copied sooner could be older than what is there by then.

        `kept`: the steps of the chief's complete checkpoints, whose parts stay. Only the chief knows them: were the
        newest parts kept instead, those of the last complete checkpoint would go where its own save fails often
        enough.
        """
        with self._writing:
            whole = {**state(), "place": self._place, "run": self._run}
            try:
                files.write_part(self._folder, self._name, None, whole)
            except RuntimeError as error:  # torch's writer wraps the system's own error in one of its own
                raise OSError((str(error).splitlines() or ["torch cannot write it"])[0]) from error
            if step is not None:
                files.keep_newest_part(self._folder, self._name, step)
                newest = files.part_steps(self._folder, self._name)[: files.KEPT]
                files.prune_parts(self._folder, self._name, {step, *kept} if kept else newest)

    def read(self, step: int | None) -> dict[str, Any] | None:
        """What write() has put away for a step, whichever run it was, or last in this run; None where there is none of
        this server."""
        saved = files.read_part(self._folder, self._name, step)
        if not isinstance(saved, dict) or saved.get("place") != self._place:
            return None
        if step is None and saved.get("run") != self._run:
            # Its goodbyes and generations are those of trainers that have ended, and its parameters may be older or
            # newer than the checkpoint that all have gone on from.
            print(
                f"torchyard: {self._name} passes over its newest part, which is another run's: the chief brings the "
                "parameters that it has.",
                flush=True,
            )
            return None
        return saved
