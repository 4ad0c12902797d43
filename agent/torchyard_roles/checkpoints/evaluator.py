"""Iteration over new checkpoints for an evaluator. The evaluator only reads files, so training never waits for it."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from torchyard_roles.checkpoints import checkpoint_files
from torchyard_roles.checkpoints.fingerprint import entries, first_other_entry
from torchyard_roles.checkpoints.saver import log
from torchyard_roles.coordination.graceful_stop import ECHO_S
from torchyard_roles.errors import UsageProblem

LOOK_S = 1.0
"""Interval in seconds between two scans of the folder for new checkpoints."""
SLICE_S = 0.1
"""Interval in seconds at which a waiting evaluator checks for SIGTERM."""
LAST_S = 5.0
"""Time in seconds after SIGTERM for which the evaluator waits for the last checkpoint of a stopping chief."""


def evaluations(
    root: Path, model: torch.nn.Module, run: str, look_s: float = LOOK_S, last_s: float = LAST_S
) -> Iterator[int]:
    """Loads each new complete checkpoint into `model` in order, and yields its step.

    Checkpoints that cannot be read, or that are deleted before they are loaded, are skipped. A step that is saved again
    as the end of `run` counts as a new checkpoint. The iteration ends after the checkpoint that is marked as the end of
    `run`. After SIGTERM only the newest of several new checkpoints is evaluated. Since a stopped chief may still be
    saving, the iteration continues for at least `last_s` seconds after SIGTERM, until a scan of the folder finds no new
    checkpoint.

    Raises:
        UsageProblem: A checkpoint belongs to another model.
    """
    done = -1
    saved: Any = None
    with _StopSignal() as stop:
        while True:
            # The signal is checked before the scan. Otherwise a checkpoint that was saved before the signal could be
            # missed.
            ending = stop.since() >= 0
            there = checkpoint_files.complete(root)
            fresh = [
                one
                for one in reversed(there)
                if one.step > done or (one.step == done and _ends(one, run) and one.about.get("time") != saved)
            ]
            for one in fresh[-1:] if ending else fresh:
                done, saved = one.step, one.about.get("time")
                if _load(one, model):
                    yield one.step
                if stop.since() >= 0:
                    break
            if any(_ends(one, run) for one in there if one.step <= done):
                return
            if ending and not fresh and stop.since() >= last_s:
                return
            if not fresh:
                stop.wait(look_s)


def _ends(one: checkpoint_files.Checkpoint, run: str) -> bool:
    return bool(one.about.get("final")) and one.about.get("run") == run


def _load(one: checkpoint_files.Checkpoint, model: torch.nn.Module) -> bool:
    try:
        state = one.load("model.pt")
    except checkpoint_files.Damaged as damage:
        if one.folder.exists():  # A checkpoint that was deleted after the scan is skipped without a message.
            log(f"the checkpoint {one.folder} is ignored: {damage}.")
        return False
    difference = first_other_entry(one.about.get("fingerprint") or {}, entries(model))
    if difference:
        raise UsageProblem(
            f"The checkpoint {one.folder} belongs to another model: {difference}.",
            "Give evaluations() the model that the trainers give distribute().",
        )
    model.load_state_dict(state)
    return True


class _StopSignal:
    """A context manager that records SIGTERM if the main thread enters it and the script has no handler.

    A second SIGTERM more than ECHO_S later ends the process. The handler remains installed after the iteration, because
    the keeper may send SIGTERM to an evaluator that is already exiting by itself, and this signal must not change the
    exit code. After an exception, the earlier handler is restored.
    """

    def __init__(self) -> None:
        # threading.Event would be unsafe: if the signal interrupts wait(), set() in the handler could wait forever for
        # the lock that wait() holds.
        self._at: float | None = None
        self._earlier: Any = None

    def __enter__(self) -> _StopSignal:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._earlier = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._earlier is not None:
            # At exit, Python removes its signal handlers long before torch is finalized, but an ignored signal remains
            # ignored.
            atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
        elif kind is not None and self._earlier is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._earlier)

    def since(self) -> float:
        """Returns the time in seconds since SIGTERM, or -1 if SIGTERM was not received."""
        return time.monotonic() - self._at if self._at is not None else -1.0

    def wait(self, seconds: float) -> None:
        """Sleeps for `seconds`, or until shortly after SIGTERM is received."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, SLICE_S))
            if self._at is not None:
                return

    def _on_signal(self, number: int, _: Any) -> None:
        if self._at is None:
            self._at = time.monotonic()
        elif self.since() > ECHO_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
