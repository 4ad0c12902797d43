"""A store as the rest of Torchyard holds it, and how one is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine, text

from torchyard_core.booking.errors import BadUrl, NoRights, StoreTooNew
from torchyard_core.booking.store.change_feed import Watch, watch
from torchyard_core.booking.store.engine import (
    act_as,
    has_calendar,
    keep_connection,
    make_engine,
    parsed,
    place_of,
    transaction,
    upgrade,
)
from torchyard_core.booking.store.queries import Clock, system_clock
from torchyard_core.booking.store.tables import HEAD, KNOWN
from torchyard_core.booking.store.waitlist import Serving


class BookingStore(Serving):
    """Bookings in one database, for one person. Each method is a short transaction; any thread may call it."""

    def watch(self, on_change: Callable[[str], None]) -> Watch:
        """Calls `on_change` with what changed ("bookings", "rules", …; "all" after a reconnect), on a thread of its
        own, until the Watch is closed."""
        return watch(self._engine, on_change)

    def keep_connection(self, keeps: bool) -> None:
        """Whether a connection to a team's database stays open between calls: for a calendar that is not visible it
        need not. A file is left as it is."""
        if not self.is_private:
            keep_connection(self._engine, keeps)


def default_url(file: Path) -> str:
    """The address of a private file."""
    return f"sqlite:///{file}"


def open_store(url: str, person: str, *, clock: Clock = system_clock, own_time: bool = False) -> BookingStore:
    """Opens a store, making a private file where there is none. Raises BadUrl, StoreAway, StoreTooNew, NoRights.

    `person` counts in a private file only: in a team's database it is the role. With `own_time` a team's database goes
    by `clock` too, and not by its own.
    """
    address = parsed(url)
    engine = make_engine(address)
    try:
        if address.get_backend_name() == "sqlite":
            _prepare_file(engine)
            act_as(engine, person)
            return BookingStore(engine, person, True, clock)
        is_admin = _team(engine)
        return BookingStore(engine, str(address.username), is_admin, clock, own_time=own_time)
    except BaseException:  # Ctrl-C too: no connection stays open
        engine.dispose()
        raise


def _prepare_file(engine: Engine) -> None:
    file = Path(str(engine.url.database))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadUrl(f"the folder of {file} cannot be made: {error.strerror}", hint="Name another file.") from None
    with transaction(engine) as connection:
        version = has_calendar(connection)
    if version == HEAD:
        return
    with transaction(engine, writes=True) as connection:
        version = has_calendar(connection)  # another desktop may have been quicker
        if version is not None and version not in KNOWN:
            raise StoreTooNew(place_of(engine.url))
        if version != HEAD:
            upgrade(connection)


def _team(engine: Engine) -> bool:
    """Whether the role is an admin's. Raises where the calendar is not there, too new, too old, or closed to it."""
    place = place_of(engine.url)
    with transaction(engine) as connection:
        sees_schema = connection.execute(
            text("SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = 'torchyard'")
        ).scalar()
        if sees_schema is None:
            raise BadUrl(
                f"{place} has no calendar yet",
                hint="An admin of the database makes it: `torchyard bookings setup-team URL`.",
            )
        no_member = NoRights(
            f"your role `{engine.url.username}` is no member of the team in {place}",
            hint="Ask an admin of the team to add you: `torchyard bookings setup-team URL --member NAME`.",
        )
        if not sees_schema:
            raise no_member
        version = has_calendar(connection)
        if version is not None and version not in KNOWN:
            raise StoreTooNew(place)
        if version != HEAD:
            raise BadUrl(
                f"{place} was made by an older Torchyard, and has to be brought up to date",
                hint="An admin of the database does it: `torchyard bookings setup-team URL`.",
            )
        is_member, is_admin = connection.execute(text("SELECT torchyard.is_member(), torchyard.is_admin()")).one()
        if not is_member:  # of this team, though maybe of another in the same cluster
            raise no_member
        return bool(is_admin)
