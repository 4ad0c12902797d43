"""From the start of `torchyard-gui FILE` to its first paint: against a bare PySide6 window with pyqtgraph imported.

Each is a new process, measured from its start. The first paint is over when the event loop turns next after
the window's first paintEvent (our window's signal `painted`): by then all of its children are painted too. Promised:
at most 1.5 times the bare one.
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
    """Seconds from the start of a new Python to the end of its window's first paint."""
    noted = folder / "painted"
    noted.unlink(missing_ok=True)
    # Installed programs have bytecode: that of both is kept here, written in the uncounted round.
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", program, str(noted), *arguments], env=environment, check=True, timeout=60)
    return float(noted.read_text()) - begin


def write_fleet(folder: Path) -> tuple[str, ...]:
    """The options of a window on three hosts, none of which is asked before the first paint."""
    fleet = folder / "fleet.yaml"
    lines = [f"  - {{name: {name}, address: {name}.invalid}}\n" for name in ("gpu-a", "gpu-b", "gpu-c")]
    fleet.write_text("version: 1\nhosts:\n" + "".join(lines))
    return "--home", str(folder / "home"), "--fleet", str(fleet)


def main() -> list[Promise]:
    """Measures both windows, alternating."""
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
