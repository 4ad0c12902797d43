"""Tests of a `python` that forks its scripts.

Like a real interpreter, it exits with the script's exit status, or is killed by the signal that killed the script.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.warm_python import write_client

pytestmark = pytest.mark.lab

SERVES_UNTIL_TOLD = """
import signal, sys

signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("serves", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def python(needs_lab: None, tmp_path: Path) -> Iterator[Path]:
    fork_server = ForkServer(dict(os.environ), "json")
    fork_server.serve(write_client(tmp_path), os.getpid())
    yield tmp_path / "python"
    fork_server.close()


def test_a_signal_that_comes_while_a_script_ends_by_itself_changes_nothing(python: Path, tmp_path: Path) -> None:
    """For example, SIGTERM from the keeper may reach a server that is already exiting after a successful run."""
    script = tmp_path / "serves.py"
    script.write_text(SERVES_UNTIL_TOLD)
    process = subprocess.Popen(
        [python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "serves\n"
        process.stdin.close()
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.0001)
        assert (process.returncode, process.stdout.read()) == (0, "")
