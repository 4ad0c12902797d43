"""Runs commands on a pseudo-terminal and reads their output."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab import Desktop

ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*(?:[a-zA-Z]|\Z)|\Z)")
"""Matches escape sequences, and an incomplete escape sequence at the end of the text."""


class Terminal:
    """A pseudo-terminal on which a command runs, with the command's output so far."""

    def __init__(self, process: subprocess.Popen[bytes], master: int):
        self.process = process
        self._master = master
        self._text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def everything(self) -> str:
        """The output so far, including escape sequences."""
        return self._text

    @property
    def shown(self) -> str:
        return ESCAPES.sub("", self._text)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def read_until(self, words: str, after: int = 0, within_s: float = 60.0) -> int:
        """Waits until the output after position `after` contains `words`; returns the position after them."""
        deadline = time.monotonic() + within_s
        while (found := self.shown.find(words, after)) < 0:
            assert time.monotonic() < deadline, f"waited for {words!r} in vain; shown:\n{self.shown}"
            self._read(0.2)
        return found + len(words)

    def read_to_the_end(self, within_s: float = 60.0) -> int:
        """Reads the output until the command exits; returns the command's exit code."""
        deadline = time.monotonic() + within_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self._read(0.2)
        while self._read(0.2):
            pass
        return self.process.returncode

    def _read(self, timeout_s: float) -> bool:
        """Reads the available output; returns whether there was any output."""
        if not select.select([self._master], [], [], timeout_s)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # This error means that the other end of the pseudo-terminal is closed.
            return False
        self._text += self._decoder.decode(data)
        return True


@contextmanager
def terminal(desktop: Desktop, *arguments: str | Path) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        desktop.command(*arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**desktop.environment(), "TERM": "xterm"},
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(master)


def take_terminal() -> None:
    """Makes the terminal the controlling terminal of the new session, so Ctrl-C sends SIGINT."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
