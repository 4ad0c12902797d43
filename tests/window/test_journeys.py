"""Journeys through the real window: `torchyard-gui` under Xvfb and openbox, used by pointer and keys of xdotool."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.window.display import open_display

ROOT = Path(__file__).parents[2]
WITHIN_S = 150
PROGRAMS = ("Xvfb", "openbox", "xdotool")

pytestmark = pytest.mark.skipif(
    not (os.environ.get("CI") or all(map(shutil.which, PROGRAMS))), reason=f"needs {', '.join(PROGRAMS)}"
)


@pytest.fixture(scope="module")
def display(request: pytest.FixtureRequest) -> Iterator[str]:
    """A display of the size given by the test."""
    with open_display(request.param) as name:
        yield name


@pytest.mark.parametrize(
    ("display", "journey"),
    [
        ("1440x900", "menus"),
        ("1440x900", "booking_drags"),
        ("1024x768", "bookings_by_hand"),
        ("1024x768", "small_screen"),
    ],
    indirect=["display"],
)
def test_journey(journey: str, display: str, tmp_path: Path) -> None:
    home, pictures = tmp_path / "home", tmp_path / "pictures"
    pictures.mkdir()
    prepare = getattr(importlib.import_module(f"tests.window.journeys.{journey}"), "prepare", None)
    if prepare is not None:
        prepare(home)
    done = subprocess.run(
        [sys.executable, "-m", "tests.window.run", "--pictures", str(pictures), journey, "--home", str(home)],
        cwd=ROOT,
        env={**os.environ, "DISPLAY": display, "QT_QPA_PLATFORM": "xcb"},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
