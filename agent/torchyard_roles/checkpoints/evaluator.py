"""Scoring checkpoints as they appear. The evaluator only reads: nothing that trains ever waits for it."""

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
from torchyard_roles.checkpoints.saver import say
from torchyard_roles.coordination.graceful_stop import ECHO_S
from torchyard_roles.errors import UsageProblem

LOOK_S = 1.0
"""Between two looks at the folder."""
LAST_S = 5.0
"""After SIGTERM, for the checkpoint that a stopped chief saves last."""


def evaluations(
    root: Path, model: torch.nn.Module, run: str, look_s: float = LOOK_S, last_s: float = LAST_S
) -> Iterator[int]:
    """The step of each new complete checkpoint, once it is loaded into `model`; in order, each once.

    Those that are pruned before their turn are left out, and one that was saved once more as the end of `run`, with
    what other worker groups did last, is another. Ends after the one that is marked as the end of `run`, and
    after SIGTERM: then only the newest is still scored, waited for `last_s` since a chief that is stopped as well is
    just saving it. Raises UsageProblem for another model's.
    """
    done = -1
    saved: Any = None
    with _Asked() as asked:
        while True:
            ending = asked.since() >= 0  # looked at before the folder is: what was saved before the signal is found
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
                if asked.since() >= 0:
                    break
            if any(_ends(one, run) for one in there if one.step <= done):
                return
            if ending and not fresh and asked.since() >= last_s:
                return
            if not fresh:
                asked.wait(look_s)


def _ends(one: files.Checkpoint, run: str) -> bool:
    return bool(one.about.get("final")) and one.about.get("run") == run


def _load(one: files.Checkpoint, model: torch.nn.Module) -> bool:
    try:
        state = one.load("model.pt")
    except files.Damaged as damage:
        if one.folder.exists():  # else it was cleared away meanwhile
            say(f"the checkpoint {one.folder} is passed over: {damage}.")
        return False
    difference = first_other_entry(one.about.get("fingerprint") or {}, entries(model))
    if difference:
        raise UsageProblem(
            f"The checkpoint {one.folder} is another model's: {difference}.",
            "Give evaluations() the model that the trainers give distribute().",
        )
    model.load_state_dict(state)
    return True


class _Asked:
    """Hears SIGTERM from when it is entered, where it may: only the main thread can. A second one ends at once.

    It goes on hearing when all is scored: a run that has come to its end stops its evaluator just when that ends by
    itself, and it is to end with 0 all the same. Only where the script breaks off is SIGTERM what it was.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._at = 0.0
        self._earlier: Any = None

    def __enter__(self) -> _Asked:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._earlier = signal.signal(signal.SIGTERM, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._earlier is not None:
            # Python takes its handlers back long before torch is torn down; what is ignored stays so.
            atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
        elif kind is not None and self._earlier is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._earlier)

    def since(self) -> float:
        """Seconds since SIGTERM; -1 without one."""
        return time.monotonic() - self._at if self._event.is_set() else -1.0

    def wait(self, seconds: float) -> None:
        if self._event.is_set():
            time.sleep(min(seconds, 0.1))
        else:
            self._event.wait(seconds)

    def _hear(self, number: int, _: Any) -> None:
        if self._event.is_set() and self.since() > ECHO_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not self._event.is_set():
            self._at = time.monotonic()
            self._event.set()
