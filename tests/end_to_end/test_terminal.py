"""`torchyard run` on a terminal: what it asks there, and what the answers do."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.running import programs_on, topology, wait_until
from tests.lab import Desktop, Lab

pytestmark = pytest.mark.lab

QUESTION = "o on following? "
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
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    return topology(
        tmp_path / "endless",
        """
        pools:
          - {name: workers, role: worker, replicas: 1, hosts: [gpu-a]}
        program: {launcher: command, command: [python3, script.py]}
        """,
        script_py="""
            import time
            for number in range(6000):
                print("line", number, flush=True)
                time.sleep(0.1)
        """,
    )


def test_ctrl_c_asks_and_the_answer_decides(desktop: Desktop, lab3: Lab, endless: Path) -> None:
    with terminal(desktop, "run", endless) as screen:
        at = screen.read_until("worker-0 | line 3")
        screen.type("\x03")
        at = screen.read_until(QUESTION, at)
        screen.type("x\n")
        at = screen.read_until("x is none of them: answer with s, d or g.", at)
        at = screen.read_until(QUESTION, at)
        screen.type("g\n")
        at = screen.read_until("| line", at)
        screen.type("\x03")
        at = screen.read_until(QUESTION, at)
        screen.type("s\n")

        assert screen.read_to_the_end() == 1

    assert "with Ctrl-C" in screen.shown[at:]
    wait_until(lambda: not programs_on(lab3))


@pytest.mark.parametrize("answer", ["d\n", "\x03"])
def test_a_run_can_be_left_running(desktop: Desktop, lab3: Lab, endless: Path, answer: str) -> None:
    with terminal(desktop, "run", endless) as screen:
        at = screen.read_until("worker-0 | line 1")
        screen.type("\x03")
        screen.read_until(QUESTION, at)
        screen.type(answer)

        assert screen.read_to_the_end() == 0

    assert screen.shown.rindex("The run goes on. Follow it with") > screen.shown.rindex("worker-0 | line")
    run_id = re.findall(r"\d{8}-\d{6}-\w{4}", screen.shown)[0]
    shown = json.loads(desktop.torchyard("runs", "show", run_id, "--json").stdout)
    assert shown["state"] == "running"
    assert desktop.torchyard("runs", "stop", run_id).returncode == 0
    wait_until(lambda: not programs_on(lab3))
