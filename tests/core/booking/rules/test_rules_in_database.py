"""Tests that the rules in the database and in Python give the same answers for generated cases."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.core.booking.teams import NOW, SLOTS, Team, draft
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, Draft, State
from torchyard_core.booking.rules.open_times import Window
from torchyard_core.booking.rules.quota import gpu_hours
from torchyard_core.booking.rules.refusal import Circumstances, find_refusal
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.store import open_store
from torchyard_core.booking.store.migrations.versions.v0003_team_rules import DEFAULTS

HOUR = timedelta(hours=1)
PERSON = "lee"
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Seoul", "Africa/Cairo", "Asia/Beirut", "Australia/Lord_Howe")
"""Time zones with different clock changes: at night in Berlin, New York and Lord Howe (by half an hour there), and at
midnight in Cairo and Beirut.
"""
TURNS = tuple(
    datetime.fromisoformat(f"2031-{day}T00:00Z")
    for day in ("03-09", "03-30", "04-06", "04-25", "10-26", "10-31", "11-02")
)
PATTERNS = ("*", "gpu-*", "gpu-a:0", "GPU-a[0-2]", "[!b]*", "gpu-?:1", "big-cpu*", "gpu-b", "nothing")
CODES = frozenset({"too_short", "too_long", "too_far", "window", "quota"})
INSERT = """INSERT INTO torchyard.bookings (id, owner, title, purpose, starts, ends, zone, state, created, changed,
            stop_at_end, let_go_at, uid) VALUES (%s, %s, 't', '', %s, %s, 'UTC', %s, now(), now(), false, %s, '')"""
many = settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@dataclass(frozen=True)
class Case:
    """A time, the team's rules, one user's bookings, and this user's draft."""

    now: datetime
    rules: Rules
    has: tuple[Booking, ...]
    wanted: Draft


minutes = st.sampled_from((0, 0, 0, 15, 30, 45, 61))
hours = st.integers(0, 30) | st.integers(0, 24 * 16)
moments = st.builds(
    lambda turn, ahead, minute: turn + timedelta(hours=ahead - 60, minutes=minute),
    st.sampled_from((NOW + timedelta(days=30), *TURNS)),
    st.integers(0, 120),
    minutes,
)
lengths = st.sampled_from([timedelta(minutes=one) for one in (10, 14, 15, 16, 60, 90, 600)]) | st.builds(
    lambda one, minute: timedelta(hours=one, minutes=minute), st.integers(1, 240), minutes
)
clocks = st.sampled_from(("00:00", "02:30", "03:00", "09:00", "17:30", "23:59", "24:00"))
windows = st.builds(
    Window,
    gpus=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2).map(tuple),
    group=st.sampled_from(("*", "students", "staff")),
    zone=st.sampled_from(ZONES),
    days=st.sets(st.integers(0, 6)).map(tuple) | st.just((0, 1, 2, 3, 4, 5, 6)),
    opens=clocks,
    closes=clocks,
)
limits = st.none() | st.sampled_from((0, 4, 10.5, 40, 168))


def rule_sets(**lengths_of: st.SearchStrategy[Any]) -> st.SearchStrategy[Rules]:
    return st.builds(
        Rules,
        **lengths_of,
        quota_gpu_hours=limits,
        quotas=st.dictionaries(st.sampled_from(("lee", "kim")), limits, max_size=1),
        same_day_is_free=st.booleans(),
        windows=st.just(()) | st.lists(windows, max_size=2).map(tuple),
        groups=st.just({"students": ("lee", "kim"), "staff": ("ada",)}),
        zone=st.sampled_from(ZONES),
    )


any_rules = rule_sets(
    longest_h=st.sampled_from((None, 0.5, 24, 168)),
    furthest_days=st.sampled_from((None, 0.5, 7, 90)),
    shortest_min=st.sampled_from((0, 15, 61.5)),
) | rule_sets(longest_h=st.none(), furthest_days=st.none(), shortest_min=st.just(0))
"""Generates rules. About half of them limit neither length nor horizon, so that other rules cause refusals, too."""
chosen = st.sets(st.sampled_from([one.id for one in SLOTS if one.host != "gpu-b"]), min_size=1, max_size=4).map(sorted)


@st.composite
def cases(draw: Callable[[Any], Any]) -> Case:
    now = draw(moments)
    has = []
    for number in range(draw(st.integers(0, 3))):
        start = now + timedelta(hours=draw(st.integers(-100, 200)))
        end = start + draw(lengths)
        state = draw(st.sampled_from((State.BOOKED, State.ACTIVE, State.RELEASED, State.CANCELLED)))
        gone = None if state.is_live else start + timedelta(hours=draw(st.integers(-3, 60)))
        one = Booking(f"has{number}", PERSON, "t", "", (f"GPU-b{number}",), start, end, "UTC", state, now, now)
        has.append(replace(one, let_go_at=gone))
    start = now + timedelta(hours=draw(hours), minutes=draw(minutes))
    wanted = Draft("t", tuple(draw(chosen)), start, start + draw(lengths), "UTC", owner=PERSON)
    return Case(now, draw(any_rules), tuple(has), wanted)


def hours_of(case: Case) -> Mapping[datetime, float]:
    return gpu_hours(case.has, case.rules.zone)


@dataclass(frozen=True)
class Sessions:
    """Connections that stay open for all generated cases of a test."""

    owner: psycopg.Connection
    member: psycopg.Connection


@pytest.fixture
def sessions(database_team: Team) -> Iterator[Sessions]:
    server = database_team.server
    assert server is not None
    with server.connect("owner", "team") as owner, server.connect(PERSON, "team") as member:
        yield Sessions(owner, member)


def prepare(sessions: Sessions, case: Case, *more: Booking) -> None:
    owner = sessions.owner
    with owner.transaction():
        owner.execute("DELETE FROM bookings")
        owner.execute("DELETE FROM rules")
        owner.execute("INSERT INTO rules VALUES (1, %s)", (json.dumps(case.rules.to_json()),))
        for one in (*case.has, *more):
            owner.execute(INSERT, (one.id, one.owner, one.start, one.end, str(one.state), one.let_go_at))
            for gpu in one.gpus:
                owner.execute("INSERT INTO booking_gpus (booking_id, gpu) VALUES (%s, %s)", (one.id, gpu))


def answer(sessions: Sessions, case: Case, *statements: tuple[str, tuple[Any, ...]]) -> str | None:
    """Returns the rule by which the database refuses a member's statements, or None if it accepts them."""
    member = sessions.member
    member.execute(f"SET torchyard_test.now = '{case.now.isoformat()}'")
    try:
        with member.transaction():
            for statement, values in statements:
                member.execute(statement, values)
    except psycopg.errors.CheckViolation as refused:
        return refused.diag.constraint_name
    return None


@many
@given(cases())
def test_new_bookings_get_the_same_answer_from_the_database_as_from_python(sessions: Sessions, case: Case) -> None:
    wanted = case.wanted
    # The GPUs are inserted one by one, so the database may refuse the first GPU because of the quota before it checks
    # the open times of the second GPU.
    by_all, by_quota = (
        find_refusal(wanted, Circumstances(rules, case.now, SLOTS, PERSON, hours_of(case)))
        for rules in (case.rules, replace(case.rules, windows=()))
    )
    refused = {one.code if one else None for one in (by_all, by_quota)} if by_all else {None}
    prepare(sessions, case)
    row = (INSERT, ("new", PERSON, wanted.start, wanted.end, "booked", None))
    of_gpus = [("INSERT INTO booking_gpus (booking_id, gpu) VALUES ('new', %s)", (gpu,)) for gpu in wanted.gpus]
    found = answer(sessions, case, row, *of_gpus)
    assert (found is None) == (by_all is None)
    assert found in refused


@many
@given(cases(), st.integers(-300, 100), lengths, st.booleans())
def test_changed_bookings_get_the_same_answer_from_the_database_as_from_python(
    sessions: Sessions, case: Case, began: int, length: timedelta, keeps_start: bool
) -> None:
    now, start = case.now, case.now + timedelta(hours=began / 4)
    before = Booking("old", PERSON, "t", "", case.wanted.gpus, start, start + length, "UTC", State.BOOKED, now, now)
    wanted = replace(case.wanted, start=before.start) if keeps_start else case.wanted
    assume(wanted.start < wanted.end)
    refused = find_refusal(wanted, Circumstances(case.rules, now, SLOTS, PERSON, hours_of(case)), before)
    assume(refused is None or refused.code in CODES)
    prepare(sessions, case, before)
    moved = ("UPDATE bookings SET starts = %s, ends = %s WHERE id = 'old'", (wanted.start, wanted.end))
    assert answer(sessions, case, moved) == (refused.code if refused else None)


@settings(parent=many, max_examples=500)
@given(st.text("abz-]![*?\\^:.&~|é", max_size=5), st.text("abz-]![*?\\^:.&~|é\n", max_size=8))
def test_patterns_mean_the_same_in_the_database_as_in_python(sessions: Sessions, word: str, pattern: str) -> None:
    found = sessions.owner.execute("SELECT matches(%s, %s)", (word, pattern)).fetchone()
    assert found == (fnmatchcase(word, pattern),)


@many
@given(moments, st.sampled_from(ZONES))
def test_wall_clock_times_are_the_same_moments_in_the_database_as_in_python(
    sessions: Sessions, moment: datetime, zone: str
) -> None:
    from torchyard_core.booking.time_parser import to_utc

    local = moment.replace(tzinfo=None)
    found = sessions.owner.execute("SELECT to_utc(%s, %s)", (local, zone)).fetchone()
    assert found == (to_utc(local, zone),)


def test_without_rules_of_the_team_both_have_the_same_defaults() -> None:
    defaults = asdict(Rules())
    assert {name: list(defaults[name]) if name == "windows" else defaults[name] for name in json.loads(DEFAULTS)} == (
        json.loads(DEFAULTS)
    )


def test_a_refusal_by_the_database_names_the_rule_as_pythons_does(database_team: Team) -> None:
    """The rules changed after this desktop had read them, so only the database refuses the booking."""
    ada, lee = database_team.open("ada"), database_team.open("lee")
    old = lee.rules()
    ada.set_rules(replace(old, quota_gpu_hours=2))
    lee.queries.load_rules = lambda connection: old  # type: ignore[method-assign]  # The test replaces this method.
    with pytest.raises(Refused, match=r"lee has 0\.00 of 2 GPU-hours in the week of 6 Jan") as refused:
        lee.book(draft("a0", 24, 3))
    assert (refused.value.code, refused.value.hint) == ("quota", "See `torchyard bookings rules`.")
    assert lee.count() == 0


def test_a_member_cannot_pass_a_quota_by_two_transactions_at_once(database_team: Team) -> None:
    server = database_team.server
    assert server is not None
    database_team.open("ada").set_rules(Rules(quota_gpu_hours=3, same_day_is_free=False))
    start = NOW + 24 * HOUR
    with server.connect(PERSON, "team") as one, server.connect(PERSON, "team") as two:
        for connection, key, level in ((one, "one", "READ COMMITTED"), (two, "two", "REPEATABLE READ")):
            connection.execute(f"BEGIN ISOLATION LEVEL {level}")
            connection.execute("SELECT count(*) FROM bookings")
            connection.execute(INSERT, (key, PERSON, start, start + 2 * HOUR, "booked", None))
        of_gpu = "INSERT INTO booking_gpus (booking_id, gpu) VALUES (%s, %s)"
        one.execute(of_gpu, ("one", "GPU-a0"))
        with pytest.raises(psycopg.errors.CheckViolation) as refused:
            two.execute(of_gpu, ("two", "GPU-a1"))
        assert refused.value.diag.constraint_name == "isolation"
        two.execute("ROLLBACK")
        two.execute("BEGIN")
        two.execute(INSERT, ("two", PERSON, start, start + 2 * HOUR, "booked", None))
        answers: list[str | None] = []

        def book() -> None:
            try:
                two.execute(of_gpu, ("two", "GPU-a1"))
            except psycopg.errors.CheckViolation as why:
                answers.append(why.diag.constraint_name)

        waits = threading.Thread(target=book)
        waits.start()
        one.execute("COMMIT")
        waits.join(60)
        assert answers == ["quota"]
        two.execute("ROLLBACK")


def test_an_admin_is_held_to_the_rules_by_python_and_may_correct_by_sql(database_team: Team) -> None:
    server = database_team.server
    assert server is not None
    with pytest.raises(Refused, match="at most 7 days long"):
        database_team.open("ada").book(draft("a0", 1, 200))
    with server.connect("ada", "team") as ada:
        ada.execute(INSERT, ("long", "kim", NOW, NOW + 200 * HOUR, "booked", None))
    store = open_store(server.url("kim", "team"), "kim")
    try:
        assert store.booking("long").owner == "kim"
    finally:
        store.close()
