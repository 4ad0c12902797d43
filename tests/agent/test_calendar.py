"""Tests of parsing the calendar copies that desktops send to agents."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.agent.enforcement.calendars import HOUR, T0, A, B, booking, enforcement, login, snapshot
from torchyard_agent.protocol import calendar
from torchyard_agent.protocol.calendar import parse
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.timestamps import parse_timestamp, rfc3339
from torchyard_core.booking.model import Booking, Login, State
from torchyard_core.booking.rules.enforcement import Enforcement
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.store.queries import agent_snapshot


def test_a_snapshot_of_the_store_is_parsed() -> None:
    now = datetime(2026, 11, 22, 9, tzinfo=UTC)
    end = now + timedelta(hours=4)
    booked = Booking(
        "b1", "lee", "tune", "", (A, B), now, end, "UTC", State.ACTIVE, now, now, run_id="r", stop_at_end=True
    )
    rules = Rules(enforcement=(Enforcement("gpu-*", "warn", 90, dry_run=False),))
    sent = agent_snapshot(
        [booked],
        [Login("gpu-*", "ubuntu", "kim"), Login("gpu-*", "ubuntu", "lee")],
        rules,
        "kim",
        now,
        now + timedelta(days=3),
    )

    known = parse(sent)

    assert known.taken == now.timestamp()
    assert known.bookings == (
        calendar.CalendarBooking("b1", "lee", "tune", (A, B), now.timestamp(), end.timestamp(), "r", True),
    )
    assert known.persons_of("gpu-b", "ubuntu") == ("kim", "lee")
    assert known.persons_of("cpu-b", "ubuntu") == ()
    assert known.enforcement_on("gpu-b") == calendar.Enforcement("warn", 90, False)
    assert known.enforcement_on("cpu-b").level == "off"


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=9)), timezone(-timedelta(hours=3, minutes=30))])
@pytest.mark.parametrize("day", ["1970-01-01", "2024-02-29", "2026-12-31", "2099-03-01"])
def test_times_are_read_as_the_library_reads_them(zone: Any, day: str) -> None:
    moment = datetime.fromisoformat(f"{day}T23:59:58").replace(tzinfo=zone) + timedelta(days=1)
    assert parse_timestamp(moment.isoformat()) == moment.timestamp()
    assert parse_timestamp(rfc3339(moment.timestamp())) == moment.timestamp()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": 2}, "version 2"),
        ({"enforcment": []}, "unknown key 'enforcment'"),
        ({"taken": "2026-11-22T09:00:00"}, "no time with an offset"),
        ({"taken": True}, "no time"),
        ({"bookings": [booking("lee", T0, T0)]}, "without time"),
        ({"bookings": [booking("lee", T0, T0 + 1, state="cancelled")]}, "state"),
        ({"bookings": [booking("lee", T0, T0 + 1, gpus="GPU-a")]}, "gpus must be a list"),
        ({"bookings": [booking("l" * 501, T0, T0 + 1)]}, "at most 500"),
        ({"bookings": [{"id": "x"}]}, "missing"),
        ({"bookings": {}}, "lists"),
        ({"logins": [{"host": "*", "user": "ann", "person": "kim"}]}, "unknown key"),
        ({"enforcement": [enforcement("kill")]}, "levels"),
        ({"enforcement": [{**enforcement("stop"), "dry_run": 0}]}, "dry_run"),
        ({"fresh_s": float("nan")}, "fresh_s"),
        ({"bookings": [booking("lee", T0, T0 + 1)] * 5001}, "more than"),
    ],
)
def test_an_error_in_a_snapshot_is_reported(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RpcError, match="not understood") as refused:
        parse({**snapshot(), **changes})
    assert sentence in str(refused.value)
    assert refused.value.code == "bad_snapshot"


@pytest.mark.parametrize("data", [None, [], "x", 1, {}])
def test_other_data_is_rejected_as_a_snapshot(data: object) -> None:
    with pytest.raises(RpcError):
        parse(data)


def test_a_snapshot_is_fresh_for_an_hour_at_most() -> None:
    known = parse(snapshot(fresh_s=24 * HOUR))
    assert known.is_fresh(T0 + HOUR - 1)
    assert not known.is_fresh(T0 + HOUR)
    assert not known.is_fresh(T0 - HOUR), "the host's clock was set back by an hour"


def test_a_login_belongs_to_the_person_of_its_name_if_the_table_has_neither() -> None:
    logins = [login("bob", "max", host="gpu-a"), login("eve", "ada", host="gpu-a")]
    known = parse(snapshot(booking("lee", T0, T0 + 1), booking("eve", T0, T0 + 1), logins=logins))
    assert known.persons_of("gpu-b", "lee") == ("lee",)
    assert known.persons_of("gpu-b", "max") == ()
    assert known.persons_of("gpu-b", "eve") == ()
    assert known.persons_of("gpu-a", "gdm") == ()
