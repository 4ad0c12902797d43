"""Renders the pages of the window as PNG files, light and dark, in several sizes and at two scales.

The pages are rendered with no host, one host, eight hosts, eight hosts with long names, and 128 hosts. Other pictures
show live runs, every strategy, the launch panel in each phase of a launch, drawers, menus and dialogs.

python -m tools.screenshots [--parts topology,runs,strategies] [--states one] [--sizes 1280x800] [--scales 2] [FOLDER]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QApplication, QWidget
from tools.window_scenes import PARTS, STATES, settle, show_scenes

from torchyard_gui.theme.theme import theme
from torchyard_gui.windows.main_window import MainWindow

SIZES = ("1024x700", "1440x900")
SCALES = ("1", "2")
MODES = ("light", "dark")


def main(argv: Sequence[str] | None = None) -> int:
    """Renders the requested screenshots and prints their folder."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _options().parse_args(arguments)
    scales = options.scales.split(",")
    if scales != ["1"] and "QT_SCALE_FACTOR" not in os.environ:
        return max(_at_scale(scale, arguments) for scale in scales)
    application = QApplication.instance() or QApplication(["torchyard-screenshots"])
    options.folder.mkdir(parents=True, exist_ok=True)
    camera = PngCamera(options.folder, options.sizes.split(","))
    show_scenes(camera, options.parts.split(","), options.states.split(","))
    del application
    print(f"{camera.count} pictures in {options.folder}")
    return 0


def _at_scale(scale: str, arguments: Sequence[str]) -> int:
    """Renders the screenshots in another process, because Qt reads its scale factor once."""
    command = [sys.executable, "-m", "tools.screenshots", *arguments]
    return subprocess.run(command, env={**os.environ, "QT_SCALE_FACTOR": scale}, check=False).returncode


class PngCamera:
    """Takes screenshots of a window in every size, light and dark."""

    def __init__(self, folder: Path, sizes: Sequence[str]):
        self._folder = folder
        self._sizes = sizes
        self.count = 0

    def take(
        self, window: MainWindow, name: str, over: QWidget | None = None, show: Callable[[], object] | None = None
    ) -> None:
        """Saves the screenshots of a window. If `over` is given, that panel or dialog is drawn over its middle."""
        for size in self._sizes:
            window.resize(*map(int, size.split("x")))
            if show is not None:
                show()
            for mode in MODES:
                theme().set_mode(mode)
                settle()
                picture = window.grab()
                if over is not None:
                    _lay_over(picture, over)
                ratio = picture.devicePixelRatio()
                at_scale = "" if ratio == 1 else f"@{ratio:g}"
                picture.save(str(self._folder / f"{name}-{mode}-{size}{at_scale}.png"))
                self.count += 1


def _lay_over(picture: QPixmap, panel: QWidget) -> None:
    """Draws a panel over the middle of a picture. A line represents the frame that a desktop environment would draw."""
    painter = QPainter(picture)
    at = panel.rect()
    at.moveCenter(QRectF(QPointF(), picture.deviceIndependentSize()).center().toPoint())
    painter.drawPixmap(at.topLeft(), panel.grab())
    painter.setPen(theme().pen("line"))
    painter.drawRect(at.adjusted(-1, -1, 0, 0))
    painter.end()


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="screenshots", description="Draws every page of the window into PNGs.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("screenshots"), metavar="FOLDER")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)} (default: all)")
    parser.add_argument("--states", default=",".join(STATES), help=f"of {', '.join(STATES)} (default: all)")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--scales", default=",".join(SCALES), help="scale factors of the display")
    return parser


if __name__ == "__main__":
    sys.exit(main())
