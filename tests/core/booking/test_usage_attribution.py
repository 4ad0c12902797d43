"""Tests of the attribution of reported use to the members of the team."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from torchyard_core.booking.model import Login, Use
from torchyard_core.booking.usage_attribution import persons_of, reported_uses

T0 = datetime(2026, 11, 22, 2, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


def minutes_later(minutes: float) -> str:
    return at(minutes).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("user", "claimed", "person"),
    [
        ("ann", "", "kim"),
        ("ann", "lee", "kim"),
        ("ubuntu", "lee", "lee"),
        ("ubuntu", "max", "one of: kim, lee"),
        ("ubuntu", "", "one of: kim, lee"),
        ("carl", "", "carl"),
        ("carl", "lee", "lee"),
        ("", "", ""),
    ],
)
def test_use_is_whose_the_record_says_among_those_that_share_the_login(user: str, claimed: str, person: str) -> None:
    logins = [Login("*", "ann", "kim"), Login("*", "ubuntu", "kim"), Login("*", "ubuntu", "lee")]
    use = {
        "gpu": "A",
        "user": user,
        "person": claimed,
        "run_id": "r1",
        "start": minutes_later(0),
        "end": minutes_later(5),
    }
    assert reported_uses({"gpu-a": {"uses": [use]}}, logins) == (Use("A", "gpu-a", person, at(0), at(5), "r1"),)


def test_use_by_a_login_that_has_a_persons_name_on_another_host_is_not_that_persons() -> None:
    use = {"gpu": "A", "user": "lee", "person": "", "run_id": "", "start": minutes_later(0), "end": minutes_later(5)}
    seen = {"gpu-a": {"uses": [use]}, "gpu-b": {"uses": [use]}}
    here, there = reported_uses(seen, [Login("gpu-a", "lee", "lee")])
    assert (here.person, there.person) == ("lee", "lee on gpu-b")


def test_a_use_of_no_time_or_that_is_not_understood_is_left_out() -> None:
    use = {"gpu": "A", "user": "ann", "person": "", "run_id": "", "start": minutes_later(0), "end": minutes_later(0)}
    assert reported_uses({"gpu-a": {"uses": [use, {"gpu": "A"}, {**use, "start": "yesterday"}]}}, []) == ()


def test_shared_logins_are_one_of_several_persons() -> None:
    logins = [Login("gpu-*", "ubuntu", "lee"), Login("*", "ubuntu", "kim"), Login("gpu-a", "kim", "kim")]
    assert persons_of(logins, "gpu-a", "ubuntu") == ("kim", "lee")
    assert persons_of(logins, "big-cpu", "ubuntu") == ("kim",)
    assert persons_of(logins, "gpu-b", "kim") == ()
