"""Forks `torchyard` commands from a process that has imported their modules, which saves half a second per command."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.fork_server import ForkServer

MODULE = "torchyard_core.cli.entry_point"
IMPORTED = "tests.lab.command_imports"


class Commands:
    """Runs commands, each with its own environment and folder, through a fork server that the first command starts."""

    def __init__(self) -> None:
        self._fork_server: ForkServer | None = None
        self._free = threading.Lock()

    def run(
        self, arguments: Sequence[str], environment: dict[str, str], folder: Path, input: str | None, timeout: float
    ) -> subprocess.CompletedProcess[str] | None:
        """Runs a command to its end.

        Returns None if the command cannot be forked: if another command is running, or if environment variables that an
        interpreter reads only when it starts differ from the fork server's. Raises subprocess.TimeoutExpired.
        """
        if not self._free.acquire(blocking=False):
            return None
        try:
            if self._fork_server is None:
                self._fork_server = ForkServer(environment, IMPORTED)
            if _heeded_at_start(environment) != _heeded_at_start(self._fork_server.environment):
                return None
            return self._fork(self._fork_server, arguments, environment, folder, input, timeout)
        finally:
            self._free.release()

    def _fork(
        self,
        fork_server: ForkServer,
        arguments: Sequence[str],
        environment: dict[str, str],
        folder: Path,
        input: str | None,
        timeout: float,
    ) -> subprocess.CompletedProcess[str]:
        with ExitStack() as open_files:
            files = [
                open_files.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
                for _ in range(3)
            ]
            stdin, stdout, stderr = files
            stdin.write(input or "")
            stdin.flush()
            os.lseek(stdin.fileno(), 0, os.SEEK_SET)
            numbers = (stdin.fileno(), stdout.fileno(), stderr.fileno())
            child = fork_server.fork(["-m", MODULE, *arguments], environment, numbers, folder)
            try:
                code = fork_server.wait(child, timeout)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                code = fork_server.wait(child, 30)
                said = {}
                for name, file in (("output", stdout), ("stderr", stderr)):
                    file.seek(0)
                    said[name] = file.read()
                    print(f"{name} until then:\n{said[name]}")  # The printed events of a run show its progress.
                raise subprocess.TimeoutExpired(["torchyard", *arguments], timeout, **said) from None
            for file in (stdout, stderr):
                file.seek(0)
            return subprocess.CompletedProcess([MODULE, *arguments], code, stdout.read(), stderr.read())

    def close(self) -> None:
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None


def _heeded_at_start(environment: dict[str, str]) -> dict[str, str]:
    """Returns the environment variables that an interpreter reads only when it starts."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(("PYTHON", "LC_")) or name in ("LANG", "TZ")
    }
