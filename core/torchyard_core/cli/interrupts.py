"""Counts Ctrl-C instead of raising KeyboardInterrupt in the middle of an operation, and asks what to do with a run."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from torchyard_core.cli.output import remark

if TYPE_CHECKING:
    from torchyard_core.cli.views.run_progress import RunView

CHOICES = {"s": "stop", "d": "detach", "g": "go on", "": "go on"}


@dataclass
class Interrupts:
    """Counts how often Ctrl-C was pressed since the last `take`, and calls a callback."""

    count: int = 0
    _at_once: Callable[[], None] | None = field(default=None, repr=False)

    def take(self) -> bool:
        """Returns whether Ctrl-C was pressed since the last call."""
        pressed, self.count = self.count > 0, 0
        return pressed

    @contextmanager
    def calling(self, at_once: Callable[[], None]) -> Iterator[None]:
        """Calls `at_once` on Ctrl-C inside the block, and on entry if Ctrl-C was pressed before."""
        self._at_once = at_once
        if self.count:
            at_once()
        try:
            yield
        finally:
            self._at_once = None

    def note(self, number: int, frame: FrameType | None) -> None:
        """Counts a SIGINT and calls the callback, if any."""
        self.count += 1
        if self._at_once is not None:
            self._at_once()


@contextmanager
def counting_interrupts() -> Iterator[Interrupts]:
    """Counts Ctrl-C inside the block instead of raising KeyboardInterrupt."""
    interrupts = Interrupts()
    before = signal.signal(signal.SIGINT, interrupts.note)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def raising_interrupts() -> Iterator[None]:
    """Raises KeyboardInterrupt on Ctrl-C inside the block, for questions on the terminal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def ask(question: str) -> str:
    """Reads a line from the terminal. In contrast to `input`, no Ctrl-C is lost.

    Raises EOFError at the end of the input, and KeyboardInterrupt on Ctrl-C.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    try:
        with raising_interrupts():
            print(question, end="", flush=True)
            terminal = sys.stdin.fileno()
            while terminal not in select.select([terminal, reading], [], [])[0]:
                os.read(reading, 1)  # A signal other than SIGINT has interrupted the wait.
            line = os.read(terminal, 4096)  # A read from a terminal returns at most one line.
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)
    if not line:
        raise EOFError
    return line.decode(errors="replace").strip()


def choose_on_interrupt(view: RunView, shown: Mapping[str, Any]) -> str:
    """Returns the user's choice: `stop`, `detach` or `go on`. Another Ctrl-C means `detach`.

    `shown` contains the state of the run, derived from its journal (see `journal_replay`).
    """
    state = "starting" if shown["state"] == "draft" else shown["state"]
    reason = f": {shown['reason'].rstrip('.')}" if shown["reason"] else ""
    with view.paused():
        remark(f"\nRun {shown['run_id']} is {state}{reason}.")
        while True:
            try:
                answer = ask("[s]top it, [d]etach and leave it running, or [g]o on following? ")
            except EOFError:
                return "go on"
            except KeyboardInterrupt:
                remark("")
                return "detach"
            if act := CHOICES.get(answer[:1].lower()):
                return act
            remark(f"{answer} is none of them: answer with s, d or g.")
