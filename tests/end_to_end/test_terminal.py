"""Tests that Ctrl-C makes `torchyard run` ask on a terminal whether to stop the run, and that the answer is obeyed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.end_to_end.running import programs_on, topology
from tests.end_to_end.terminals import terminal
from tests.lab import Desktop, Lab
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

QUESTION = "o on following? "


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
