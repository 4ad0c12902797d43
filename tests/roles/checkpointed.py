"""Starts gangs of real trainers that save checkpoints, and reads the losses that they record."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.roles.join_stores import KEY, Served
from tests.roles.processes import DEADLINE_S, Start, free_port, trainer_environment, wait_for
from torchyard_agent.protocol.rank_environment import STOP_VARIABLE

PROGRAM = Path(__file__).parent / "programs" / "resuming" / "resumable.py"


class Gang:
    """`size` trainers that run a program in `folder`, by default resumable.py, with a join store if one is given."""

    def __init__(self, start: Start, folder: Path, size: int, store: Served | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._start = start
        self.folder = folder
        self.size = size
        self._store = store
        self.generation = 0
        self.processes: list[subprocess.Popen[str]] = []
        self.stop_file: Path | None = None
        """The file that a keeper creates before it stops the run; if None, each SIGTERM is a stop."""

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def environment(self, rank: int, port: int, every_s: float) -> dict[str, str]:
        options = {"kind": "all_reduce", "checkpoint_every_s": every_s}
        more = {
            "TORCHYARD_CHECKPOINTS": str(self.checkpoints),
            "TORCHYARD_OPTIONS": json.dumps(options),
            "TORCHYARD_STRATEGY": "all_reduce",
            "TORCHYARD_GENERATION": str(self.generation),
            **({STOP_VARIABLE: str(self.stop_file)} if self.stop_file is not None else {}),
        }
        if self._store is not None:
            more |= {"TORCHYARD_STORE": self._store.address, "TORCHYARD_KEY": KEY.hex()}
        return trainer_environment(rank, self.size, port, **more)

    def launch(self, *arguments: object, every_s: float = 0.2, program: Path = PROGRAM) -> None:
        port = free_port()
        self.processes = [
            self._start(program, self.folder, *map(str, arguments), environment=self.environment(rank, port, every_s))
            for rank in range(self.size)
        ]

    def kill(self) -> list[str]:
        """Kills all trainers at once, as the loss of their host would; returns the output of each."""
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in self.processes]
        self.generation += 1
        return outputs

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)

    def ended(self) -> list[tuple[int, str]]:
        """Waits until all trainers have exited; returns the exit code and the output of each rank."""
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in self.processes]
        self.generation += 1
        return [(process.returncode, output) for process, output in zip(self.processes, outputs, strict=True)]

    def losses(self, rank: int = 0) -> dict[int, str]:
        """Returns the last complete line about each step, by step and without the step's number."""
        log = self.folder / f"losses.{rank}"
        lines = log.read_text().splitlines() if log.exists() else []
        return {int(line.split()[0]): line.partition(" ")[2] for line in lines if line.count(" ") == 3}

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        wait_for(condition, what, *self.processes)
