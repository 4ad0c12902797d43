"""Saving of checkpoints: the state is copied at a step boundary and written in the background.

All ranks of a group save their parts of the same step. The first rank announces the step through the join store, far
enough ahead that all ranks receive the announcement before they reach the step. A rank that receives it too late saves
no part.
"""

from __future__ import annotations

import errno
import json
import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchyard_roles.checkpoints import files, group_broadcast, training_state
from torchyard_roles.checkpoints.training_state import copied
from torchyard_roles.environment import Environment
from torchyard_roles.errors import RolesError, UsageProblem

if TYPE_CHECKING:
    from torchyard_roles.coordination.join_store_client import JoinStore
    from torchyard_roles.data_loader import ShareLoader
    from torchyard_roles.strategies.base import Strategy

AHEAD_S = 0.3
"""Time for the announcement of a save to reach all ranks."""
PARTS_WAIT_S = 10.0
"""Longest wait for the parts of other ranks. Without a part the resumed run is not bitwise equal."""


def log(message: str) -> None:
    print(f"torchyard: {message}", flush=True)


class CheckpointSaver:
    """The saver of one trainer's checkpoints: model and optimizer on the chief, and a part on every rank."""

    def __init__(
        self,
        root: Path,
        environment: Environment,
        strategy: Strategy,
        device: torch.device,
        store: JoinStore | None,
        size: int,
    ) -> None:
        """Create a saver for one of `size` processes that save together."""
        self.root = root
        self.who = f"{environment.replica or environment.name}.{environment.local_rank}"
        self.automatic = environment.is_torchyard
        self.stateful: dict[str, Any] = {}
        self.models: dict[str, torch.nn.Module] = {}
        """The models of further distribute() calls."""
        self.loaders: list[ShareLoader] = []
        self.active = 0
        """The number of the loader that yielded the last batch."""
        self._strategy = strategy
        self._kind = environment.strategy
        self._run = environment.run_id
        self._device = device
        self._store = store if size > 1 else None
        self._rank = environment.group_rank if size > 1 else 0
        self._size = size
        self._is_chief = environment.trains and environment.rank == 0
        self._in_chiefs_group = environment.group == 0
        self._every_s = environment.options.checkpoint_every_s
        self._keys = f"{environment.gang}/{environment.generation}"
        self._model: torch.nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._fingerprint: dict[str, Any] = {}
        self._announced: dict[str, Any] | None = None
        self._asked = False
        self._saved = -1
        self._saved_at = time.monotonic()
        self._began = (time.monotonic(), 0)
        self._continues = True
        """Whether training continues after the save, for messages."""
        self._writer: threading.Thread | None = None
        self._written = True

    def start(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, fingerprint: dict[str, Any], step: int
    ) -> None:
        """Set the objects to save. The state at `step` needs no checkpoint."""
        self._model, self._optimizer, self._fingerprint = model, optimizer, fingerprint
        self._saved = step
        self._saved_at = time.monotonic()
        self._began = (time.monotonic(), step)
        if self._store is not None:
            self._store.watch(f"save/{self._keys}", self._on_announcement)

    def ask(self) -> None:
        """Request a checkpoint at the next step that all ranks can save."""
        self.automatic = self._asked = True

    def at_boundary(self, step: int) -> None:
        """Save `step` if its save was announced, or announce a save that is due."""
        announced = self._announced
        if announced is not None and step >= announced["step"]:
            self._announced = None
            if step == announced["step"]:
                self.save(step, kept=announced["kept"])
            else:  # The announcement arrived too late; the chief must not wait for this rank's part.
                self._strategy.flush(announced["step"])
                self._mark(announced["step"])
        elif announced is None and self._rank == 0 and self._is_due(step):
            self._asked = False
            self._saved_at = time.monotonic()
            self._announce(step)

    def save(
        self, step: int, *, kept: Sequence[int] = (), last: bool = False, final: bool = False, anew: bool = False
    ) -> bool:
        """Save a checkpoint of the current state.

        Args:
            kept: Steps whose parts are not deleted.
            last: Whether to wait until the checkpoint is written; otherwise a thread writes it.
            final: Whether to mark the checkpoint as the end of training.
            anew: Whether to save a step again that has already been saved, since the model has changed.

        Returns:
            False if the save has failed, which is also logged.
        """
        if step == self._saved and not anew:
            return self._settle(step, final=final) if last else True
        self._saved = step
        self._saved_at = time.monotonic()
        self._continues = not last
        try:
            self._strategy.flush(step)
        except RolesError as error:
            if not last:
                raise
            self._failed(step, error)
            return False
        self.wait()
        self._save_part(step, kept, at_once=last)
        if not self._is_chief:
            return True
        try:
            self._strategy.save(self.root, step)
            contents = self._contents()
        except (RolesError, OSError) as error:
            self._failed(step, error)
            return False
        loader = self.loaders[self.active] if self.loaders else None
        about = {
            "epoch": loader.epochs_done if loader is not None else 0,
            "final": final,
            "run": self._run,
            "fingerprint": self._fingerprint,
            "strategy": self._kind,
        }
        if last:  # During the interpreter's exit, no threads can be started.
            self._write(step, contents, about)
            return self._written
        self._writer = threading.Thread(target=self._write, args=(step, contents, about), name="torchyard-checkpoint")
        self._writer.start()
        return True

    def wait(self) -> bool:
        """Wait for a save in the background, and return whether it succeeded."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        return self._written

    def _settle(self, step: int, *, final: bool) -> bool:
        """Wait until the existing checkpoint of `step` is written, and mark it if it is final."""
        written = self.wait()
        if written and final and self._is_chief and step > 0:
            try:
                files.mark_final(self.root, step, self._run)
            except (OSError, files.Damaged) as error:
                self._report(step, error)
        return written

    def _is_due(self, step: int) -> bool:
        if step == self._saved or not (self._asked or self.automatic):
            return False
        if self._writer is not None and self._writer.is_alive():
            return False
        return self._asked or time.monotonic() - self._saved_at >= self._every_s

    def _announce(self, step: int) -> None:
        kept = self._kept()
        if self._store is None:
            self.save(step, kept=kept)
            return
        began, first = self._began
        step_s = (time.monotonic() - began) / max(1, step - first)
        ahead = max(2, math.ceil(AHEAD_S / max(step_s, 1e-4)))
        announcement = {"step": step + ahead, "kept": kept}
        self._store.set(f"save/{self._keys}", json.dumps(announcement).encode())
        self._announced = announcement

    def _on_announcement(self, word: bytes) -> None:
        announced = json.loads(word)
        if self._rank and announced["step"] > self._saved:
            self._announced = announced

    def _kept(self) -> list[int]:
        """Return the steps whose parts are kept.

        These are the steps of complete checkpoints, or of the newest parts in a group without the chief.
        """
        if self._is_chief:
            return [one.step for one in files.complete(self.root)[: files.KEPT]]
        return files.part_steps(self.root, self.who)[: files.KEPT]

    def _contents(self) -> dict[str, Any]:
        assert self._model is not None
        assert self._optimizer is not None
        extra = {name: each.state_dict() for name, each in self.stateful.items()}
        models = {name: each.state_dict() for name, each in self.models.items()}
        return {
            "model.pt": copied(self._model.state_dict(), "the model's state"),
            "optimizer.pt": copied(self._optimizer.state_dict(), "the optimizer's state"),
            "extra.pt": copied(
                {"stateful": extra, "models": models, **self._position()}, "what checkpoint() was given"
            ),
        }

    def _position(self) -> dict[str, Any]:
        return {"loaders": [loader.position() for loader in self.loaders], "active": self.active}

    def _save_part(self, step: int, kept: Sequence[int], *, at_once: bool) -> None:
        state = {"step": step, "random": training_state.random_state(self._device), **self._position()}
        if self._is_chief or (self._in_chiefs_group and group_broadcast.is_connected(self._size)):
            self._write_part(step, state, kept)
            return
        assert self._optimizer is not None
        try:
            state |= training_state.of_script(self.stateful, self._optimizer)
        except UsageProblem as problem:  # The script's state has changed to a value that cannot be saved.
            log(f"{self.who} keeps less of step {step} than it needs to resume alone: {problem.message}")
        if at_once:
            self._write_part(step, state, kept)
        else:  # The part may be as large as a model, so a thread writes it.
            self._writer = threading.Thread(
                target=self._write_part, args=(step, state, kept), name="torchyard-checkpoint"
            )
            self._writer.start()

    def _write_part(self, step: int, state: dict[str, Any], kept: Sequence[int]) -> None:
        try:
            files.write_part(self.root, self.who, step, state)
            if kept:
                files.prune_parts(self.root, self.who, {step, *kept})
        except (OSError, RuntimeError) as error:
            log(f"{self.who} could not save its own part of step {step}: {_why(error)}.")
        self._mark(step)

    def _mark(self, step: int) -> None:
        if self._store is not None:
            with suppress(RolesError):  # Without this mark, the chief only waits longer.
                self._store.set(f"part/{self._keys}/{self._rank}", str(step).encode())

    def _write(self, step: int, contents: dict[str, Any], about: dict[str, Any]) -> None:
        self._wait_for_parts(step)
        self._written = False
        try:
            files.write(self.root, step, contents, about)
            files.prune(self.root)
            self._written = True
        except Exception as error:  # A failed save must not end training.
            self._failed(step, error)

    def _wait_for_parts(self, step: int) -> None:
        if self._store is None:
            return
        missing = set(range(1, self._size))
        deadline = time.monotonic() + PARTS_WAIT_S
        pause_s = 0.01
        try:
            while missing and time.monotonic() < deadline:
                for rank in sorted(missing):
                    word = self._store.try_get(f"part/{self._keys}/{rank}")
                    if word is not None and int(word) >= step:
                        missing.discard(rank)
                if missing:
                    time.sleep(pause_s)
                    pause_s = min(pause_s * 2, 0.5)
        except RolesError:
            return

    def _failed(self, step: int, error: Exception) -> None:
        """Log a failed save, and have the step saved again when training ends or stops."""
        self._written = False
        if self._saved == step:
            self._saved = -1
        self._report(step, error)

    def _report(self, step: int, error: Exception) -> None:
        older = len(files.complete(self.root))
        left = f"The {older} before it stay" if older else "There is none before it"
        outcome = "; training continues" if self._continues else ""
        log(f"the checkpoint of step {step} could not be saved in {self.root}: {_why(error)}. {left}{outcome}.")


def _why(error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None:  # torch wraps the error of the operating system.
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
            return "the disk is full"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
