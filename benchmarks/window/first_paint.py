"""Benchmark of starting `torchyard-gui FILE` until its first paint, compared with a bare PySide6 window.

Each arm is a new process, measured from its start; the bare window's process also imports pyqtgraph. The first paint
ends with the next turn of the event loop after the window's first paintEvent (signal `painted` of the main window),
because all children of the window are painted by then. Promise: at most 1.5 times the duration for the bare window.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Promise, alternate, ratio, record, show

ROUNDS = 10
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits" / "three-hosts.yaml"

NOTE = """
import os, sys, time

def note():
    with open(sys.argv[1], "w") as file:
        file.write(repr(time.monotonic()))  # all processes of a machine share this clock
    os._exit(0)
"""
BARE = f"""{NOTE}
import pyqtgraph
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication, QMainWindow

class Window(QMainWindow):
    def paintEvent(self, event):
        super().paintEvent(event)
        QTimer.singleShot(0, note)

application = QApplication([])
window = Window()
window.resize(1440, 900)
window.show()
application.exec()
"""
OURS = f"""{NOTE}
from torchyard_gui import app

make = app.make_window

def make_and_note(*arguments):
    window = make(*arguments)
    window.painted.disconnect()  # what else waits for the first paint
    window.painted.connect(note)
    return window

app.make_window = make_and_note
app.main(sys.argv[2:])
"""


def first_paint(program: str, folder: Path, *arguments: str) -> float:
    """Returns the seconds from the start of a new Python process until its window's first paint ends."""
    noted = folder / "painted"
    noted.unlink(missing_ok=True)
    # Installed programs have bytecode. Here, both arms write their bytecode to this folder in the discarded round.
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", program, str(noted), *arguments], env=environment, check=True, timeout=60)
    return float(noted.read_text()) - begin


def write_fleet(folder: Path) -> tuple[str, ...]:
    """Writes a fleet of three hosts, and returns the options to use it. No host is contacted before the first paint."""
    fleet = folder / "fleet.yaml"
    lines = [f"  - {{name: {name}, address: {name}.invalid}}\n" for name in ("gpu-a", "gpu-b", "gpu-c")]
    fleet.write_text("version: 1\nhosts:\n" + "".join(lines))
    return "--home", str(folder / "home"), "--fleet", str(fleet)


def main() -> list[Promise]:
    """Measures both windows in alternation."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = write_fleet(folder)
        arms = {
            "torchyard-gui with the example": lambda: first_paint(OURS, folder, *options, str(EXAMPLE)),
            "bare PySide6 window, pyqtgraph imported": lambda: first_paint(BARE, folder),
        }
        found = alternate(arms, ROUNDS)
    promises = [Promise("start to first paint over a bare window", ratio(found, *found), 1.5)]
    show("From the start of a process to its window's first paint", found)
    record("first_paint", found, promises)
    return promises


if __name__ == "__main__":
    main()
