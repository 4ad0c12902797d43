"""Ctrl-C, counted instead of raised: between two looks nothing is torn apart half-way."""

from __future__ import annotations

import signal
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
