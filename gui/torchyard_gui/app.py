"""Entry point `torchyard-gui [FILE]`, which opens the window.

Modules that import slowly are imported after the first paint. torch is never imported.
"""

from __future__ import annotations

import argparse
import gc
import locale
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchyard_core.home import Home
    from torchyard_gui.windows.main_window import MainWindow


def main(argv: Sequence[str] | None = None) -> int:
    """Opens the window. Returns the exit status once the window is closed, or at once if it cannot be opened."""
    options = _options().parse_args(argv)
    # Most objects that exist before the event loop starts are permanent, so collecting garbage at this point would only
    # cost time. Once the event loop runs, garbage is collected on the GUI thread.
    gc.disable()

    from torchyard_core.errors import UsageError
    from torchyard_core.graphical_display import require_display
    from torchyard_core.home import Home

    try:
        require_display()
        home = Home.at(options.home) if options.home else Home.default()
    except UsageError as error:
        sys.stderr.write(f"torchyard-gui: {error.sentence()}\n")
        return error.exit_code

    import logging
    import signal

    from PySide6.QtWidgets import QApplication

    _spare_sources()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    application = QApplication([sys.argv[0]])
    application.setApplicationName("torchyard")
    application.setApplicationDisplayName("Torchyard")
    application.setDesktopFileName("torchyard")
    # Ctrl-C in the terminal ends the program immediately. Recovery snapshots preserve unsaved topologies.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    window = make_window(home, options.fleet.expanduser() if options.fleet else home.fleet_file, options.file)
    window.show()
    gc.freeze()
    return application.exec()


def make_window(home: Home, fleet_file: Path, file: Path | None = None) -> MainWindow:
    """Creates the window and its models, but does not show the window. Without a file, restores the last session."""
    from PySide6.QtCore import QLocale
    from PySide6.QtWidgets import QApplication

    from torchyard_gui.bridge.garbage_collection import GarbageCollector
    from torchyard_gui.theme.theme import theme
    from torchyard_gui.windows.main_window import MainWindow
    from torchyard_gui.windows.signal_connections import SignalConnections
    from torchyard_gui.windows.window_settings import WindowSettings

    application = QApplication.instance()
    assert isinstance(application, QApplication)
    # The QApplication constructor sets the user's locale. The C locale replaces it, because names of days and months
    # must be in the language of all other texts, and the decimal separator must be a point, as in the files.
    QLocale.setDefault(QLocale.c())
    locale.setlocale(locale.LC_TIME, "C")
    settings = WindowSettings(home.path / "window.ini")
    theme().set_mode(settings.mode)
    theme().prepare(application)
    window = MainWindow(settings)
    GarbageCollector(window)
    wiring = SignalConnections(window, home, fleet_file)
    settings.restore(window)
    if file is not None:
        wiring.open_file(file)
    else:
        wiring.restore_session()
    theme().install(application)
    return window


def _spare_sources() -> None:
    """Disables PySide6's scan of module sources.

    PySide6 reads the source of each imported module to find out whether it uses PySide6's features (`from __feature__
    import snake_case`). This program uses none of them, and the scan takes 30 ms before the first paint.
    """
    feature = sys.modules.get("shibokensupport.feature")
    if feature is not None:
        feature._mod_uses_pyside = lambda module: True  # type: ignore[attr-defined]  # The module has no type stubs.


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchyard-gui", description="Draw a training cluster, launch it on your own GPU hosts, and watch it live."
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a topology file to open")
    parser.add_argument("--home", type=Path, help="folder of your own files (default: $TORCHYARD_HOME)")
    parser.add_argument("--fleet", type=Path, help="the fleet file (default: fleet.yaml in the home)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
