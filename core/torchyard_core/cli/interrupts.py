"""Counts Ctrl-C instead of raising KeyboardInterrupt in the middle of an operation."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType


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
                os.read(reading, 1)  # A signal other than SIGINT has ended the wait.
            line = os.read(terminal, 4096)  # A read from a terminal returns at most one line.
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)
    if not line:
        raise EOFError
    return line.decode(errors="replace").strip()
