"""Tests that closing a calendar leaves no connection open, even if another thread is using one."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from torchyard_core.booking.store import open_store


def test_a_connection_in_use_is_closed_as_it_comes_back(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'bookings.sqlite3'}", "kim")
    connection = store.session.engine.raw_connection()
    driver = connection.driver_connection
    store.close()
    connection.cursor().execute("SELECT 1")
    connection.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        driver.execute("SELECT 1")


def test_a_closed_calendar_still_answers_a_thread_that_was_about_to_read(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'bookings.sqlite3'}", "kim")
    store.close()
    now = datetime.now(UTC)
    for _ in range(3):
        assert store.uses(now, now + timedelta(hours=1)) == ()
    assert not list(tmp_path.glob("*-wal"))  # SQLite removes these files when it closes the last connection.
