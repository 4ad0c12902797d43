"""The calendar of the user's settings: the team's database, else a private file in `TORCHYARD_HOME`."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from torchyard_core.booking.sync.cached_calendar import Calendar
from torchyard_core.booking.time_parser import local_zone, zone_of
from torchyard_core.home import Home
from torchyard_core.identity import login_name
from torchyard_core.user_settings import UserSettings


def calendar_of(home: Home, chosen: UserSettings) -> Calendar:
    """The calendar; its database is opened on first use."""
    url = chosen.bookings_url or f"sqlite:///{home.bookings_file.absolute()}"
    return Calendar(url, _role(chosen.bookings_url) or chosen.person or login_name(), home.bookings_seen)


def zone_for(chosen: UserSettings) -> str:
    """The zone of times that the user writes. Raises Refused for an unknown one."""
    return zone_of(chosen.zone).key if chosen.zone else local_zone()


def _role(url: str | None) -> str:
    """The role in the URL of a team's database; empty for a file."""
    try:
        return unquote(urlsplit(url).username or "") if url and not url.startswith("sqlite") else ""
    except ValueError:
        return ""  # an invalid URL is reported when it is opened
