"""The bookings database of a user, and functions that open it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from sqlalchemy import Engine, text

from torchyard_core.booking.errors import BadUrl, PermissionDenied, StoreTooNew
from torchyard_core.booking.model import NODE_PREFIX
from torchyard_core.booking.store.booking_writer import BookingWriter
from torchyard_core.booking.store.change_feed import Watch
from torchyard_core.booking.store.commands import BookingCommands
from torchyard_core.booking.store.conflict_queries import ConflictQueries
from torchyard_core.booking.store.database_engine import (
    act_as,
    close_engine,
    has_calendar,
    keep_connection,
    make_engine,
    parsed,
    place_of,
    recorded_as,
    transaction,
    upgrade,
)
from torchyard_core.booking.store.queries import BookingQueries
from torchyard_core.booking.store.store_session import Clock, StoreSession, system_clock
from torchyard_core.booking.store.tables import HEAD, KNOWN
from torchyard_core.booking.store.usage import UsageRecords
from torchyard_core.booking.store.waitlist import Waitlist
from torchyard_core.booking.store.write_transactions import WriteTransactions
from torchyard_core.next_steps import SetUpTeam


class BookingStore:
    """The bookings in one database, as seen by one user. The methods are thread-safe and use short transactions."""

    def __init__(
        self, engine: Engine, person: str, is_admin: bool, clock: Clock = system_clock, *, own_time: bool = False
    ):
        session = StoreSession(engine, person, is_admin, clock, own_time=own_time)
        self.session = session
        self.person, self.is_admin, self.unreadable = session.person, session.is_admin, session.unreadable
        self.is_private, self.place = session.is_private, session.place

        queries = self.queries = BookingQueries(session)
        self.now, self.slots, self.rules, self.logins = queries.now, queries.slots, queries.rules, queries.logins
        self.bookings, self.bookings_around = queries.bookings, queries.bookings_around
        self.bookings_named, self.bookings_near = queries.bookings_named, queries.bookings_near
        self.booking, self.series, self.history = queries.booking, queries.series, queries.history
        self.position, self.changes = queries.position, queries.changes
        self.busy, self.find, self.count = queries.busy, queries.find, queries.count
        self.snapshot, self.snapshot_revision = queries.snapshot, queries.snapshot_revision

        self.conflicts = ConflictQueries(session, queries)

        self.writer = BookingWriter(session, queries, self.conflicts)
        waitlist = self.waitlist = Waitlist(session, queries, self.writer)
        transactions = WriteTransactions(session, self.conflicts, waitlist)
        self.wait, self.waiting, self.stop_waiting = waitlist.wait, waitlist.waiting, waitlist.stop_waiting
        self.serve_waiting = transactions.serve_waiting

        commands = BookingCommands(session, queries, self.conflicts, self.writer, transactions)
        self.book, self.change, self.mark_active = commands.book, commands.change, commands.mark_active
        self.release = self.cancel = commands.release
        self.book_series, self.change_series = commands.book_series, commands.change_series
        self.cancel_series, self.refusal, self.preview = commands.cancel_series, commands.refusal, commands.preview
        self.remember_slots, self.set_rules = commands.remember_slots, commands.set_rules
        self.set_logins = commands.set_logins

        usage = UsageRecords(session, queries, self.writer, transactions)
        self.uses, self.record_use, self.usage = usage.uses, usage.record_use, usage.usage
        self.idle_evidence, self.record_idle = usage.idle_evidence, usage.record_idle
        self.apply_idle, self.soon_idle = usage.apply_idle, usage.soon_idle

    def in_the_name_of(self, cluster: str) -> AbstractContextManager[None]:
        """Records changes that this thread makes within the context as changes made in Slurm on `cluster`."""
        return recorded_as(f"{NODE_PREFIX}{cluster}")

    def close(self) -> None:
        close_engine(self.session.engine)

    def watch(self, on_change: Callable[[str], None]) -> Watch:
        """Starts a thread that calls `on_change` after changes to the database, until the Watch is closed.

        The argument is the changed table, such as "bookings" or "rules", or "all" after a new connection. For an SQLite
        file, it is always "all".
        """
        return Watch(self.session.engine, on_change)

    def keep_connection(self, keeps: bool) -> None:
        """Sets whether the connection to a team's database stays open between calls.

        Has no effect if the bookings are stored in a local file.
        """
        if not self.is_private:
            keep_connection(self.session.engine, keeps)


def open_store(
    url: str, person: str, *, clock: Clock = system_clock, own_time: bool = False, password: str = ""
) -> BookingStore:
    """Opens the bookings database. A private file is created if it is missing and upgraded if its schema is old.

    Args:
        url: The URL of the database.
        person: The user of a private file. In a team's database the role is the user.
        clock: The clock of this computer. It determines the current time for a private file.
        own_time: Whether `clock` also determines the current time for a team's database, instead of the database's
            clock.
        password: The password of the role. By default, libpq's own mechanisms and the keyring are used.

    Raises:
        BadUrl, StoreUnavailable, StoreTooNew, PermissionDenied: The database cannot be used.
    """
    address = parsed(url)
    engine = make_engine(address, password)
    try:
        if address.get_backend_name() == "sqlite":
            _prepare_file(engine)
            act_as(engine, person)
            return BookingStore(engine, person, True, clock)
        is_admin = _team(engine)
        return BookingStore(engine, str(address.username), is_admin, clock, own_time=own_time)
    except BaseException:  # The connection must also be closed after a KeyboardInterrupt.
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
        version = has_calendar(connection)  # Another process may have upgraded the file since the first check.
        if version is not None and version not in KNOWN:
            raise StoreTooNew(place_of(engine.url))
        if version != HEAD:
            upgrade(connection)


def _team(engine: Engine) -> bool:
    """Returns whether the role is an admin of the team.

    Raises an error if the calendar is missing, too new, too old, or not accessible to the role.
    """
    place = place_of(engine.url)
    with transaction(engine) as connection:
        sees_schema = connection.execute(
            text("SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = 'torchyard'")
        ).scalar()
        if sees_schema is None:
            raise BadUrl(f"{place} has no calendar yet", hint=SetUpTeam())
        no_member = PermissionDenied(
            f"your role `{engine.url.username}` is no member of the team in {place}",
            hint=("Ask an admin of the team to add you.", SetUpTeam(("--member", "NAME"))),
        )
        if not sees_schema:
            raise no_member
        version = has_calendar(connection)
        if version is not None and version not in KNOWN:
            raise StoreTooNew(place)
        if version != HEAD:
            raise BadUrl(f"{place} was made by an older Torchyard, and has to be upgraded", hint=SetUpTeam())
        is_member, is_admin = connection.execute(text("SELECT torchyard.is_member(), torchyard.is_admin()")).one()
        if not is_member:  # The role may be a member of another team in the same database cluster.
            raise no_member
        return bool(is_admin)
