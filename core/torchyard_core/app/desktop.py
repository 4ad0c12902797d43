"""The files, hosts and calendar that a use case works with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchyard_core.booking.calendar_factory import calendar_of, zone_for
from torchyard_core.home import Home
from torchyard_core.launch.runs.history import History
from torchyard_core.user_settings import read_user_settings

if TYPE_CHECKING:
    from torchyard_core.booking.sync.cached_calendar import Calendar
    from torchyard_core.fleet.fleet import Fleet


@dataclass(frozen=True)
class Desktop:
    """One desktop's access to its fleet, its calendar and its history of runs."""

    home: Home
    fleet: Fleet
    calendar: Calendar
    zone: str
    """Time zone of the times that the user reads and writes."""

    @classmethod
    def open(cls, home: Home, fleet: Fleet) -> Desktop:
        """Opens the calendar of the user settings. Raises FileProblem, UsageError, Refused."""
        settings = read_user_settings(home.settings_file)
        return cls(home, fleet, calendar_of(home, settings), zone_for(settings))

    @property
    def history(self) -> History:
        """The runs that this desktop has launched."""
        return History(self.home.history)
