"""Ctrl-C, counted instead of raised: between two looks nothing is torn apart half-way."""

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
    """How often Ctrl-C was pressed, and what is to happen at once when it is."""

    count: int = 0
    _at_once: Callable[[], None] | None = field(default=None, repr=False)

    def take(self) -> bool:
        """Whether Ctrl-C was pressed since the last look."""
        pressed, self.count = self.count > 0, 0
        return pressed

    @contextmanager
    def calling(self, at_once: Callable[[], None]) -> Iterator[None]:
        """Calls `at_once` on Ctrl-C meanwhile; at the beginning, where it was pressed before."""
        self._at_once = at_once
        if self.count:
            at_once()
        try:
            yield
        finally:
            self._at_once = None

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal's handler."""
        self.count += 1
        if self._at_once is not None:
            self._at_once()


@contextmanager
def counting_interrupts() -> Iterator[Interrupts]:
    """Counts Ctrl-C instead of raising KeyboardInterrupt anywhere."""
    interrupts = Interrupts()
    before = signal.signal(signal.SIGINT, interrupts.note)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def raising_interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt meanwhile, as a question at the terminal wants it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def ask(question: str) -> str:
    """A line from the terminal. Raises KeyboardInterrupt on Ctrl-C at whatever moment, and EOFError.

    input() misses a Ctrl-C that comes between its words and its reading: it reads on, and nobody hears it.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    try:
        with raising_interrupts():
            print(question, end="", flush=True)
            terminal = sys.stdin.fileno()
            while terminal not in select.select([terminal, reading], [], [])[0]:
                os.read(reading, 1)  # another signal
            line = os.read(terminal, 4096)  # a terminal gives one line
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)
    if not line:
        raise EOFError
    return line.decode(errors="replace").strip()
