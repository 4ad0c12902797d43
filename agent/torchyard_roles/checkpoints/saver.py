"""Saves checkpoints. The state is copied at a step boundary and then written by a background thread.

The last checkpoint is written by the calling thread. All ranks of a group save their parts of the same step. The first
rank announces the step through the join store, far enough ahead that all ranks normally receive the announcement before
they reach the step. A rank that receives the announcement too late saves no part. The ranks of a sharded model need no
announcement, because they agree on the step through their collective calls.
"""

from __future__ import annotations

import errno
import json
import math
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchyard_roles.checkpoints import checkpoint_files, group_broadcast, sharded_files, training_state
from torchyard_roles.checkpoints.training_state import copied, on_cpu
from torchyard_roles.environment import Environment
from torchyard_roles.errors import RolesError, UsageProblem

if TYPE_CHECKING:
    from torchyard_roles.checkpoints.sharded_saving import ShardedSaving
    from torchyard_roles.coordination.join_store_client import JoinStore
    from torchyard_roles.data_loader import ShareLoader
    from torchyard_roles.strategies.strategy import Strategy

AHEAD_S = 0.3
"""Time in seconds by which a save is announced ahead of its step, so that all ranks normally receive it in time."""
SHARED = "shared"
"""Suffix of the folder in which all ranks write their parts of a sharded model."""
PARTS_WAIT_S = 10.0
"""Longest time in seconds to wait for the parts of other ranks.

Without the part of each rank, a resumed run does not give bitwise the same results as an uninterrupted one.
"""


class _NotSaved(OSError):
    """Raised when a sharded checkpoint cannot be completed."""


def log(message: str) -> None:
    print(f"torchyard: {message}", flush=True)


class CheckpointSaver:
    """Saves one trainer's share of each checkpoint: model and optimizer on the chief, and a part on every rank."""

    def __init__(
        self,
        root: Path,
        environment: Environment,
        strategy: Strategy,
        device: torch.device,
        store: JoinStore | None,
        size: int,
    ) -> None:
        """Creates a saver for one of `size` processes that save together."""
        self.is_group = environment.group > 0 and strategy.sharded_saving is not None
        """Whether this process is in a sharded group without the chief, which saves its own whole checkpoints."""
        self.root = root / f"group-{environment.group}" if self.is_group else root
        self.who = f"{environment.replica or environment.name}.{environment.local_rank}"
        self.automatic = environment.is_torchyard
        self.stateful: dict[str, Any] = {}
        self.models: dict[str, torch.nn.Module] = {}
        """The models of all distribute() calls after the first."""
        self.loaders: list[ShareLoader] = []
        self.active = 0
        """The index of the loader from which a batch was last requested."""
        self._strategy = strategy
        self._kind = environment.strategy
        self._run = environment.run_id
        self._device = device
        self._store = store if size > 1 else None
        self._rank = environment.group_rank if size > 1 else 0
        self._size = size
        self._rank_in_run = environment.rank
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
        """Whether training continues after the newest save. Used in messages."""
        self._later_part: Callable[[], None] | None = None
        """A function that writes this rank's part of a sharded save."""
        self._writer: threading.Thread | None = None
        self._written = True

    @property
    def _is_chief(self) -> bool:
        """Whether this rank writes the files that complete a checkpoint in `root`."""
        if self.is_group:
            return self._rank == 0
        return self._rank_in_run == self._strategy.first_rank

    @property
    def _leads(self) -> bool:
        """Whether this process decides when its group saves."""
        return self._is_chief if self._strategy.members is not None else self._rank == 0

    def start(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, fingerprint: dict[str, Any], step: int
    ) -> None:
        """Sets the objects to save. `step` is considered already saved."""
        self._model, self._optimizer, self._fingerprint = model, optimizer, fingerprint
        self._saved = step
        self._saved_at = time.monotonic()
        self._began = (time.monotonic(), step)
        if self._store is not None:
            self._store.watch(f"save/{self._keys}", self._on_announcement)

    def ask(self) -> None:
        """Requests a checkpoint at the next step at which all ranks can save."""
        self.automatic = self._asked = True

    def at_boundary(self, step: int) -> None:
        """Saves a checkpoint if one was announced for `step`, or announces a checkpoint if one is due."""
        if self._strategy.sharded_saving is not None:
            self._at_sharded_boundary(step)
            return
        announced = self._announced
        if announced is not None and step >= announced["step"]:
            self._announced = None
            if step == announced["step"]:
                self.save(step, kept=announced["kept"])
            else:  # The announcement came too late, so this rank saves no part. The chief must not wait for it.
                self._strategy.flush(announced["step"])
                self._mark(announced["step"])
        elif announced is None and self._leads and self._is_due(step):
            self._asked = False
            self._saved_at = time.monotonic()
            self._announce(step)

    def _at_sharded_boundary(self, step: int) -> None:
        """Saves a sharded model if all ranks save at this step boundary.

        The first rank also requests a save if one is due.
        """
        if self._rank == 0 and self._is_due(step):
            self._asked = False
            self._saved_at = time.monotonic()
            self._strategy.want_save()
        if self._strategy.is_save_due(step):
            self.save(step, kept=[one.step for one in checkpoint_files.complete(self.root)[: checkpoint_files.KEPT]])

    def save(
        self, step: int, *, kept: Sequence[int] = (), last: bool = False, final: bool = False, anew: bool = False
    ) -> bool:
        """Saves a checkpoint of the current state.

        Args:
            kept: The steps whose parts are kept.
            last: Whether to wait until the checkpoint is written. If not, a thread writes it.
            final: Whether to mark the checkpoint as the end of training.
            anew: Whether to save the step again if it is already saved, because the model has changed since then.

        Returns:
            False if the save failed, which the chief logs. wait() returns the result of a save by a thread.

        Raises:
            RolesError: An exchange in progress failed. Not raised if `last` is True.
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
        sharded = self._strategy.sharded_saving
        if not self._is_chief and sharded is None:
            return True
        try:
            if not self.is_group:
                self._strategy.save(self.root, step)
            if sharded is not None:
                write = self._begin_sharded(sharded, step, self._about(final=final))
            else:
                contents, about = self.contents(), self._about(final=final)
        except (RolesError, OSError) as error:
            self._failed(step, error)
            return False
        if sharded is None:

            def write() -> None:
                self._write(step, contents, about)

        if last:  # No thread can be started while the interpreter exits.
            write()
            return self._written
        if sharded is not None:
            sharded.defer(write)
            return True
        self._writer = threading.Thread(target=write, name="torchyard-checkpoint")
        self._writer.start()
        return True

    def _about(self, *, final: bool) -> dict[str, Any]:
        loader = self.loaders[self.active] if self.loaders else None
        return {
            "epoch": loader.epochs_done if loader is not None else 0,
            "final": final,
            "run": self._run,
            "fingerprint": self._fingerprint,
            "strategy": self._kind,
        }

    def _begin_sharded(self, sharded: ShardedSaving, step: int, about: dict[str, Any]) -> Callable[[], None]:
        """Copies this rank's part of a sharded model, and returns a function that writes the part.

        All ranks must call this method and the returned function.

        Raises:
            RolesError, OSError: This rank's part cannot be saved. This rank makes no further collective calls for this
                save.
            _NotSaved: Another rank's part cannot be saved.
        """
        assert self._model is not None
        problem: Exception | None = None
        tensors: dict[str, Any] = {}
        contents: dict[str, Any] = {}
        folder = checkpoint_files.unfinished_folder(self.root, step, SHARED)
        try:
            tensors, rest = sharded.copy(self._model, self._optimizer)
            contents = self._contents_beside(rest)
            if self._is_chief:
                checkpoint_files.begin(self.root, step, SHARED)
        except (RolesError, OSError) as error:
            problem = error
        if not sharded.agree(problem is None):
            raise problem or _NotSaved("another rank could not copy its state")
        return lambda: self._write_sharded(sharded, step, folder, tensors, contents, about)

    def _write_sharded(
        self,
        sharded: ShardedSaving,
        step: int,
        folder: Path,
        tensors: dict[str, Any],
        contents: dict[str, Any],
        about: dict[str, Any],
    ) -> None:
        self._written = False
        try:
            part, self._later_part = self._later_part, None
            if part is not None:
                part()
            sharded.write(folder, tensors)
            if self._is_chief:
                self._wait_for_parts(step)
                missing = sharded_files.missing_files(folder)
                if missing:
                    raise _NotSaved(
                        f"{missing[0]} of another host is not there, so program.checkpoint_dir is not a folder that "
                        "all hosts share"
                    )
                checkpoint_files.complete_with(self.root, step, folder, contents, about)
                checkpoint_files.prune(self.root)
            self._written = True
        except BaseException as error:  # A failed save must not end training. DCP raises a BaseException.
            if not isinstance(error, Exception) and not hasattr(error, "failures"):
                raise
            self._failed(step, error)
            if self._is_chief:  # Removing the folder frees the space if the disk is full.
                shutil.rmtree(folder, ignore_errors=True)

    def wait(self) -> bool:
        """Waits until the writing thread has finished, and returns False if the last checkpoint could not be written.

        The result is also True if only a part could not be written.
        """
        if self._strategy.sharded_saving is not None:
            self._strategy.sharded_saving.wait()
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        return self._written

    def _settle(self, step: int, *, final: bool) -> bool:
        """Waits until the checkpoint of `step` is written, and marks it as the end of the run if `final` is true."""
        written = self.wait()
        if written and final and self._is_chief and step > 0:
            try:
                checkpoint_files.mark_final(self.root, step, self._run)
            except (OSError, checkpoint_files.Damaged) as error:
                self._report(step, error)
        return written

    def _is_due(self, step: int) -> bool:
        if step == self._saved or not (self._asked or self.automatic):
            return False
        sharded = self._strategy.sharded_saving
        if (self._writer is not None and self._writer.is_alive()) or (sharded is not None and sharded.is_busy):
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
        if not self._leads and announced["step"] > self._saved:
            self._announced = announced

    def _kept(self) -> list[int]:
        """Returns the steps whose parts must not be deleted.

        These are the steps of complete checkpoints or, in a group without the chief, of the newest parts.
        """
        if self._is_chief:
            return [one.step for one in checkpoint_files.complete(self.root)[: checkpoint_files.KEPT]]
        return checkpoint_files.part_steps(self.root, self.who)[: checkpoint_files.KEPT]

    def contents(self, *, copy: bool = True) -> dict[str, Any]:
        """Returns the contents of a checkpoint, by file name. Raises UsageProblem if a value cannot be saved.

        Args:
            copy: Whether tensors on the CPU are copied, which is needed if training continues before they are written.
        """
        assert self._model is not None
        assert self._optimizer is not None
        extra = {name: each.state_dict() for name, each in self.stateful.items()}
        models = {name: each.state_dict() for name, each in self.models.items()}
        return {
            "model.pt": on_cpu(self._model.state_dict(), "the model's state", copy=copy),
            "optimizer.pt": on_cpu(self._optimizer.state_dict(), "the optimizer's state", copy=copy),
            "extra.pt": on_cpu(
                {"stateful": extra, "models": models, **self._position()}, "what checkpoint() was given", copy=copy
            ),
        }

    def _contents_beside(self, optimizer: dict[str, Any]) -> dict[str, Any]:
        """Returns the contents of those files of a sharded checkpoint that only the chief writes."""
        extra = {name: each.state_dict() for name, each in self.stateful.items()}
        return {
            "optimizer.pt": copied(optimizer, "the optimizer's state"),
            "extra.pt": copied({"stateful": extra, "models": {}, **self._position()}, "what checkpoint() was given"),
        }

    def _position(self) -> dict[str, Any]:
        return {"loaders": [loader.position() for loader in self.loaders], "active": self.active}

    def _save_part(self, step: int, kept: Sequence[int], *, at_once: bool) -> None:
        state = {"step": step, "random": training_state.random_state(self._device), **self._position()}
        if self._is_chief or ((self._in_chiefs_group or self.is_group) and group_broadcast.is_connected(self._size)):
            if self._strategy.sharded_saving is not None and not at_once:
                self._later_part = partial(self._write_part, step, state, kept)
            else:
                self._write_part(step, state, kept)
            return
        assert self._optimizer is not None
        try:
            state |= training_state.of_script(self.stateful, self._optimizer)
        except UsageProblem as problem:  # An object of the script has a value that cannot be saved.
            log(f"{self.who} keeps less of step {step} than it needs to resume alone: {problem.message}")
        if at_once:
            self._write_part(step, state, kept)
        else:  # A thread writes the part, because it may be as large as a model.
            self._writer = threading.Thread(
                target=self._write_part, args=(step, state, kept), name="torchyard-checkpoint"
            )
            self._writer.start()

    def _write_part(self, step: int, state: dict[str, Any], kept: Sequence[int]) -> None:
        try:
            checkpoint_files.write_part(self.root, self.who, step, state)
            if kept:
                checkpoint_files.prune_parts(self.root, self.who, {step, *kept})
        except (OSError, RuntimeError) as error:
            log(f"{self.who} could not save its own part of step {step}: {_why(error)}.")
        self._mark(step)

    def _mark(self, step: int) -> None:
        if self._store is not None:
            with suppress(RolesError):  # If the value cannot be set, the chief waits longer for this rank's part.
                self._store.set(f"part/{self._keys}/{self._rank}", str(step).encode())

    def _write(self, step: int, contents: dict[str, Any], about: dict[str, Any]) -> None:
        self._wait_for_parts(step)
        self._written = False
        try:
            checkpoint_files.write(self.root, step, contents, about)
            checkpoint_files.prune(self.root)
            self._written = True
        except Exception as error:  # A failed save must not end training.
            self._failed(step, error)

    def _wait_for_parts(self, step: int) -> None:
        if self._store is None:
            return
        members = self._strategy.members
        ranks = range(self._size) if members is None else members.ranks
        missing = set(ranks) - {self._rank}
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

    def _failed(self, step: int, error: BaseException) -> None:
        """Records a failed save, so that the same step may be saved again. The chief also logs the failure."""
        self._written = False
        if self._saved == step:
            self._saved = -1
        if self._is_chief:
            self._report(step, error)

    def _report(self, step: int, error: BaseException) -> None:
        older = len(checkpoint_files.complete(self.root))
        left = f"The {older} before it stay" if older else "There is none before it"
        outcome = "; training continues" if self._continues else ""
        log(f"the checkpoint of step {step} could not be saved in {self.root}: {_why(error)}. {left}{outcome}.")


def _why(error: BaseException) -> str:
    failures = getattr(error, "failures", None)  # DCP collects the errors of all ranks in one exception.
    cause: BaseException | None = next(iter(failures.values()))[0] if failures else error
    error = cause or error
    while cause is not None:  # torch converts an OSError to an error of its own.
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
            return "the disk is full"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
