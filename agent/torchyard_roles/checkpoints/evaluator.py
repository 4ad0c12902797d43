"""Iteration over new checkpoints for an evaluator, which only reads, so that training never waits for it."""

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

from torchyard_roles.checkpoints import files
from torchyard_roles.checkpoints.fingerprint import entries, first_other_entry
from torchyard_roles.checkpoints.saver import log
from torchyard_roles.coordination.graceful_stop import ECHO_S
from torchyard_roles.errors import UsageProblem

LOOK_S = 1.0
"""Interval in seconds between two scans of the folder."""
SLICE_S = 0.1
"""Time in seconds within which a waiting evaluator notices SIGTERM."""
LAST_S = 5.0
"""Wait in seconds after SIGTERM for the last checkpoint of a stopped chief."""


def evaluations(
    root: Path, model: torch.nn.Module, run: str, look_s: float = LOOK_S, last_s: float = LAST_S
) -> Iterator[int]:
    """Loads each new complete checkpoint into `model` in order, and yields its step.

    Checkpoints that are deleted before their turn, or that cannot be read, are skipped. A step that is saved again as
    the end of `run` is treated as a new checkpoint. The iteration ends after the checkpoint that is marked as the end
    of `run`. After SIGTERM each scan yields only the newest of the new checkpoints. Since a stopped chief may still be
    saving, the iteration then ends after `last_s` seconds, when a scan finds no new checkpoint.

    Raises:
        UsageProblem: A checkpoint belongs to another model.
    """
    done = -1
    saved: Any = None
    with _StopSignal() as stop:
        while True:
            # The signal is checked before the scan, so that checkpoints from before the signal are found.
            ending = stop.since() >= 0
            there = files.complete(root)
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


def _ends(one: files.Checkpoint, run: str) -> bool:
    return bool(one.about.get("final")) and one.about.get("run") == run


def _load(one: files.Checkpoint, model: torch.nn.Module) -> bool:
    try:
        state = one.load("model.pt")
    except files.Damaged as damage:
        if one.folder.exists():  # The checkpoint has not been deleted in the meantime.
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
    """A context that records SIGTERM if the main thread enters it and the script has no handler.

    A second signal more than ECHO_S later ends the process. The handler stays after the iteration: the keeper may send
    SIGTERM to the evaluator of a finished run while the evaluator ends by itself, and this signal must not change the
    exit code. After an exception, the earlier handler is restored.
    """

    def __init__(self) -> None:
        # No threading.Event is used, because set() in the handler could wait forever for the lock of an interrupted
        # wait().
        self._at: float | None = None
        self._earlier: Any = None

    def __enter__(self) -> _StopSignal:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._earlier = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._earlier is not None:
            # Python removes its handlers long before torch is finalized, but an ignored signal remains ignored.
            atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
        elif kind is not None and self._earlier is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._earlier)

    def since(self) -> float:
        """Returns the seconds since SIGTERM, or -1 before it."""
        return time.monotonic() - self._at if self._at is not None else -1.0

    def wait(self, seconds: float) -> None:
        """Sleeps for `seconds`, or until shortly after SIGTERM."""
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
