"""Tests that a calendar opens few connections, because a server allows only about a hundred for a whole team."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.core.booking.teams import Team, draft
from tests.waiting import wait_until
from torchyard_core.booking.errors import StoreUnavailable
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.booking.store.change_feed import Watch

WITHIN_S = 30


def connections(team: Team, person: str = "lee") -> int:
    assert team.server is not None
    with team.server.connect("owner", team.place) as owner:
        found = owner.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'torchyard%%' AND usename = %s",
            (person,),
        ).fetchone()
    assert found is not None
    return int(found[0])


class Heard(list[str]):
    """Collects the changes that a `Watch` reports."""

    def watch(self, store: BookingStore) -> Watch:
        watch = store.watch(self.append)
        wait_until(lambda: "all" in self)
        self.clear()
        return watch


def test_a_calendar_that_is_watched_and_asked_by_many_threads_has_one_connection(database_team: Team) -> None:
    lee, kim = database_team.open("lee"), database_team.open("kim")
    heard = Heard()
    watch = heard.watch(lee)
    most = 0
    try:
        asking = [threading.Thread(target=lambda: [lee.waiting() for _ in range(30)]) for _ in range(4)]
        for thread in asking:
            thread.start()
        while any(thread.is_alive() for thread in asking):
            most = max(most, connections(database_team))
        for thread in asking:
            thread.join()
        assert most == connections(database_team) == 1
        kim.book(draft("a0", 1, 1))
        wait_until(lambda: "bookings" in heard)
        heard.clear()
        lee.book(draft("a1", 1, 1))  # The watch also reports changes that were made over the calendar's own connection.
        wait_until(lambda: "bookings" in heard)
        assert connections(database_team) == 1
    finally:
        watch.close()


def test_a_hidden_calendar_has_no_connection_and_reports_changes_when_shown_again(
    database_team: Team,
) -> None:
    lee, kim = database_team.open("lee"), database_team.open("kim")
    watch = Heard().watch(lee)
    watch.close()
    lee.keep_connection(False)
    wait_until(lambda: connections(database_team) == 0)
    assert lee.count() == 0
    wait_until(lambda: connections(database_team) == 0)
    lee.keep_connection(True)
    heard = Heard()
    again = heard.watch(lee)
    try:
        kim.book(draft("a0", 1, 1))
        wait_until(lambda: "bookings" in heard)
        wait_until(lambda: connections(database_team) == 1)
    finally:
        again.close()


def test_the_page_is_hidden_and_shown_while_other_threads_read(
    database_team: Team,
) -> None:
    lee = database_team.open("lee")
    ends = threading.Event()

    def read() -> int:
        count = 0
        while not ends.is_set():
            lee.count()
            count += 1
        return count

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # With this interval, Python also switches threads inside the pool's own code.
    try:
        with ThreadPoolExecutor(3) as pool:
            reading = [pool.submit(read) for _ in range(3)]
            for number in range(20):
                watch = lee.watch(lambda change: None)
                lee.keep_connection(number % 2 == 1)
                watch.close()
            ends.set()
            assert all(each.result(WITHIN_S) > 0 for each in reading)
    finally:
        ends.set()
        sys.setswitchinterval(before)


def test_a_connection_that_was_ended_listens_again_and_counts_as_a_change_of_everything(database_team: Team) -> None:
    lee = database_team.open("lee")
    heard = Heard()
    watch = heard.watch(lee)
    try:
        assert database_team.server is not None
        with database_team.server.connect("owner", database_team.place) as owner:
            owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'lee'")
        wait_until(lambda: "all" in heard)
        database_team.open("kim").book(draft("a0", 1, 1))
        wait_until(lambda: "bookings" in heard)
    finally:
        watch.close()


def test_a_role_without_free_connections_is_answered_with_a_sentence(database_team: Team) -> None:
    server = database_team.server
    assert server is not None
    with server.connect("owner", "postgres") as owner:
        owner.execute("ALTER ROLE lee CONNECTION LIMIT 0")
    try:
        with pytest.raises(StoreUnavailable, match="has no connection left: the server's connection limit is reached"):
            open_store(server.url("lee", database_team.place), "lee")
    finally:
        with server.connect("owner", "postgres") as owner:
            owner.execute("ALTER ROLE lee CONNECTION LIMIT -1")


def test_a_server_without_free_connections_is_answered_with_a_sentence(database_team: Team) -> None:
    def open_many() -> None:
        for _ in range(200):
            database_team.open("kim")

    with pytest.raises(StoreUnavailable, match="has no connection left") as refused:
        open_many()
    assert "max_connections" in refused.value.hint
