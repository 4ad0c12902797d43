"""Commands on a terminal, and what they show there."""

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
"""What colours and moves; one at the end may not have come whole yet."""


class Terminal:
    """A terminal with a command in it, and all that it has shown."""

    def __init__(self, process: subprocess.Popen[bytes], master: int):
        self.process = process
        self._master = master
        self._text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def everything(self) -> str:
        """All that came, escapes included."""
        return self._text

    @property
    def shown(self) -> str:
        return ESCAPES.sub("", self._text)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def read_until(self, words: str, after: int = 0, within_s: float = 60.0) -> int:
        """Where `words` end in what is shown after position `after`."""
        deadline = time.monotonic() + within_s
        while (found := self.shown.find(words, after)) < 0:
            assert time.monotonic() < deadline, f"waited for {words!r} in vain; shown:\n{self.shown}"
            self._read(0.2)
        return found + len(words)

    def read_to_the_end(self, within_s: float = 60.0) -> int:
        """The exit code, once the command has left."""
        deadline = time.monotonic() + within_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self._read(0.2)
        while self._read(0.2):
            pass
        return self.process.returncode

    def _read(self, timeout_s: float) -> bool:
        """Whether there was something."""
        if not select.select([self._master], [], [], timeout_s)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side has closed
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
    """Makes the terminal the new session's own, so that Ctrl-C in it is a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
