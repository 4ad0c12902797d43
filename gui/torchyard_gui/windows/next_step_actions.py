"""Performs next steps in the window. There is a function for each kind of next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from torchyard_core import next_steps as steps
from torchyard_core.booking.planned_time import parse_planned_time
from torchyard_core.booking.time_parser import length
from torchyard_core.errors import TorchyardError
from torchyard_core.problems import Problem
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.planner.planning_place import PlanningPlace
from torchyard_gui.bridge.planning_time import PlanningTime
from torchyard_gui.widgets.next_steps import error_text
from torchyard_gui.windows.main_window import MainWindow

if TYPE_CHECKING:
    from torchyard_gui.bookings.page import BookingsPage
    from torchyard_gui.fleet.page import FleetPage
    from torchyard_gui.runs.page import RunsPage
    from torchyard_gui.sweeps.page import SweepsPage
    from torchyard_gui.topology.page import TopologyPage


class NextStepActions:
    """Performs next steps. Most steps show a page and perform an action of that page."""

    def __init__(self, window: MainWindow, fleet: FleetModel, planning: PlanningTime, place: PlanningPlace) -> None:
        self._window = window
        self._fleet = fleet
        self._planning = planning
        self._place = place
        # The parameter type is Any, because each function accepts only the type of step under which it is stored.
        self.actions: dict[type[steps.NextStep], Callable[[Any], object]] = {
            steps.DeployAgent: self._deploy,
            steps.TrustKey: lambda step: cast("FleetPage", window.page("fleet")).trust(step.host),
            steps.CheckHosts: self._check,
            steps.AddHost: lambda step: self._hosts.add_host("" if step == steps.AddHost() else step.host),
            steps.RemoveHost: lambda step: self._hosts.remove_hosts(step.host),
            steps.SetHostField: lambda step: self._hosts.edit_hosts(step.host, field=step.field),
            steps.ShowHosts: lambda step: self._hosts,
            steps.LaunchTopology: lambda step: self._topology,
            steps.SendSecrets: lambda step: self._topology,
            steps.LaunchAt: self._plan,
            steps.LaunchWithBooking: lambda step: self._topology.bar.when.open(),
            steps.ValidateTopology: lambda step: self._topology.problems.set_open(True),
            steps.ProfileScript: lambda step: self._topology.profile(),
            steps.ImportDocument: lambda step: self._topology.foreign.ask_import(),
            steps.SetField: self._show_field,
            steps.ListRuns: lambda step: self._runs,
            steps.StopRun: lambda step: self._runs.stop_run(step.run_id),
            steps.ShowSweep: lambda step: self._sweeps.show_sweep(step.run_id),
            steps.ResumeSweep: lambda step: self._sweeps.show_sweep(step.run_id),
            steps.WriteTrial: lambda step: self._sweeps.show_sweep(step.run_id),
            steps.ShowLogs: lambda step: self._runs.show_logs(step.run_id),
            steps.BookGpus: self._book,
            steps.ChangeBooking: lambda step: self._bookings.show_booking(step.booking_id),
            steps.ListBookings: lambda step: self._bookings,
            steps.ShowRules: lambda step: self._bookings.dialogs.rules(),
            steps.JoinWaitlist: lambda step: self._bookings.show_waitlist(),
            steps.SetUpTeam: lambda step: self._bookings.dialogs.team_calendar(),
        }

    def take(self, step: steps.NextStep) -> None:
        self._window.activateWindow()
        self.actions[type(step)](step)

    @property
    def _topology(self) -> TopologyPage:
        return cast("TopologyPage", self._window.show_page("topology"))

    @property
    def _hosts(self) -> FleetPage:
        return cast("FleetPage", self._window.show_page("fleet"))

    @property
    def _runs(self) -> RunsPage:
        return cast("RunsPage", self._window.show_page("runs"))

    @property
    def _sweeps(self) -> SweepsPage:
        return cast("SweepsPage", self._window.show_page("sweeps"))

    @property
    def _bookings(self) -> BookingsPage:
        return cast("BookingsPage", self._window.show_page("bookings"))

    def _deploy(self, step: steps.DeployAgent) -> None:
        self._hosts.list.choose(step.host)
        self._fleet.deploy([step.host])

    def _check(self, step: steps.CheckHosts) -> None:
        clusters = [cluster for cluster in self._place.clusters if cluster.name in step.hosts]
        for cluster in clusters:
            self._place.check(cluster)
        hosts = [host for host in step.hosts if all(cluster.name != host for cluster in clusters)]
        if clusters and not hosts:
            return
        page = self._hosts
        for host in hosts[:1]:
            page.list.choose(host)
        self._fleet.check(hosts or None)

    def _plan(self, step: steps.LaunchAt) -> None:
        planning = self._planning
        try:
            planning.choose(parse_planned_time(step.start, step.length, planning.zone, planning.now))
        except TorchyardError as error:  # The planned time may have passed since the step was offered.
            self._window.say(error_text(error), urgent=True)
        self._topology  # noqa: B018 - shows the page

    def _book(self, step: steps.BookGpus) -> None:
        # The dialog itself parses the names of GPUs, so the calendar need not be loaded.
        self._bookings.dialogs.book((step.gpus,), length(step.length))

    def _show_field(self, step: steps.SetField) -> None:
        self._topology.jump_to(Problem("error", "", "", path=step.path))
