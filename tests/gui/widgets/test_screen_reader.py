"""Tests that the window's announcements arrive on the accessibility bus."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LAUNCHER = Path("/usr/libexec/at-spi-bus-launcher")
SPEAK = """
"$0" --launch-immediately & launcher=$!
"$1" -m tests.gui.widgets.accessibility_bus; rc=$?
kill $launcher; exit $rc
"""
WITHIN_S = 60

pytestmark = [
    pytest.mark.skipif(shutil.which("Xvfb") is None, reason="needs Xvfb: offscreen Qt talks to no screen reader"),
    pytest.mark.skipif(
        not LAUNCHER.exists() or shutil.which("dbus-run-session") is None, reason="needs at-spi2-core and dbus"
    ),
]


def test_a_screen_reader_hears_what_is_said_and_how_urgent_it_is(display: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "DISPLAY": display,
        "QT_QPA_PLATFORM": "xcb",
        "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1",
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    done = subprocess.run(
        ["dbus-run-session", "--", "sh", "-c", SPEAK, str(LAUNCHER), sys.executable],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    platform, heard = json.loads(done.stdout.splitlines()[-1])
    assert platform == "xcb"
    assert heard == {"The run failed: out of memory": 2, "Booked: gpu-b:0-1": 1}
