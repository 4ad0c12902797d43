"""Where pages meet: makes the models and pages of a window, and joins their signals. Pages never know each other."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from PySide6.QtCore import QObject, QTimer

from torchyard_core.booking.zones import zone_of
from torchyard_core.home import Home
from torchyard_core.launch.runs import is_over
from torchyard_core.topology.document import TopologyDocument
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.login_questions import LoginQuestions
from torchyard_gui.windows.examples import example_file
from torchyard_gui.windows.first_steps import FirstSteps
from torchyard_gui.windows.fleet_words import fleet_texts, gpu_text
from torchyard_gui.windows.login_dialog import LoginAsker
from torchyard_gui.windows.main_window import MainWindow

if TYPE_CHECKING:
    from torchyard_core.topology.file import TopologyFile
    from torchyard_gui.bookings.page import BookingsPage
    from torchyard_gui.bridge.bookings_model import BookingsModel
    from torchyard_gui.bridge.calendar_exchange import CalendarExchange
    from torchyard_gui.bridge.runs_model import RunsModel
    from torchyard_gui.fleet.page import FleetPage
    from torchyard_gui.launch.panel import LaunchPanel
    from torchyard_gui.runs.page import RunsPage
    from torchyard_gui.topology.page import TopologyPage

PLANNED = timedelta(hours=8)
"""For so long a topology is thought to need its GPUs: "now, 8 h"."""
SAY_AFTER_MS = 50
"""Hosts answer in bursts; the status line is written once for each."""


class Wiring(QObject):
    """One window's models and pages. Lives as long as the window."""

    def __init__(self, window: MainWindow, home: Home, fleet_file: Path) -> None:
        super().__init__(window)
        self.window = window
        self.home = home
        self.fleet = FleetModel(home, fleet_file, self, LoginQuestions(self))
        self.login_asker = LoginAsker(window, self.fleet.questions)
        self.document = TopologyDocument()
        self._live_runs: set[str] = set()
        self._say_soon = QTimer(self)
        self._say_soon.setSingleShot(True)
        self._say_soon.setInterval(SAY_AFTER_MS)
        self._say_soon.timeout.connect(self._say_fleet)
        self.fleet.hosts_changed.connect(self._say_soon.start)
        self.fleet.host_changed.connect(self._host_changed)

        window.add_page("topology", self.tr("Topology"), "topology", self._make_topology)
        window.add_page("fleet", self.tr("Fleet"), "fleet", self._make_fleet)
        window.add_page("runs", self.tr("Runs"), "runs", self._make_runs)
        window.add_page("bookings", self.tr("Bookings"), "calendar", self._make_bookings)
        window.painted.connect(self._after_first_paint)
        window.closed.connect(self._close)
        window.file_dropped.connect(self.open_file)
        window.example_wanted.connect(self.open_example)
        window.actions_.open_example.setVisible(example_file() is not None)
        self.document.path_changed.connect(self._name_window)
        self.document.changed.connect(self._name_window)
        self._say_fleet()
        self._name_window()

    # -- pages and models

    @cached_property
    def runs(self) -> RunsModel:
        """Made when first wanted: the history is read then."""
        from torchyard_gui.bridge.runs_model import RunsModel

        model = RunsModel(self.home, self.fleet, self)
        model.runs_changed.connect(self._runs_changed)
        return model

    @cached_property
    def bookings(self) -> BookingsModel:
        """Made when first wanted. Opens no database before the page is shown."""
        from torchyard_gui.bridge.bookings_model import BookingsModel

        model = BookingsModel(self.home, self.fleet, self)
        model.changed.connect(self._lay_bookings_over)
        return model

    @cached_property
    def exchange(self) -> CalendarExchange:
        """Made where there is a calendar to speak of."""
        from torchyard_gui.bridge.calendar_exchange import CalendarExchange

        return CalendarExchange(self.home, self.fleet, self.bookings)

    def _lay_bookings_over(self) -> None:
        """GPUs that others have booked for the coming hours are taken, on the Topology page too."""
        seen, now = self.bookings.seen, self.bookings.now
        zone = zone_of(seen.zone)
        booked = {}
        for booking in sorted(seen.bookings, key=lambda one: one.start, reverse=True):
            if booking.is_live and booking.owner != seen.person and booking.start < now + PLANNED and booking.end > now:
                start, end = f"{booking.start.astimezone(zone):%H:%M}", f"{booking.end.astimezone(zone):%H:%M}"
                words = self.tr("{owner} (booked {start} to {end})")
                booked |= dict.fromkeys(booking.gpus, words.format(owner=booking.owner, start=start, end=end))
        self.fleet.set_booked(booked)

    def _runs_changed(self) -> None:
        """A run that has ended lets go of its booking."""
        live = {run.run_id for run in self.runs.runs if not is_over(run.state)}
        if self._live_runs - live and "exchange" in self.__dict__:
            self.exchange.changed()
        self._live_runs = live

    @cached_property
    def launch_panel(self) -> LaunchPanel:
        """Made when something is first launched."""
        from torchyard_gui.launch.panel import LaunchPanel
        from torchyard_gui.windows.closing import LaunchBeforeClosing

        panel = LaunchPanel(self.fleet, self.window)
        self.window.before_closing.append(LaunchBeforeClosing(self.window, panel).may_close)
        panel.run_started.connect(self._open_run)
        panel.trust_requested.connect(self._trust)
        cast("FleetPage", self.window.page("fleet")).trusted.connect(panel.trusted)
        return panel

    def _make_topology(self) -> TopologyPage:
        from torchyard_gui.topology.page import TopologyPage

        page = TopologyPage(
            self.fleet, self.window.settings, document=self.document, recovery_folder=self.home.path / "recovery"
        )
        page.launch_requested.connect(self._launch)
        FirstSteps(page.view, self.document, self.window.actions_.open_example)
        return page

    def _make_fleet(self) -> FleetPage:
        from torchyard_gui.fleet.page import FleetPage

        return FleetPage(self.fleet)

    def _make_runs(self) -> RunsPage:
        from torchyard_gui.runs.page import RunsPage

        page = RunsPage(self.runs)
        page.edit_copy.connect(self._edit_copy)
        page.launch_wanted.connect(self._show_topology)
        return page

    def _make_bookings(self) -> BookingsPage:
        from torchyard_gui.bookings.page import BookingsPage

        return BookingsPage(self.bookings)

    # -- from page to page

    def open_file(self, path: Path) -> None:
        """Show a topology file; what is wrong with it is told on the page."""
        self._show_topology().open(path)

    def open_example(self) -> None:
        """Open the example that comes with the source."""
        if (path := example_file()) is not None:
            self.open_file(path)

    def _show_topology(self) -> TopologyPage:
        return cast("TopologyPage", self.window.show_page("topology"))

    def _edit_copy(self, text: str) -> None:
        """What a run ran, as a new topology."""
        self._show_topology().edit_copy(text)

    def _launch(self, source: TopologyFile) -> None:
        """The panel shows how it goes, and opens the run once that is on its way."""
        self.launch_panel.launch(source)

    def _open_run(self, run_id: str) -> None:
        cast("RunsPage", self.window.show_page("runs")).show_run(run_id)
        self.fleet.check()  # the launch has put agents where there were none

    def _trust(self, host: str) -> None:
        """Shows a host's key over whatever page is shown; the launch goes on once it is vouched for."""
        cast("FleetPage", self.window.page("fleet")).trust(host)

    # -- the window's own texts

    def _host_changed(self, name: str) -> None:
        self._say_soon.start()

    def _say_fleet(self) -> None:
        self.window.say_fleet(fleet_texts(self.fleet), gpu_text(self.fleet))

    def _name_window(self) -> None:
        self.window.setWindowTitle(f"{self.document.name}[*] – Torchyard")
        self.window.setWindowModified(self.document.is_modified)

    # -- beginning and end

    def _after_first_paint(self) -> None:
        """What takes long begins when there is something to look at."""
        self.window.make_pages()
        self.fleet.check()
        if self.home.settings_file.exists() or self.home.bookings_file.exists():
            self.bookings.show(self.bookings.now, self.bookings.now + PLANNED)
            self.exchange.start()

    def _close(self) -> None:
        self._say_soon.stop()
        if self.window.has_page("runs"):
            cast("RunsPage", self.window.page("runs")).close_feeds()
        self.document.changed.disconnect(self._name_window)
        self.document.path_changed.disconnect(self._name_window)
        if "launch_panel" in self.__dict__:
            self.launch_panel.close_launch()
        if self.window.has_page("bookings"):
            cast("BookingsPage", self.window.page("bookings")).close_page()
        if "exchange" in self.__dict__:
            self.exchange.close()
        if "bookings" in self.__dict__:
            self.bookings.close()
        if "runs" in self.__dict__:
            self.runs.close()
        self.fleet.close()
