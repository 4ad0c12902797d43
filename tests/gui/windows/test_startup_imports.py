"""Tests, in a separate process, that the program imports no slow module before its first paint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TO_FIRST_PAINT = """
import gc, json, linecache, os, sys
from torchyard_gui import app

make, windows = app.make_window, []

def say():
    names = [type(child).__name__ for child in windows[0].children()]
    collects = not gc.isenabled() and "GarbageCollector" in names
    read = [file for file in linecache.cache if "torchyard_" in file]
    print(json.dumps({"modules": sorted(sys.modules), "collects": collects, "read": read}), flush=True)
    os._exit(0)

def make_and_watch(*arguments):
    window = make(*arguments)
    windows.append(window)
    window.painted.disconnect()  # what waits for the first paint may import what it likes

    def watch():
        window.painted.connect(say)

    window.show_, window.show = window.show, lambda: (watch(), window.show_())
    return window

app.make_window = make_and_watch
app.main(sys.argv[1:])
"""
SLOW = {"torch", "paramiko", "cryptography", "sqlalchemy", "pyqtgraph", "numpy", "typer", "rich", "pathspec"}
UNSEEN = {"torchyard_gui.widgets.command_palette", "torchyard_gui.topology.find_bar"}
"""Modules that are imported only when they are needed."""


@pytest.mark.parametrize("with_file", [False, True])
def test_the_first_paint_needs_nothing_slow(with_file: bool, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(
        "version: 1\nname: small\npools:\n  - {name: workers, role: worker, replicas: 2, gpus: 0}\n"
        "program: {script: train.py}\n",
        encoding="utf-8",
    )
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("version: 1\nhosts:\n  - {name: gpu-a, address: gpu-a.invalid}\n", encoding="utf-8")
    ended = program(
        TO_FIRST_PAINT, "--home", tmp_path / "home", "--fleet", fleet, *([file] if with_file else []), check=True
    )
    found = json.loads(ended.stdout)
    there = {name.partition(".")[0] for name in found["modules"]}
    assert "torchyard_gui" in there
    assert there.isdisjoint(SLOW)
    assert UNSEEN.isdisjoint(found["modules"])
    assert found["read"] == [], "PySide6 reads no sources"
    assert found["collects"], "from the first paint on, the window collects garbage"


def test_without_a_screen_or_a_home_it_says_so_and_does_not_abort(tmp_path: Path) -> None:
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    bare = {name: value for name, value in os.environ.items() if name not in screens}
    for more, options, said in (
        ({}, [], "there is no display on which the window could open. Log in with `ssh -X`"),
        (
            {"QT_QPA_PLATFORM": "offscreen"},
            ["--home", "~nobody-of-this-name/x"],
            "cannot be found out. Name the folder",
        ),
    ):
        command = [sys.executable, "-m", "torchyard_gui.app", *options]
        done = subprocess.run(command, env={**bare, **more}, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr


def test_help_does_not_import_qt(tmp_path: Path) -> None:
    ended = program(
        "import sys\nfrom torchyard_gui import app\ntry: app.main(['--help'])\n"
        "finally: print('PySide6' in sys.modules)",
        check=False,
    )
    assert "torchyard-gui" in ended.stdout
    assert ended.stdout.endswith("False\n")


def program(text: str, *arguments: object, check: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        env={**os.environ, "QT_QPA_PLATFORM": "offscreen"},
        capture_output=True,
        text=True,
        timeout=60,
        check=check,
    )
