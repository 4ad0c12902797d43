"""The bookings' database: SQLite or PostgreSQL over SQLAlchemy, which nothing else of ours imports."""

from torchyard_core.booking.store.moving import Moved, move_all
from torchyard_core.booking.store.store import BookingStore, default_url, open_store
from torchyard_core.booking.store.team import Member, TeamSetup, setup_team
from torchyard_core.booking.store.watch import Watch
from torchyard_core.booking.store.writing import Missed, Previewed, SeriesBooked

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
