"""The fleet, the calendar and the run history of one desktop, as used by the use cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from torchyard_core.booking.sync.cached_calendar import Calendar
from torchyard_core.booking.time_parser import local_zone, zone_of
from torchyard_core.home import Home
from torchyard_core.identity import login_name
from torchyard_core.launch.runs.history import History
from torchyard_core.user_settings import UserSettings, read_user_settings

if TYPE_CHECKING:
    from torchyard_core.fleet.fleet import Fleet


@dataclass(frozen=True)
class Desktop:
    """The fleet, the calendar and the run history of one desktop."""

    home: Home
    fleet: Fleet
    calendar: Calendar
    zone: str
    """The time zone in which the user reads and writes times."""

    @classmethod
    def open(cls, home: Home, fleet: Fleet) -> Desktop:
        """Opens the desktop with the calendar and the time zone that the settings name.

        Raises FileProblem, UsageError or Refused if the settings are invalid.
        """
        settings = read_user_settings(home.settings_file)
        return cls(home, fleet, calendar_of(home, settings), zone_for(settings))

    @property
    def history(self) -> History:
        """The history of the runs that this desktop has launched."""
        return History(self.home.history)


def calendar_of(home: Home, chosen: UserSettings) -> Calendar:
    """Returns the team's calendar if the settings name its database, otherwise the private one in the home folder.

    The calendar is opened at first use.
    """
    url = chosen.bookings_url or f"sqlite:///{home.bookings_file.absolute()}"
    return Calendar(url, _role(chosen.bookings_url) or chosen.person or login_name(), home.bookings_seen)


def zone_for(chosen: UserSettings) -> str:
    """Returns the time zone in the settings, by default this computer's. Raises Refused for an unknown zone."""
    return zone_of(chosen.zone).key if chosen.zone else local_zone()


def _role(url: str | None) -> str:
    """Returns the role in the URL of a team's database, or an empty string if the URL names none."""
    try:
        return unquote(urlsplit(url).username or "") if url and not url.startswith("sqlite") else ""
    except ValueError:
        return ""  # An invalid URL is ignored here because it is reported when the calendar is opened.
