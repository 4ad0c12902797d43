"""Tests of dragging rows out of the palette, with Qt's own drag loop on a virtual display."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
WITHIN_S = 60

pytestmark = pytest.mark.skipif(shutil.which("Xvfb") is None, reason="needs Xvfb: offscreen Qt has no drag and drop")


def dragged(display: str, way: str) -> dict[str, Any]:
    environment = {**os.environ, "DISPLAY": display, "QT_QPA_PLATFORM": "xcb"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gui.topology.drag_on_a_display", way],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["platform"] == "xcb"
    assert result["dragged"] == 1
    return result


def test_a_role_that_is_dragged_onto_a_host_is_added_and_pinned_there(display: str) -> None:
    result = dragged(display, "drop")
    assert (result["pins"], result["replicas"]) == ({"worker-0": "gpu-b"}, 1)


def test_escape_calls_the_drag_off(display: str) -> None:
    result = dragged(display, "escape")
    assert (result["pins"], result["replicas"], result["edits"]) == ({}, 0, 1)


def test_a_drag_out_of_the_drawer_reaches_what_lay_below_it(display: str) -> None:
    result = dragged(display, "drawer")
    assert result["pins"] == {"worker-0": "gpu-b"}
    assert not result["palette"]
