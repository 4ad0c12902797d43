"""The bookings database in SQLite or PostgreSQL. Only this package imports SQLAlchemy."""

from torchyard_core.booking.store.booking_store import BookingStore, open_store
from torchyard_core.booking.store.change_feed import Watch
from torchyard_core.booking.store.commands import ImportVerdict, SeriesBooked, SkippedOccurrence
from torchyard_core.booking.store.database_engine import keep_password, parsed
from torchyard_core.booking.store.studies import copy_study, dashboard_url
from torchyard_core.booking.store.team_setup import Member, ServerFound, TeamSetup, find_server, setup_team
from torchyard_core.booking.store.transfer import transfer_all

__all__ = [
    "BookingStore",
    "ImportVerdict",
    "Member",
    "SeriesBooked",
    "ServerFound",
    "SkippedOccurrence",
    "TeamSetup",
    "Watch",
    "copy_study",
    "dashboard_url",
    "find_server",
    "keep_password",
    "open_store",
    "parsed",
    "setup_team",
    "transfer_all",
]
