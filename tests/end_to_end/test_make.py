"""Tests that `make run` trains the README's example on a machine without a display."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAMP = ROOT / ".venv" / ".setup-done"

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(not STAMP.exists(), reason="needs what `make setup` makes, which takes minutes"),
]


@pytest.fixture
def new_user(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs programs with an empty home folder and without a display, and removes the agent afterwards."""
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "TORCHYARD_HOME", "XDG_DATA_HOME", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    own = {name: value for name, value in os.environ.items() if name not in hidden} | {"HOME": str(tmp_path)}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=150, check=False)

    yield run
    fleet = str(ROOT / ".venv" / "example-fleet.yaml")
    gone = run(sys.executable, "-m", "torchyard_core.cli.entry_point", "--fleet", fleet, "undeploy", "--yes")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert not (tmp_path / ".torchyard").exists()


def test_make_run_trains_the_example_here_and_its_setup_costs_nothing_the_second_time(
    new_user: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    setup = new_user("make", "setup")
    assert setup.returncode == 0
    assert "Nothing to be done" in setup.stdout
    outcome = new_user("make", "run")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "accuracy" in outcome.stdout
    assert "succeeded" in outcome.stdout
    assert "Installing" not in outcome.stdout
