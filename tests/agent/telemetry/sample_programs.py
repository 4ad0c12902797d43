"""Programs that the telemetry tests run and observe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

AGENT = Path(__file__).resolve().parents[3] / "agent"
OLDEST_PYTHON = Path.home() / ".pyenv" / "versions" / "3.9.18" / "bin" / "python"

# The program evaluates one line of input at a time and prints the value, so a test can change the system between two
# lines.
_CONVERSATION = """
import json, sys
sys.path.insert(0, sys.argv[1])
for line in sys.stdin:
    print(json.dumps(eval(line) if line.startswith("(") else exec(line)), flush=True)
"""


class Conversation:
    """A Python process that can import the agent, and that evaluates one line of input at a time."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process

    def say(self, line: str) -> Any:
        """Sends a line of Python and waits for its result: the value of an expression in brackets, or None for a
        statement.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the process ended at: {line}"
        return json.loads(answer)


@contextmanager
def conversation(environment: dict[str, str], python: str = sys.executable) -> Iterator[Conversation]:
    command = [python, "-I", "-S", "-c", _CONVERSATION, str(AGENT)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            yield Conversation(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


@contextmanager
def program(source: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a Python program in its own process group; yields the process once it has printed `ready`.

    Kills the group at the end.
    """
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            os.killpg(process.pid, 9)
