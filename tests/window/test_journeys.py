"""Tests of journeys (scenarios) in the real window: `torchyard-gui` under Xvfb and openbox, operated through
xdotool.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.window.display import open_display

ROOT = Path(__file__).parents[2]
WITHIN_S = 600
"""Deadline of a journey in seconds. The deadline is generous, so journeys do not fail merely because the machine is
busy.
"""
PROGRAMS = ("Xvfb", "openbox", "xdotool", "xterm")

pytestmark = [
    pytest.mark.timeout(WITHIN_S + 60),
    pytest.mark.skipif(
        not (os.environ.get("CI") or all(map(shutil.which, PROGRAMS))), reason=f"needs {', '.join(PROGRAMS)}"
    ),
]


@pytest.fixture(scope="module")
def display(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yields a virtual display of the size that the test requests."""
    with open_display(request.param) as name:
        yield name


@pytest.mark.parametrize(
    ("display", "journey"),
    [
        ("1440x900", "menus"),
        ("1440x900", "shortcuts"),
        ("1440x900", "booking_drags"),
        ("1440x900", "settings_by_hand"),
        ("1440x900", "presets"),
        ("1440x900", "two_windows"),
        pytest.param("1440x900", "first_start", marks=pytest.mark.train),
        ("1024x768", "bookings_by_hand"),
        ("1440x900", "topology_by_hand"),
        ("1440x900", "big_fleet"),
        ("1024x768", "small_screen"),
        ("1440x900", "runs_by_hand"),
        ("1024x768", "sweeps_by_hand"),
        pytest.param("1440x900", "hosts_by_hand", marks=pytest.mark.lab),
    ],
    indirect=["display"],
)
def test_journey(journey: str, display: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Performs a journey.

    The module of a journey has a function `journey(user)`. Optionally, it also has `prepare(home)`, which writes files
    and returns arguments for the window; `prepared(home)`, a context around the journey; and PARTS, functions that are
    each performed in a new window. All windows except the last are closed as if they had been killed.
    """
    home, pictures = tmp_path / "home", tmp_path / "pictures"
    pictures.mkdir()
    module = importlib.import_module(f"tests.window.journeys.{journey}")
    if request.node.get_closest_marker("lab"):
        request.getfixturevalue("needs_lab")
    arguments = getattr(module, "prepare", lambda home: None)(home) or []
    with getattr(module, "prepared", nullcontext)(home):
        for part in getattr(module, "PARTS", ("journey",)):
            perform(display, home, pictures, journey, part, arguments)
            arguments = []


def perform(display: str, home: Path, pictures: Path, journey: str, part: str, arguments: list[str]) -> None:
    program = [sys.executable, "-m", "tests.window.run", "--pictures", str(pictures), "--part", part]
    done = subprocess.run(
        [*program, journey, "--home", str(home), *arguments],
        cwd=ROOT,
        env={**os.environ, "DISPLAY": display, "QT_QPA_PLATFORM": "xcb"},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
