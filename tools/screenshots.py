"""Renders the pages of the window as PNG files, light and dark, in two sizes.

The pages are rendered with no host, one host and eight hosts. A live run, every strategy, and the launch panel in the
phases of a launch are also rendered.

python -m tools.screenshots [--pages topology,runs,strategies] [--states one] [--sizes 1280x800] [FOLDER]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QCoreApplication, QEvent, QEventLoop, QPointF, QRectF, QTimer
from PySide6.QtGui import QCursor, QPainter, QPixmap
from PySide6.QtWidgets import QApplication, QWidget
from tools.launch_phases import phases
from tools.live_run import begin_live_run, feed_run, log_opener
from tools.sample_bookings import Sample, at
from tools.sample_fleet import FAILED_RUN, let_hosts_answer, write_sample
from tools.strategy_designs import SERVED, STEP, design_of

from torchyard_core.booking.planned_time import PlannedTime
from torchyard_core.topology.model import StrategyKind
from torchyard_core.topology.strategies.presets import PRESETS
from torchyard_gui.app import make_window
from torchyard_gui.theme.theme import theme
from torchyard_gui.windows.connections import WindowConnections
from torchyard_gui.windows.main_window import MainWindow

if TYPE_CHECKING:
    from torchyard_gui.bookings.dialogs.team_calendar_dialog import TeamCalendarDialog
    from torchyard_gui.bookings.page import BookingsPage
    from torchyard_gui.runs.page import RunsPage
    from torchyard_gui.topology.page import TopologyPage

PAGES = ("topology", "fleet", "runs")
STATES = ("empty", "one", "eight")
SIZES = ("1280x800", "1440x900")
MODES = ("light", "dark")
SETTLE_MS = 400
FOLLOWED_WITHIN_MS = 1200


def main(argv: Sequence[str] | None = None) -> int:
    """Renders the requested screenshots and prints their folder."""
    options = _options().parse_args(argv)
    application = QApplication.instance() or QApplication(["torchyard-screenshots"])
    options.folder.mkdir(parents=True, exist_ok=True)
    camera = Camera(options.folder, options.sizes.split(","))
    pages = options.pages.split(",")
    for state in options.states.split(","):
        with _window(state) as window:
            for key in (key for key in window.keys if key in pages):
                _prepare(window.show_page(key), key)
                camera.take(window, f"{key}-{state}")
            if "launch" in pages and state == "eight":
                _launch(window, camera)
        if "strategies" in pages and state == "eight":
            with _window(state) as window:
                _strategies(window, camera)
        if "bookings" in pages:
            _bookings(camera, state)
            if state == "eight":
                _bookings(camera, "many")
        if "live" in pages and state != "empty":
            with _window(state) as window:
                _live(window, camera, state)
    del application
    print(f"{camera.count} pictures in {options.folder}")
    return 0


class Camera:
    """Takes screenshots of a window in every size, light and dark."""

    def __init__(self, folder: Path, sizes: Sequence[str]):
        self._folder = folder
        self._sizes = sizes
        self.count = 0

    def take(self, window: MainWindow, name: str, over: QWidget | None = None) -> None:
        """Saves the screenshots of a window.

        Args:
            over: Panel that is drawn over the middle of the window.
        """
        for size in self._sizes:
            window.resize(*map(int, size.split("x")))
            for mode in MODES:
                theme().set_mode(mode)
                _settle()
                picture = window.grab()
                if over is not None:
                    _lay_over(picture, over)
                picture.save(str(self._folder / f"{name}-{mode}-{size}.png"))
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


def _live(window: MainWindow, camera: Camera, state: str) -> None:
    """Takes screenshots of the Runs page with a live run: the page's three views and the log."""
    acting = begin_live_run(_wiring(window), state)
    page = _runs(window)
    feed_run(page, acting, lambda: _settle(FOLLOWED_WITHIN_MS))
    views = page.bar.views.set_value
    for view in ("canvas", "table", "plots") if state == "eight" else ("canvas",):
        views(view)
        camera.take(window, f"live-{state}" if view == "canvas" else f"live-{state}-{view}")
    views("canvas")
    log_opener(page)(True)
    _settle(FOLLOWED_WITHIN_MS)
    camera.take(window, f"live-{state}-log")


def _bookings(camera: Camera, state: str) -> None:
    """Takes screenshots of a sample calendar. For eight hosts, every view and the drawers are included."""
    with tempfile.TemporaryDirectory(prefix="torchyard-pictures-") as folder, _window(_yard(state)) as window:
        model = _wiring(window).bookings
        Sample(Path(folder), state).show_in(model)
        page = cast("BookingsPage", window.show_page("bookings"))
        _settle()
        page.go_today()
        _settle()
        camera.take(window, f"bookings-{state}")
        if state != "eight":
            return
        page.finder.count.setValue(4)
        page.finder.length.setText("6h")
        page.find_slot()
        _settle()
        camera.take(window, "bookings-find")
        page.show_waitlist()
        page.surface.select(next(one.id for one in model.seen.bookings if one.owner == "kim" and one.gpus[1:]))
        for view in ("day", "month", "agenda"):
            page.bar.views.set_value(view)
            _settle()
            camera.take(window, f"bookings-{view}")
        page.bar.views.set_value("week")
        page.dialogs.team_calendar()
        dialog = cast("TeamCalendarDialog", page.dialog)
        dialog.what.set_value("create")
        camera.take(window, "bookings-team", dialog)
        dialog.reject()
        _when(window, camera)


def _when(window: MainWindow, camera: Camera) -> None:
    """Takes screenshots of the Topology page with bookings of other users, for now and for the next day."""
    planning = _wiring(window).planning
    planning.begin()
    page = _topology(window)
    page.editor.show_host("gpu-d")
    page.view.fit()
    camera.take(window, "topology-booked")
    planning.choose(PlannedTime(at(3, 9), timedelta(hours=24)))
    camera.take(window, "topology-later")


def _topology(window: MainWindow) -> TopologyPage:
    return cast("TopologyPage", window.show_page("topology"))


def _runs(window: MainWindow) -> RunsPage:
    return cast("RunsPage", window.show_page("runs"))


def _yard(state: str) -> str:
    return "eight" if state == "many" else state


def _strategies(window: MainWindow, camera: Camera) -> None:
    """Takes screenshots of the editor with a design for every strategy, and of a run that shows all parts of a step."""
    page = _topology(window)
    for kind in PRESETS:
        page.files.begin(design_of(kind))
        page.view.fit()
        camera.take(window, f"strategy-{kind.value}")
    acting = begin_live_run(_wiring(window), "eight", design_of(StrategyKind.DOWNPOUR))
    runs = _runs(window)
    feed_run(runs, acting, lambda: _settle(FOLLOWED_WITHIN_MS), STEP, SERVED)
    views = runs.bar.views.set_value
    for view in ("canvas", "table", "plots"):
        views(view)
        runs.run_view.choose(["worker-3"])
        if view == "plots":
            runs.run_view.plots.choice.set_value("step")
        camera.take(window, f"strategy-run-{view}")
    views("table")
    runs.run_view.choose(["ps-1"])
    camera.take(window, "strategy-run-server")


def _launch(window: MainWindow, camera: Camera) -> None:
    """Takes screenshots of the launch panel over the Topology page."""
    window.show_page("topology")
    for name, panel in phases(_wiring(window)):
        camera.take(window, f"launch-{name}", over=panel)


def _wiring(window: MainWindow) -> WindowConnections:
    wiring = window.findChild(WindowConnections)
    assert isinstance(wiring, WindowConnections)
    return wiring


@contextmanager
def _window(state: str) -> Iterator[MainWindow]:
    """Opens a window on sample hosts, none of which is contacted."""
    with tempfile.TemporaryDirectory(prefix="torchyard-pictures-") as folder:
        home, fleet_file, file = write_sample(Path(folder), state)
        window = make_window(home, fleet_file, file)
        wiring = _wiring(window)
        window.painted.disconnect()  # The tasks after the first paint would contact hosts.
        wiring.runs.refresh = lambda: None  # type: ignore[method-assign]  # pictures only: no host is asked
        let_hosts_answer(wiring.fleet)
        window.make_pages()
        QCursor.setPos(10_000, 10_000)  # With the pointer over the window, the first button would be drawn as hovered.
        window.show()
        _settle()
        try:
            yield window
        finally:
            wiring.document.start_new()  # A new document has no unsaved changes to ask about.
            window.close()
            window.deleteLater()
            QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


def _prepare(page: object, key: str) -> None:
    """Selects an item on pages that show a selection."""
    if key == "topology" and hasattr(page, "editor"):
        page.editor.select([f"worker-{index}" for index in (1, 2, 5)])
    if key == "runs" and hasattr(page, "show_run"):
        page.show_run(FAILED_RUN)  # A failed run shows more than a successful one.


def _settle(for_ms: int = SETTLE_MS) -> None:
    """Processes events and jobs for some time."""
    enough = QTimer()
    enough.setSingleShot(True)
    enough.start(for_ms)
    while enough.isActive():
        QApplication.processEvents(QEventLoop.ProcessEventsFlag.WaitForMoreEvents)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="screenshots", description="Draws every page of the window into PNGs.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("screenshots"), metavar="FOLDER")
    everything = ",".join((*PAGES, "bookings", "strategies", "live", "launch"))
    parser.add_argument("--pages", default=everything, help=f"of {everything} (default: all)")
    parser.add_argument("--states", default=",".join(STATES), help="of empty, one, eight")
    parser.add_argument("--sizes", default=",".join(SIZES))
    return parser


if __name__ == "__main__":
    sys.exit(main())
