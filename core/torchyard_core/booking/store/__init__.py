"""The bookings database: SQLite or PostgreSQL. Only this package imports SQLAlchemy."""

from torchyard_core.booking.store.booking_store import BookingStore, default_url, open_store
from torchyard_core.booking.store.change_feed import Watch
from torchyard_core.booking.store.commands import Missed, Previewed, SeriesBooked
from torchyard_core.booking.store.team_setup import Member, TeamSetup, setup_team
from torchyard_core.booking.store.transfer import Moved, move_all

__all__ = [
    "BookingStore",
    "Member",
    "Missed",
    "Moved",
    "Previewed",
    "SeriesBooked",
    "TeamSetup",
    "Watch",
    "default_url",
    "move_all",
    "open_store",
    "setup_team",
]
