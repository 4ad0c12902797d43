"""Shows all scenes of the window and prints the faults in their text.

python -m tests.gui.geometry.tour [--parts fleet,runs] [--states long] [--sizes 1024x700]

QT_SCALE_FACTOR sets the scale. The exit status is 0 if there are no faults.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from PySide6.QtWidgets import QApplication, QWidget
from tools.window_scenes import PARTS, STATES, settle, show_scenes

from tests.gui.geometry.faults import faults_of
from torchyard_gui.windows.main_window import MainWindow

SIZES = ("1024x700", "1280x800", "1440x900")
SETTLE_MS = 60


class Inspector:
    """Collects the faults of each scene at all sizes of the window."""

    def __init__(self, sizes: Sequence[str]) -> None:
        self._sizes = sizes
        self.count = 0
        self.faults: dict[str, list[str]] = {}
        """The scenes in which each fault was found."""

    def take(
        self, window: MainWindow, name: str, over: QWidget | None = None, show: Callable[[], object] | None = None
    ) -> None:
        for size in self._sizes if over is None else self._sizes[:1]:
            window.resize(*map(int, size.split("x")))
            if show is not None:
                show()
            settle(SETTLE_MS)
            self.count += 1
            for fault in faults_of(window if over is None else over):
                self.faults.setdefault(str(fault), []).append(f"{name} {size}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--states", default=",".join(STATES))
    parser.add_argument("--sizes", default=",".join(SIZES))
    options = parser.parse_args()
    application = QApplication(["torchyard-geometry"])
    inspector = Inspector(options.sizes.split(","))
    try:
        show_scenes(inspector, options.parts.split(","), options.states.split(","))
    except BaseException:  # Faults are printed even if a later scene fails.
        traceback.print_exc()
        inspector.faults["the walk ended early"] = []
    for fault, scenes in inspector.faults.items():
        print(f"{fault} [{', '.join(scenes[:3])}{' …' if len(scenes) > 3 else ''}]")
    print(f"{inspector.count} scenes, {len(inspector.faults)} faults")
    sys.stdout.flush()
    del application
    os._exit(1 if inspector.faults else 0)


if __name__ == "__main__":
    main()
