"""Creates the models and pages of a window and connects their signals, so that pages do not depend on each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from PySide6.QtCore import QObject, QTimer

from torchyard_core.booking.model import cluster_of
from torchyard_core.booking.planned_time import PlannedTime, from_text
from torchyard_core.errors import FileProblem
from torchyard_core.home import Home
from torchyard_core.topology.document.topology_document import TopologyDocument
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.login_questions import LoginQuestions
from torchyard_gui.bridge.planner.planning_place import PlanningPlace
from torchyard_gui.bridge.planning_time import PlanningTime
from torchyard_gui.windows.fleet_summary import fleet_texts, gpu_text
from torchyard_gui.windows.login_dialog import LoginAsker
from torchyard_gui.windows.main_window import MainWindow
from torchyard_gui.windows.welcome import OpenExampleButton, example_file
from torchyard_gui.windows.window_session import SessionState, WindowSession

if TYPE_CHECKING:
    from torchyard_core.booking.model import Booking
    from torchyard_core.booking.store import BookingStore
    from torchyard_core.next_steps import NextStep
    from torchyard_core.sweeps.search_file import SearchFile
    from torchyard_core.topology.document.topology_document import DocumentState
    from torchyard_core.topology.file import TopologyFile
    from torchyard_gui.bookings.booking_reminder import BookingReminder
    from torchyard_gui.bookings.page import BookingsPage
    from torchyard_gui.bridge.bookings_model import BookingsModel
    from torchyard_gui.bridge.calendar_sync_thread import CalendarSyncThread
    from torchyard_gui.bridge.planner.exchange_facts import ExchangeSource
    from torchyard_gui.bridge.runs_model import RunsModel
    from torchyard_gui.bridge.settings_model import SettingsModel
    from torchyard_gui.fleet.dialogs.removal_dialogs import RemoveHostsDialog
    from torchyard_gui.fleet.page import FleetPage
    from torchyard_gui.launch.panel import LaunchPanel
    from torchyard_gui.runs.page import RunsPage
    from torchyard_gui.sweeps.page import SweepsPage
    from torchyard_gui.sweeps.search_form.dialog import SearchDialog
    from torchyard_gui.topology.page import TopologyPage
    from torchyard_gui.windows.absence_report import AbsenceReport

SAY_AFTER_MS = 50
"""Delay in milliseconds after a host's answer, so that a burst of answers updates the status bar only once."""


AHEAD = timedelta(days=400)
"""How far ahead the user's bookings of a cluster's nodes are counted before the cluster is removed."""


class SignalConnections(QObject):
    """The models and pages of one window, with the connections between them."""

    def __init__(self, window: MainWindow, home: Home, fleet_file: Path) -> None:
        super().__init__(window)
        self.window = window
        self.home = home
        self.fleet = FleetModel(home, fleet_file, self, LoginQuestions(self))
        self.login_asker = LoginAsker(window, self.fleet.questions)
        self.document = TopologyDocument()
        self.planning = PlanningTime(self.fleet, self._calendar, from_text(window.settings.planned), self)
        self.planning.chosen.connect(self._keep_planned)
        self.place = PlanningPlace(self.fleet, window.settings.place, self)
        self.place.chosen.connect(self._keep_place)
        self._live_runs: set[str] = set()
        self._live_bookings: tuple[Booking, ...] = ()
        self._topology_file: tuple[tuple[DocumentState, Path | None], TopologyFile | None] | None = None
        """The last result of `_open_topology`, with the document's state and path from which it was made. None before
        the first call.
        """
        self._say_soon = QTimer(self, singleShot=True, interval=SAY_AFTER_MS)
        self._say_soon.timeout.connect(self._say_fleet)
        self.fleet.hosts_changed.connect(self._say_soon.start)
        self.fleet.host_changed.connect(self._host_changed)
        self.fleet.clusters.changed.connect(self._cluster_changed)

        window.add_page("topology", self.tr("Topology"), "topology", self._make_topology)
        window.add_page("fleet", self.tr("Fleet"), "fleet", self._make_fleet)
        window.add_page("runs", self.tr("Runs"), "runs", self._make_runs)
        window.add_page("bookings", self.tr("Bookings"), "calendar", self._make_bookings)
        window.add_page("sweeps", self.tr("Sweeps"), "sweeps", self._make_sweeps)
        window.painted.connect(self._after_first_paint)
        window.closed.connect(self._close)
        window.file_dropped.connect(self.open_file)
        window.example_wanted.connect(self.open_example)
        window.step_wanted.connect(self._take_step)
        window.settings_wanted.connect(self.open_settings)
        window.actions_.open_example.setVisible(example_file() is not None)
        self.document.path_changed.connect(self._name_window)
        self.document.changed.connect(self._name_window)
        self.session = WindowSession(home.path / "session.json", self._session_state, self)
        self._answering: set[str] = set(self.session.before.hosts if self.session.before is not None else ())
        """Hosts that answered at their last check, in this window or the previous one."""
        for signal in (window.page_shown, self.document.path_changed):
            signal.connect(self.session.changed)
        self._say_fleet()
        self._name_window()

    @cached_property
    def settings(self) -> SettingsModel:
        """The model of the user's settings. It is created on first use, and follows changes of the settings file."""
        from torchyard_gui.bridge.settings_model import SettingsModel

        model = SettingsModel(self.home, self)
        self._calendar_settings = _calendar_settings(model)
        model.changed.connect(self._settings_changed)
        return model

    def open_settings(self) -> None:
        """Opens the settings dialog."""
        from torchyard_gui.windows.settings_dialog import SettingsDialog

        self.settings.reload()
        dialog = SettingsDialog(self.settings, self.window)
        dialog.mode_wanted.connect(self.window.actions_.choose_mode)
        dialog.hosts_wanted.connect(lambda: self.window.show_page("fleet"))
        dialog.calendar_wanted.connect(self._show_team_calendar)
        dialog.open()

    def _show_team_calendar(self) -> None:
        cast("BookingsPage", self.window.show_page("bookings")).dialogs.team_calendar()

    def _settings_changed(self) -> None:
        """Reopens the calendar if the settings that determine it have changed."""
        before, self._calendar_settings = self._calendar_settings, _calendar_settings(self.settings)
        if before != self._calendar_settings and "bookings" in self.__dict__:
            self.bookings.reopen()

    @cached_property
    def runs(self) -> RunsModel:
        """The model of the runs. It is created on first use, and then reads the history."""
        from torchyard_gui.bridge.runs_model import RunsModel
        from torchyard_gui.windows.run_notifications import RunNotifications

        model = RunsModel(self.home, self.fleet, self)
        absence = self.absence
        if absence is not None:
            model.runs_changed.connect(lambda: absence.take_runs(model.runs))
            absence.take_runs(model.runs)
        is_reported = absence.has_reported if absence is not None else lambda run_id: False
        notifications = RunNotifications(model, self._shown_run, self.window, is_reported)
        notifications.wanted = lambda: self.settings.settings.notifications
        model.runs_changed.connect(notifications.refresh)
        model.runs_changed.connect(self._runs_changed)
        return model

    @cached_property
    def bookings(self) -> BookingsModel:
        """The model of the bookings. It is created on first use."""
        from torchyard_gui.bridge.bookings_model import BookingsModel

        model = BookingsModel(self.home, self.fleet, self)
        model.changed.connect(self._bookings_changed)
        return model

    @cached_property
    def exchange(self) -> CalendarSyncThread:
        """The synchronisation of the calendar with the agents. It is created on first use."""
        from torchyard_gui.bridge.calendar_sync_thread import CalendarSyncThread

        return CalendarSyncThread(self.home, self.fleet, self.bookings)

    @cached_property
    def absence(self) -> AbsenceReport | None:
        """The report of what happened since the last window was open. None if the state of the last window contains no
        live run and no host.
        """
        before = self.session.before
        if before is None or not (before.live_runs or before.hosts):
            return None
        from torchyard_gui.windows.absence_report import AbsenceReport

        made = AbsenceReport(before, self)
        made.run_wanted.connect(self._show_run)
        made.fleet_wanted.connect(lambda: self.window.show_page("fleet"))
        self.window.add_bar_above(made.bar)
        return made

    @cached_property
    def reminder(self) -> BookingReminder:
        from torchyard_gui.bookings.booking_reminder import BookingReminder

        made = BookingReminder(self.bookings, self._booked_by_runs, self._show_booking, self.window.say, self)
        self.window.add_bar_above(made.bar)
        return made

    def _calendar(self) -> BookingsModel | None:
        """Returns the model of the bookings, or None if the user has no calendar. If the result is None, no database
        may be opened.
        """
        if "bookings" in self.__dict__ or self.home.settings_file.exists() or self.home.bookings_file.exists():
            return self.bookings
        return None

    def _use_calendar(self) -> None:
        """Starts loading the calendar and synchronising it with the agents. Does nothing if the user has no
        calendar.
        """
        if self._calendar() is None:
            return
        self.planning.begin()
        if "exchange" not in self.__dict__:
            self.exchange.start()

    def _bookings_changed(self) -> None:
        """Updates the planned time after a change of the bookings.

        If active or future bookings have changed, also synchronises the calendar with agents.
        """
        self.planning.refresh()
        # Unchanged bookings are the same objects as before, so this comparison is fast.
        live = tuple(one for one in self.bookings.seen.bookings if one.is_live)
        if live != self._live_bookings:
            self._live_bookings = live
            self._use_calendar()
            self.exchange.changed()
            self.reminder.refresh()

    def _keep_planned(self, planned: PlannedTime) -> None:
        self.window.settings.planned = planned.to_text()

    def _keep_place(self, place: str) -> None:
        self.window.settings.place = place

    def _booked_by_runs(self) -> set[str]:
        made_for = {one.id for one in self.bookings.seen.bookings if one.run_id in self._live_runs}
        return made_for | {run.booking for run in self.runs.runs if run.run_id in self._live_runs and run.booking}

    def _run_on(self, booking: Booking) -> str:
        """Returns the ID of the newest run that uses a booking.

        If no run uses the booking, returns the ID of the run for which the booking was made, or "" if it was not made
        for a run.
        """
        known = (run.run_id for run in self.runs.runs if run.booking == booking.id)
        return next(known, booking.run_id or "")

    def _runs_changed(self) -> None:
        """Updates the session and the reminder. Called when the list of runs or the state of a run has changed.

        If a live run has ended, also synchronises the calendar, and discards the cached gradient sizes of earlier runs.
        """
        live = {run.run_id for run in self.runs.runs if not run.has_ended}
        if self._live_runs - live:
            self.exchange_source.forget()
        if self._live_runs - live and "exchange" in self.__dict__:
            self.exchange.changed()
        self._live_runs = live
        self.session.changed()
        if "reminder" in self.__dict__:
            self.reminder.refresh()

    @cached_property
    def launch_panel(self) -> LaunchPanel:
        """The launch panel. It is created on first use."""
        from torchyard_gui.launch.panel import LaunchPanel
        from torchyard_gui.windows.close_confirmation import CloseConfirmation

        panel = LaunchPanel(self.fleet, self.window)
        self.window.before_closing.append(CloseConfirmation(self.window, panel, panel.bring_to_front).may_close)
        panel.run_started.connect(self._open_run)
        panel.sweep_started.connect(self._open_sweep)
        panel.trust_requested.connect(self._trust)
        cast("FleetPage", self.window.page("fleet")).trusted.connect(panel.trusted)
        return panel

    @cached_property
    def search_dialog(self) -> SearchDialog:
        """The dialog *New sweep*. It is created on first use."""
        from torchyard_gui.sweeps.search_form.dialog import SearchDialog

        dialog = SearchDialog(self._open_topology, self.window, self.place.place_for)
        dialog.launch_wanted.connect(self._launch_sweep)
        dialog.arguments_wanted.connect(lambda words: self._topology_page().add_arguments(words))
        dialog.discarded.connect(self.window.close)
        self.document.changed.connect(self._show_topology_in_dialog)
        self.document.path_changed.connect(self._show_topology_in_dialog)
        self.place.changed.connect(self._show_topology_in_dialog)
        self.window.before_closing.append(dialog.may_close)
        return dialog

    def _show_topology_in_dialog(self) -> None:
        """Validates the visible form of a new sweep against the changed topology."""
        if self.search_dialog.isVisible():
            self.search_dialog.topology_changed()

    @cached_property
    def exchange_source(self) -> ExchangeSource:
        """Provides the gradient sizes of earlier runs and the measured bandwidths. The sizes are read again after a run
        has ended.
        """
        from torchyard_gui.bridge.planner.exchange_facts import ExchangeSource

        return ExchangeSource(self.fleet)

    def _make_topology(self) -> TopologyPage:
        from torchyard_gui.bridge.planner.advice_source import AdviceSource
        from torchyard_gui.topology.page import TopologyPage

        page = TopologyPage(
            self.fleet,
            self.window.settings,
            document=self.document,
            recovery_folder=self.home.path / "recovery",
            planning=self.planning,
            place=self.place,
        )
        page.exchange_facts = self.exchange_source.facts
        page.advisor = AdviceSource(self.fleet)
        page.launch_requested.connect(self._launch)
        page.sweep_requested.connect(self.new_sweep)
        OpenExampleButton(page.view, self.document, self.window.actions_.open_example)
        return page

    def _make_fleet(self) -> FleetPage:
        from torchyard_gui.fleet.page import FleetPage

        page = FleetPage(self.fleet)
        page.trusted.connect(self._trusted)
        page.count_bookings = self._count_bookings
        return page

    def _count_bookings(self, dialog: RemoveHostsDialog, clusters: Sequence[str]) -> None:
        """Shows in a removal dialog the number of the user's current and future bookings of nodes of the clusters."""
        bookings = self._calendar()
        if bookings is None:
            return

        def count(store: BookingStore) -> int:
            now = store.now()
            own = store.bookings(now, now + AHEAD, owner=store.person, live=True)
            return sum(any(cluster_of(gpu) in clusters for gpu in one.gpus) for one in own)

        bookings.ask(count, dialog.show_bookings, lambda error: None, dialog)

    def _make_runs(self) -> RunsPage:
        from torchyard_gui.runs.page import RunsPage
        from torchyard_gui.windows.close_confirmation import CloseConfirmation

        page = RunsPage(self.runs)
        closing = CloseConfirmation(self.window, page.restarting, lambda: self.window.show_page("runs"))
        self.window.before_closing.append(closing.may_close)
        page.list.selectionModel().currentChanged.connect(self.session.changed)
        page.edit_copy.connect(self._edit_copy)
        page.launch_wanted.connect(self._show_topology)
        page.booking_wanted.connect(self._show_booking)
        return page

    def _make_bookings(self) -> BookingsPage:
        from torchyard_gui.bookings.page import BookingsPage

        page = BookingsPage(self.bookings)
        page.run_on = self._run_on
        page.has_live_run = lambda booking: booking.id in self._booked_by_runs()
        page.run_wanted.connect(self._show_run)
        return page

    def _make_sweeps(self) -> SweepsPage:
        from torchyard_gui.bridge.sweeps_model import SweepsModel
        from torchyard_gui.sweeps.page import SweepsPage
        from torchyard_gui.windows.close_confirmation import CloseConfirmation

        page = SweepsPage(SweepsModel(self.runs, self))
        closing = CloseConfirmation(self.window, page.resuming, lambda: self.window.show_page("sweeps"))
        self.window.before_closing.append(closing.may_close)
        page.edit_copy.connect(self._edit_copy)
        page.new_wanted.connect(self.new_sweep)
        return page

    def restore_session(self) -> None:
        """Restores the file, page, run and unsaved work of the last window.

        If there was no last window, opens the Topology page.
        """
        before = self.session.before
        topology = self._show_topology()
        if before is not None:
            topology.restore(before.file)
            if before.page in self.window.keys:
                page = self.window.show_page(before.page)
                if before.page == "runs" and before.run:
                    cast("RunsPage", page).show_run(before.run)

    def _session_state(self) -> SessionState:
        runs = cast("RunsPage", self.window.page("runs")) if self.window.has_page("runs") else None
        before = self.session.before
        if runs is None:
            run, live = (before.run, before.live_runs) if before is not None else ("", ())
        else:
            run = runs.feed.run.run_id if runs.feed is not None else ""
            live = tuple(one.run_id for one in self.runs.runs if not one.has_ended)
        path = self.document.path
        known = {host.name for host in self.fleet.hosts}
        return SessionState(
            self.window.current,
            path.absolute() if path is not None else None,
            run,
            time.time(),
            live,
            tuple(sorted(self._answering & known)),
        )

    def _take_step(self, step: NextStep) -> None:
        from torchyard_gui.windows.next_step_actions import NextStepActions

        NextStepActions(self.window, self.fleet, self.planning, self.place).take(step)

    def open_file(self, path: Path) -> None:
        """Opens a topology file. The Topology page shows any errors."""
        self._show_topology().open(path)

    def open_example(self) -> None:
        """Opens the example topology, which is part of the source tree."""
        if (path := example_file()) is not None:
            self.open_file(path)

    def _show_topology(self) -> TopologyPage:
        return cast("TopologyPage", self.window.show_page("topology"))

    def _edit_copy(self, text: str) -> None:
        """Opens the topology of a run as a new document."""
        self._show_topology().edit_copy(text)

    def _launch(self, source: TopologyFile) -> None:
        """Starts a launch in the launch panel. Once the run has started, the Runs page shows the run."""
        self.launch_panel.launch(source, self.planning.planned, place=self.place.place_for(source.topology))

    def new_sweep(self) -> None:
        """Opens the form of a new sweep of the open topology."""
        self.search_dialog.start()

    def _launch_sweep(self, source: TopologyFile, search: SearchFile) -> None:
        """Starts the launch of a sweep in the launch panel. Once the sweep has started, the Sweeps page shows it."""
        place = self.place.place_for(source.topology)
        self.launch_panel.launch(source, self.planning.planned, search, place=place)

    def _open_sweep(self, run_id: str) -> None:
        self.search_dialog.launched()
        cast("SweepsPage", self.window.show_page("sweeps")).show_sweep(run_id)
        self._follow_launch()

    def _topology_page(self) -> TopologyPage:
        return cast("TopologyPage", self.window.page("topology"))

    def _open_topology(self) -> TopologyFile | None:
        """Returns the open topology, or None if its text is not YAML."""
        page = self._topology_page()
        page.editor.settle()
        known = page.document.state, page.document.path
        if self._topology_file is None or self._topology_file[0] != known:
            try:
                self._topology_file = known, page.as_file()
            except FileProblem:
                self._topology_file = known, None
        return self._topology_file[1]

    def _open_run(self, run_id: str) -> None:
        self._show_run(run_id)
        self._follow_launch()

    def _follow_launch(self) -> None:
        self.fleet.check()  # The launch may have deployed agents.
        self._use_calendar()  # The launch may have made the first booking.
        if "bookings" in self.__dict__:
            self.bookings.reload()

    def _show_run(self, run_id: str) -> None:
        cast("RunsPage", self.window.show_page("runs")).show_run(run_id)
        if self.runs.run(run_id) is None:
            self.window.say(
                self.tr("The run {run} is not known on this computer. Asking its hosts …").format(run=run_id)
            )

    def _shown_run(self) -> str:
        """Returns the ID of the visible run, or "" if none is visible."""
        if self.window.current != "runs":
            return ""
        feed = cast("RunsPage", self.window.page("runs")).feed
        return feed.run.run_id if feed is not None else ""

    def _show_booking(self, booking_id: str) -> None:
        cast("BookingsPage", self.window.show_page("bookings")).show_booking(booking_id)

    def _trust(self, host: str) -> None:
        """Shows a host's key over the current page.

        A launch that waits for this key continues once the key is trusted.
        """
        cast("FleetPage", self.window.page("fleet")).trust(host)

    def _trusted(self, host: str) -> None:
        """Checks the clusters that had an error again, because the key that was just trusted may belong to a cluster or
        to its bastion.
        """
        for cluster in self.place.clusters:
            if self.place.status(cluster).error is not None:
                self.place.check(cluster)

    def _host_changed(self, name: str) -> None:
        self._say_soon.start()
        host = self.fleet.status(name)
        if host is None or host.doing is not None:
            return
        if host.answers:
            self._answering.add(name)
        elif host.check is not None or host.lost is not None:
            self._answering.discard(name)
        if self.absence is not None:
            self.absence.take_host(host)
        self.session.changed()

    def _cluster_changed(self, name: str) -> None:
        self._say_soon.start()

    def _say_fleet(self) -> None:
        self.window.set_fleet_texts(fleet_texts(self.fleet), gpu_text(self.fleet))

    def _name_window(self) -> None:
        self.window.setWindowTitle(f"{self.document.name}[*] — Torchyard")
        self.window.setWindowModified(self.document.is_modified)

    def _after_first_paint(self) -> None:
        """Starts slow work once the window is visible."""
        cast("TopologyPage", self.window.page("topology")).make_rest()
        self.window.make_pages()
        self.fleet.check()
        self.place.begin()
        self._use_calendar()
        self.settings.reload()
        self.session.start()
        if self.absence is not None:
            self.runs.refresh()

    def _close(self) -> None:
        self._say_soon.stop()
        self.session.close()
        self.planning.stop()
        if "settings" in self.__dict__:
            self.settings.close()
        if "reminder" in self.__dict__:
            self.reminder.stop()
        if self.window.has_page("runs"):
            cast("RunsPage", self.window.page("runs")).close_feeds()
        self.document.changed.disconnect(self._name_window)
        self.document.path_changed.disconnect(self._name_window)
        if "launch_panel" in self.__dict__:
            self.launch_panel.close_launch()
        if "search_dialog" in self.__dict__:
            self.document.changed.disconnect(self._show_topology_in_dialog)
            self.document.path_changed.disconnect(self._show_topology_in_dialog)
            self.search_dialog.hide()
        if self.window.has_page("bookings"):
            cast("BookingsPage", self.window.page("bookings")).close_page()
        if self.window.has_page("sweeps"):
            cast("SweepsPage", self.window.page("sweeps")).close_page()
        if "exchange" in self.__dict__:
            self.exchange.close()
        if "bookings" in self.__dict__:
            self.bookings.close()
        if "runs" in self.__dict__:
            self.runs.close()
        self.fleet.close()


def _calendar_settings(model: SettingsModel) -> tuple[str | None, ...]:
    """Returns the settings that determine which calendar is used and in which time zone its times are shown."""
    return model.settings.bookings_url, model.settings.person, model.settings.zone
