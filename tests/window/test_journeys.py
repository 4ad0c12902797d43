"""Journeys through the real window: `torchyard-gui` under Xvfb and openbox, operated through xdotool."""

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
"""Deadline of a journey in seconds, which is generous, so that a journey does not fail on a loaded machine."""
PROGRAMS = ("Xvfb", "openbox", "xdotool", "xterm")

pytestmark = [
    pytest.mark.timeout(WITHIN_S + 60),
    pytest.mark.skipif(
        not (os.environ.get("CI") or all(map(shutil.which, PROGRAMS))), reason=f"needs {', '.join(PROGRAMS)}"
    ),
]


@pytest.fixture(scope="module")
def display(request: pytest.FixtureRequest) -> Iterator[str]:
    """A display of the size given by the test."""
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
        pytest.param("1440x900", "hosts_by_hand", marks=pytest.mark.lab),
    ],
    indirect=["display"],
)
def test_journey(journey: str, display: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Performs a journey.

    Its module has a function `journey(user)`, and optionally `prepare(home)`, which writes files and returns arguments
    of the window, a context `prepared(home)` around the journey, and PARTS: functions that are each performed in a new
    window; all but the last leave the window as if it had been killed.
    """
    home, pictures = tmp_path / "home", tmp_path / "pictures"
    pictures.mkdir()
    module = importlib.import_module(f"tests.window.journeys.{journey}")
    if request.node.get_closest_marker("lab"):
        request.getfixturevalue("needs_lab")
    arguments = getattr(module, "prepare", lambda home: None)(home) or []
    with getattr(module, "prepared", nullcontext)(home):
        # A part ends without closing the window, as if it had been killed; the next part opens a new window.
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
