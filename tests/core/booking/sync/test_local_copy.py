"""Tests that the view, which is updated from the change log, and the local copy equal the content of the store.

The tests change bookings, replace the database, set clocks and damage the copy's file.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

from tests.core.booking.teams import NOW, Clock, Team, draft
from torchyard_core.booking.errors import Refused, StoreUnavailable
from torchyard_core.booking.model import Booking, Draft, Slot
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.booking.store.database_engine import close_engine, make_engine, parsed, transaction
from torchyard_core.booking.sync.cached_calendar import Calendar
from torchyard_core.booking.sync.local_copy import AT_A_TIME, LocalCopy

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
WITHIN_S = 30
KEPT_SINCE, KEPT_UNTIL = NOW - 14 * DAY, NOW + 60 * DAY


class Desk:
    """A calendar that records its queries and whose database can become unavailable."""

    def __init__(self, team: Team, file: Path, person: str = "kim"):
        self.asked: list[str] = []
        self.is_away = False
        self.url, self.file = team.url(person), file
        self.calendar = Calendar(self.url, person, file, open_it=self._open, monotonic=lambda: 0.0)
        self._team = team

    def _open(self, url: str, person: str) -> BookingStore:
        if self.is_away:
            raise StoreUnavailable("the bookings database does not answer")
        store = open_store(url, person, clock=self._team.clock, own_time=True)
        for name in ("bookings", "changes"):
            setattr(store, name, self._counting(name, getattr(store, name)))
        return store

    def _counting(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            self.asked.append(name)
            return work(*args, **more)

        return counted

    def shown(self, since: datetime = NOW - DAY, until: datetime = NOW + 7 * DAY) -> tuple[Booking, ...]:
        view = self.calendar.view(since, until)
        assert view.is_live
        return view.bookings

    def copied(self, since: datetime = KEPT_SINCE, until: datetime = KEPT_UNTIL) -> tuple[Booking, ...]:
        kept = LocalCopy(self.file, self.url).read(since, until)
        assert kept is not None
        return kept.bookings

    def away(self) -> Calendar:
        """Makes the database unavailable for new connections; returns a new calendar that uses the same local copy."""
        self.is_away = True
        return Calendar(self.url, "kim", self.file, open_it=self._open, monotonic=lambda: 0.0)


@pytest.fixture
def desk(team: Team, tmp_path: Path):
    made = Desk(team, tmp_path / "seen.sqlite3")
    yield made
    made.calendar.close()


def raw(team: Team, *statements: str) -> None:
    """Runs SQL as the owner of the database."""
    if team.server is not None:
        with team.server.connect("owner", team.place) as owner:
            for statement in statements:
                owner.execute(statement)
        return
    connection = sqlite3.connect(team.place.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    for statement in statements:
        connection.execute(statement)
    connection.close()


def many(store: BookingStore, count: int, apart: timedelta, first: datetime = NOW) -> None:
    """Adds bookings of one hour each, at regular intervals."""
    slots = [Slot(f"GPU-m{number}", "gpu-m", number) for number in range(4)]
    store.remember_slots(slots)
    made = [draft(f"m{number % 4}", 0, 1, start=first + number * apart) for number in range(count)]
    with transaction(store.session.engine, writes=True) as connection:
        store.writer.insert(connection, made, NOW, None)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_done_to_bookings_each_look_shows_just_what_the_store_has(team, tmp_path, seed):
    chance = random.Random(seed)
    store = team.open("ada" if team.server else "kim")
    desks = [Desk(team, tmp_path / "shared.sqlite3") for _ in range(2)]
    for _ in range(60):
        act = chance.choice(["book", "book", "move", "far", "regroup", "cancel", "rename", "purge", "active", "look"])
        ids = [one.id for one in store.bookings(NOW - DAY, NOW + 200 * DAY, live=True)]
        try:
            if act == "book":
                store.book(draft(f"a{chance.randrange(4)}", chance.uniform(0, 90), chance.uniform(0.5, 5)))
            elif ids and act in ("move", "far"):
                start = NOW + timedelta(hours=chance.uniform(1, 150)) + 60 * DAY * (act == "far")
                store.change(chance.choice(ids), start=start, end=start + HOUR)
            elif ids and act == "regroup":
                store.change(chance.choice(ids), gpus=[f"GPU-b{chance.randrange(4)}", "GPU-a0"])
            elif ids and act == "cancel":
                store.cancel(chance.choice(ids))
            elif ids and act == "rename":
                store.change(chance.choice(ids), title=f"title {chance.random()}")
            elif ids and act == "purge":
                raw(team, f"DELETE FROM bookings WHERE id = '{chance.choice(ids)}'")
            elif ids and act == "active":
                store.mark_active(chance.choice(ids))
        except Refused:
            continue  # The slot is booked already or beyond the horizon.
        for desk in chance.sample(desks, chance.randrange(3)):
            assert desk.shown() == store.bookings(NOW - DAY, NOW + 7 * DAY)
            assert desk.copied() == store.bookings(KEPT_SINCE, KEPT_UNTIL)
    for desk in desks:
        assert desk.shown() == store.bookings(NOW - DAY, NOW + 7 * DAY)
        desk.calendar.close()
    assert desks[0].copied() == store.bookings(KEPT_SINCE, KEPT_UNTIL)


def test_a_second_look_reads_what_has_changed_and_nothing_else(team, desk):
    lee = team.open("lee")
    first = lee.book(draft("a0", 1, 2))
    assert desk.shown() == (first,)
    second = lee.book(draft("a1", 1, 2))
    desk.asked.clear()
    shown = desk.shown()
    assert set(shown) == {first, second}
    assert desk.asked == ["changes"], "the copy was read for by itself"
    assert set(desk.copied()) == {first, second}
    assert next(one for one in shown if one.id == first.id) is not second
    # A slightly later end of the requested range needs no new query.
    desk.asked.clear()
    desk.shown(until=NOW + 7 * DAY + timedelta(minutes=30))
    assert "bookings" not in desk.asked


def test_one_persons_bookings_and_those_around_now_are_as_in_a_whole_view(team, desk):
    kim, lee = team.open("kim"), team.open("lee")
    for number in range(4):
        kim.book(draft(f"a{number}", 0, 2))
        kim.book(draft(f"a{number}", 3, 2))
        lee.book(draft(f"a{number} b{number}", 5, 2))
    cancelled = lee.cancel(lee.book(draft("b0", 1, 1)).id)
    whole = desk.shown(NOW, NOW + DAY)
    calendar = desk.calendar
    assert calendar.view_of(None, NOW, NOW + DAY).bookings == whole
    assert calendar.view_of("lee", NOW, NOW + DAY).bookings == tuple(one for one in whole if one.owner == lee.person)
    team.clock.forward(hours=1)
    around = calendar.view_around(NOW + HOUR, NOW + DAY).bookings
    assert {(one.start, one.gpus) for one in around if len(one.gpus) == 1} == {
        (NOW + begin * HOUR, (f"GPU-a{number}",)) for number in range(4) for begin in (0, 3)
    }
    # The view around the current time also contains the next booking of each GPU. These bookings have GPUs on both
    # hosts.
    assert len([one for one in around if len(one.gpus) == 2]) == 4
    assert cancelled not in around
    assert calendar.view_around(NOW + HOUR, NOW + 4 * HOUR).bookings == tuple(
        one for one in around if one.start < NOW + 4 * HOUR
    )


def backup(team: Team) -> Callable[[], None]:
    """Saves the bookings and the change log. Returns a function that restores them without running triggers."""
    if team.server is None:
        saved, file = sqlite3.connect(":memory:"), team.place.removeprefix("sqlite:///")
        with sqlite3.connect(file) as live:
            live.backup(saved)
        live.close()

        def restore() -> None:
            with sqlite3.connect(file) as live:
                saved.backup(live)
            live.close()
            saved.close()

        return restore
    tables = {"bookings": "*", "booking_gpus": "booking_id, gpu, owner, starts, ends, live", "booking_changes": "*"}
    with team.server.connect("owner", team.place) as owner:
        saved_rows = {
            table: owner.execute(f"SELECT {columns} FROM {table}").fetchall() for table, columns in tables.items()
        }
        number = owner.execute("SELECT max(seq) FROM booking_changes").fetchone()[0]

    def restore_rows() -> None:
        with team.server.connect("owner", team.place) as owner:
            owner.execute("SET session_replication_role = replica")
            owner.execute("TRUNCATE bookings, booking_gpus, booking_changes, idle_evidence")
            for table, columns in tables.items():
                names = "" if columns == "*" else f"({columns})"
                for row in saved_rows[table]:
                    marks = ", ".join(["%s"] * len(row))
                    forced = "OVERRIDING SYSTEM VALUE" * (table == "booking_changes")
                    owner.execute(f"INSERT INTO {table} {names} {forced} VALUES ({marks})", row)
            owner.execute("SELECT setval(pg_get_serial_sequence('torchyard.booking_changes', 'seq'), %s)", (number,))

    return restore_rows


def test_after_a_restored_backup_everything_is_read_anew_also_where_the_log_has_grown_past_it_again(team, desk):
    kim = team.open("kim")
    kept = kim.book(draft("a0", 1, 2, "kept"))
    restore = backup(team)
    lost = [kim.book(draft(f"a{number}", 5, 1, "lost")) for number in range(3)]
    kim.change(kept.id, title="renamed")
    assert len(desk.shown()) == 4
    kim.close()
    restore()
    kim = team.open("kim")
    for number in range(8):  # Continue until the log contains sequence numbers above any that this desktop has read.
        kim.book(draft(f"b{number % 4}", 1 + 2 * number, 1, "after"))
    shown = desk.shown()
    assert shown == kim.bookings(NOW - DAY, NOW + 7 * DAY)
    assert desk.copied() == shown
    assert not {one.id for one in lost} & {one.id for one in shown}
    assert next(one for one in shown if one.id == kept.id).title == "kept"


def test_a_transaction_that_commits_late_is_not_missed(database_team, tmp_path):
    """The transaction draws its sequence numbers early, and commits after a reader has seen higher numbers."""
    team = database_team
    desk = Desk(team, tmp_path / "seen.sqlite3")
    late = "INSERT INTO bookings VALUES ('late', 'lee', 'late', '', '2031-01-06 10:00Z', '2031-01-06 11:00Z', 'UTC',"
    late += " 'booked', now(), now(), NULL, NULL, false, NULL, '')"
    with team.server.connect("lee", team.place) as lee:
        lee.execute("BEGIN")
        lee.execute(late)
        lee.execute("INSERT INTO booking_gpus (booking_id, gpu) VALUES ('late', 'GPU-b0')")
        # Kim's booking is committed while Lee's transaction is still open.
        soon = team.open("kim").book(draft("a0", 1, 1))
        assert desk.shown() == (soon,)
        lee.execute("COMMIT")
        assert {one.id for one in desk.shown()} == {soon.id, "late"}
    desk.calendar.close()


def test_a_booking_that_loses_a_gpu_by_sql_is_announced_and_shown(database_team, tmp_path):
    team = database_team
    desk = Desk(team, tmp_path / "seen.sqlite3")
    made = team.open("lee").book(draft("a0 a1", 1, 1))
    assert desk.shown() == (made,)
    changed, listening = threading.Event(), threading.Event()

    def on_change(what: str) -> None:
        (changed if what == "bookings" else listening).set()

    watch = team.open("kim").watch(on_change)
    try:
        assert listening.wait(WITHIN_S)
        with team.server.connect("lee", team.place) as lee:
            lee.execute("DELETE FROM booking_gpus WHERE gpu = 'GPU-a1'")
        assert changed.wait(WITHIN_S)
    finally:
        watch.close()
    assert [one.gpus for one in desk.shown()] == [("GPU-a0",)]
    assert [one.gpus for one in desk.copied()] == [("GPU-a0",)]
    desk.calendar.close()


def test_the_log_is_pruned_and_who_has_looked_before_that_reads_anew(team, desk):
    kim = team.open("kim")
    made = kim.book(draft("a0", 1, 1))
    assert desk.shown() == (made,)
    before = kim.position()
    # A single statement inserts 60,000 changes of one booking.
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)"
    raw(team, f"{numbers} INSERT INTO booking_changes (booking_id) SELECT '{made.id}' FROM n")
    # In PostgreSQL, the log is pruned whenever the sequence number is a multiple of a thousand.
    if team.server is not None:
        last = kim.position().seq // 1000 * 1000 + 999
        raw(team, f"SELECT setval(pg_get_serial_sequence('torchyard.booking_changes', 'seq'), {last})")
    made = kim.change(made.id, title="renamed")
    with transaction(kim.session.engine) as connection:
        assert connection.execute(text("SELECT count(*) FROM booking_changes")).scalar() <= 51_000
    assert kim.changes(before) is None
    assert desk.shown() == desk.copied() == (made,)


def test_too_many_changes_at_once_are_read_anew(team, desk):
    kim = team.open("kim")
    assert desk.shown() == ()
    before = kim.position()
    many(kim, 2100, timedelta(minutes=15))
    assert kim.changes(before) is None
    assert desk.shown() == kim.bookings(NOW - DAY, NOW + 7 * DAY)


def test_a_command_copies_some_and_the_window_all_of_two_weeks_back_and_sixty_days(team, desk):
    kim = team.open("kim")
    many(kim, 1500, timedelta(minutes=80), NOW - 20 * DAY)
    desk.shown(NOW, NOW + HOUR)
    some = desk.copied()
    assert AT_A_TIME <= len(some) < AT_A_TIME + 100
    assert some[0].end > NOW  # The copy contains future bookings before past ones.
    known = LocalCopy(desk.file, desk.url).read(NOW, NOW).known
    assert known.start == NOW
    assert known.end < KEPT_UNTIL
    assert some == kim.bookings(known.start, known.end)

    desk.calendar.keep(all_of_it=True)
    assert desk.copied(NOW - 100 * DAY, NOW + 100 * DAY) == kim.bookings(KEPT_SINCE, KEPT_UNTIL + HOUR)
    # Two days later, the copy no longer contains the oldest bookings, but it contains those that are now within its
    # range.
    team.clock.forward(days=2)
    desk.shown(NOW, NOW + HOUR)
    later = LocalCopy(desk.file, desk.url).read(NOW - 100 * DAY, NOW + 100 * DAY)
    assert later.as_of == NOW + 2 * DAY
    assert later.bookings == kim.bookings(KEPT_SINCE + 2 * DAY, KEPT_UNTIL + 2 * DAY + HOUR)


@pytest.mark.parametrize("days", [-30, -3, 3, 100])
def test_a_clock_that_is_set_back_or_ahead_leaves_nothing_out(team, desk, days):
    kim = team.open("kim")
    made = [kim.book(draft("a0", hours, 1)) for hours in (1, 24 * 10, 24 * 50, 24 * 80)]
    desk.calendar.keep(all_of_it=True)
    desk.shown()
    team.clock.forward(days=days)
    made[1] = kim.book(draft("a1", 24 * (max(days, 0) + 1), 1))
    desk.shown()
    now = team.clock.now
    kept = LocalCopy(desk.file, desk.url).read(NOW - 200 * DAY, NOW + 200 * DAY)
    assert kept.as_of == now
    assert kept.known.start <= now - 13 * DAY
    assert kept.known.end >= now + 59 * DAY
    assert kept.bookings == kim.bookings(kept.known.start, kept.known.end)
    assert desk.shown(now - DAY, now + 90 * DAY) == kim.bookings(now - DAY, now + 90 * DAY)


def _garbage(file: Path) -> None:
    file.write_bytes(b"no database at all " * 500)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _overwritten(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\x5a" * (len(content) - 4096))


def _sql(statement: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        with sqlite3.connect(file) as connection:
            connection.execute(statement)
        connection.close()

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        _garbage,
        _cut,
        _overwritten,
        _sql("UPDATE bookings SET body = '{}'"),
        _sql("UPDATE slots SET body = 'x'"),
        _sql("DELETE FROM slots"),
        _sql("DROP TABLE bookings"),
        _sql("PRAGMA user_version = 99"),
    ],
)
def test_a_damaged_copy_is_never_shown_and_made_anew(tmp_path, damage):
    team = Team(Clock(), None, f"sqlite:///{tmp_path / 'b.sqlite3'}")
    kim = team.open("kim")
    many(kim, 200, HOUR)
    desk = Desk(team, tmp_path / "seen.sqlite3")
    expected = desk.shown()
    damage(desk.file)
    away = desk.away()
    view = away.view(NOW - DAY, NOW + 7 * DAY)
    assert (view.bookings, view.as_of, view.is_live) == ((), None, False)
    damage(desk.file) if desk.file.exists() else None
    kim.cancel(expected[-1].id)
    assert desk.shown() == kim.bookings(NOW - DAY, NOW + 7 * DAY)
    assert desk.shown() == desk.copied(NOW - DAY, NOW + 7 * DAY)
    assert desk.file.stat().st_mode & 0o777 == 0o600
    desk.calendar.close()
    team.close()


def test_the_copy_of_another_calendar_is_not_shown_and_is_replaced(tmp_path):
    desks = []
    for name in ("one", "other"):
        team = Team(Clock(), None, f"sqlite:///{tmp_path / name}.sqlite3")
        store = team.open("kim")
        store.remember_slots(team.slots)
        store.book(draft("a0", 1, 1, name))
        desks.append(Desk(team, tmp_path / "seen.sqlite3"))
    one, other = desks
    for desk, title in ((one, "one"), (other, "other"), (one, "one")):
        assert [booking.title for booking in desk.shown()] == [title]
        assert [booking.title for booking in desk.copied()] == [title]
    view = other.away().view(NOW, NOW + DAY)
    assert (view.bookings, view.as_of) == ((), None)
    for desk in desks:
        desk.calendar.close()
        desk._team.close()


def test_where_no_copy_can_be_written_the_calendar_is_shown_all_the_same(tmp_path):
    team = Team(Clock(), None, f"sqlite:///{tmp_path / 'b.sqlite3'}")
    kim = team.open("kim")
    kim.remember_slots(team.slots)
    made = kim.book(draft("a0", 1, 1))
    (tmp_path / "in the way").write_text("")
    desk = Desk(team, tmp_path / "in the way" / "seen.sqlite3")
    assert desk.shown() == (made,)
    desk.calendar.keep(all_of_it=True)
    assert desk.away().view(NOW, NOW + DAY).as_of is None
    desk.calendar.close()
    team.close()


def test_what_a_window_has_read_beyond_the_copy_stays_when_the_database_goes(tmp_path):
    team = Team(Clock(), None, f"sqlite:///{tmp_path / 'b.sqlite3'}")
    kim = team.open("kim")
    kim.remember_slots(team.slots)
    kim.set_rules(type(kim.rules())(furthest_days=None))
    far = kim.book(draft("a0", 24 * 200, 1))
    soon = kim.book(draft("a0", 1, 1))
    desk = Desk(team, tmp_path / "seen.sqlite3")
    begin, end = NOW + 199 * DAY, NOW + 206 * DAY
    assert desk.shown(begin, end) == (far,)
    desk.calendar.close()
    desk.is_away = True
    view = desk.calendar.view(begin, end)
    assert (view.bookings, view.is_live, view.as_of) == ((far,), False, NOW)
    near = desk.calendar.view(NOW, NOW + DAY)
    assert (near.bookings, near.is_live, near.as_of) == ((soon,), False, NOW)
    team.close()


def test_bookings_from_before_the_log_are_followed_after_the_upgrade(tmp_path):
    team = Team(Clock(), None, f"sqlite:///{tmp_path / 'b.sqlite3'}")
    config = Config()
    config.set_main_option("script_location", "torchyard_core.booking.store:migrations")
    engine = make_engine(parsed(team.place))
    with transaction(engine, writes=True) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        begin = int((NOW + HOUR).timestamp())
        connection.exec_driver_sql(
            f"INSERT INTO bookings VALUES ('old', 'kim', 'old', '', {begin}, {begin + 3600}, 'UTC', 'booked', 0, 0,"
            " NULL, NULL, 0, NULL, '')"
        )
        connection.exec_driver_sql(
            f"INSERT INTO booking_gpus VALUES ('old', 'GPU-a0', 'kim', {begin}, {begin + 3600}, 1)"
        )
    close_engine(engine)
    kim = team.open("kim")
    kim.remember_slots(team.slots)
    desk = Desk(team, tmp_path / "seen.sqlite3")
    assert [one.id for one in desk.shown()] == ["old"]
    kim.change("old", title="renamed")
    assert [one.title for one in desk.shown()] == ["renamed"]
    assert desk.copied() == desk.shown()
    desk.calendar.close()
    team.close()


LOOKING = """
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from torchyard_core.booking.sync.cached_calendar import Calendar
calendar = Calendar(sys.argv[1], "kim", Path(sys.argv[2]))
print("looking", flush=True)
for _ in range(40):
    now = datetime.now(UTC)
    assert calendar.view(now, now + timedelta(days=7)).is_live
calendar.close()
"""


def test_processes_that_share_a_copy_leave_it_as_the_store_is(tmp_path):
    url = f"sqlite:///{tmp_path / 'b.sqlite3'}"
    store = open_store(url, "kim")
    store.remember_slots([Slot("GPU-a0", "gpu-a", 0)])
    file = tmp_path / "seen.sqlite3"
    command = [sys.executable, "-c", LOOKING, url, str(file)]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    begin = datetime.now(UTC) + HOUR
    made: list[Booking] = []
    try:
        for other in others:
            assert other.stdout is not None
            assert other.stdout.readline() == "looking\n"
        for number in range(40):
            start = begin + number * HOUR
            made.append(store.book(Draft(f"n{number}", ("GPU-a0",), start, start + HOUR / 2, "UTC")))
            if number % 3 == 0:
                store.cancel(made[number // 2].id)
            copy = LocalCopy(file, url).read(begin, begin + 7 * DAY)
            # The copy may be older than the calendar, but must not contain a booking that was never made.
            if copy is not None:
                assert {one.title for one in copy.bookings} <= {one.title for one in made}
        for other in others:
            assert other.wait(WITHIN_S * 4) == 0
    finally:
        for other in others:
            other.kill()
            other.communicate()
    calendar = Calendar(url, "kim", file)
    calendar.view(begin, begin + DAY)
    copy = LocalCopy(file, url).read(begin, begin + 7 * DAY)
    assert copy is not None
    assert copy.bookings == store.bookings(begin, begin + 7 * DAY)
    assert len(copy.bookings) == 40
    calendar.close()
    store.close()
