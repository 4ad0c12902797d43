"""Tests that the fork server tells programs apart whose PID was reused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fork_server import ForkedProcess, ForkServer

pytestmark = pytest.mark.lab

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
"""The kernel's file that determines the next PID, which is the first free one after the number in the file."""


def test_a_command_with_a_reused_process_id_is_waited_for() -> None:
    """PIDs are reused. A process must not appear to have exited because an earlier process with the same PID did."""
    fork_server = ForkServer(dict(os.environ), "json")
    made: list[ForkedProcess] = []

    def start(code: str) -> ForkedProcess:
        made.append(fork_server.start("-c", code, environment=dict(os.environ)))
        return made[-1]

    try:
        first = start("raise SystemExit(3)")
        assert first.wait() == 3
        for _ in range(1000):
            LAST_PID.write_text(str(first.pid - 1))
            again = start("import sys; sys.stdin.read(); print('said at its end')")
            if again.pid == first.pid:  # The PID has been reused.
                break
            again.close()
        else:
            pytest.fail(f"process ID {first.pid} was not given again")
        output, _ = again.communicate()
        assert (output, again.returncode, first.returncode) == ("said at its end\n", 0, 3)
    finally:
        for each in made:
            each.close()
        fork_server.close()
