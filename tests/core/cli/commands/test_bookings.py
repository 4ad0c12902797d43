"""Tests of `torchyard book` and `torchyard bookings` on real calendars."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.core.booking.cluster import Cluster
from tests.core.cli.command_runner import answer, torchyard
from tests.lab import Desktop
from torchyard_core.booking.model import Booking, IdleEvidence, State
from torchyard_core.booking.store import open_store
from torchyard_core.cli.views.booking_tables import booking_json, print_bookings

MakeDesktop = Callable[..., Desktop]
GPUS = {"gpu-a": 4, "gpu-b": 4}
TODAY = datetime.now(ZoneInfo("Europe/Berlin")).date()
MONDAY = TODAY + timedelta(days=14 - TODAY.weekday())
"""The Monday of the week after next. It is in the future, because the command uses the machine's clock and books no
times in the past.
"""
TUESDAY = MONDAY + timedelta(days=1)


def utc(clock: str, zone: str = "Europe/Berlin", *, days: int = 0) -> str:
    """Returns a time on the test's Tuesday, or some days later, in the format that commands print."""
    local = datetime.combine(TUESDAY + timedelta(days=days), time.fromisoformat(clock), ZoneInfo(zone))
    return f"{local.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def with_fleet(desktop: Desktop, **settings: str) -> Desktop:
    """Adds two hosts with four GPUs each and one host without GPUs, as if all had been checked."""
    hosts = [f"  - {{name: {name}, address: 192.0.2.1}}\n" for name in (*GPUS, "big-cpu")]
    desktop.fleet_file.write_text("version: 1\nhosts:\n" + "".join(hosts))
    facts = {
        name: {
            "address": "192.0.2.1",
            "checked_at": "2026-11-22T00:00:00Z",
            "gpus": [
                {"index": number, "uuid": f"GPU-{name}-{number}", "name": "NVIDIA A100", "memory_mb": 40960}
                for number in range(GPUS.get(name, 0))
            ],
        }
        for name in (*GPUS, "big-cpu")
    }
    (desktop.home / "facts.json").write_text(json.dumps(facts))
    (desktop.home / "settings.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    return desktop


@pytest.fixture
def kim(make_desktop: MakeDesktop) -> Desktop:
    return with_fleet(make_desktop(), person="kim", zone="Europe/Berlin")


def refused(desktop: Desktop, *arguments: str, code: int = 1) -> dict[str, Any]:
    """Runs a command that must fail and book nothing; returns its error from the JSON output."""
    before = answer(desktop, "bookings", "list", "--all")
    error: dict[str, Any] = json.loads(torchyard(desktop, *arguments, "--json", code=code).stdout)["error"]
    assert answer(desktop, "bookings", "list", "--all") == before
    return error


def proposed(output: str) -> list[str]:
    """Returns the arguments of the command that is proposed at the end of a refusal."""
    return shlex.split(output[output.index("`torchyard ") + len("`torchyard ") : output.rindex("`")])


def test_gpus_are_booked_listed_shown_extended_and_let_go(kim: Desktop) -> None:
    booked = answer(kim, "book", "gpu-a:0-1", "gpu-b:*", "--to", "+2h", "--title", "digits", "--purpose", "a paper")
    assert booked["names"] == "gpu-a:0-1, gpu-b:0-3"
    assert (booked["owner"], booked["zone"], booked["state"]) == ("kim", "Europe/Berlin", "booked")

    listed = torchyard(kim, "bookings", "list", "--mine")
    assert "gpu-a:0-1, gpu-b:0-3" in listed.stdout
    assert "only on this computer" in listed.stderr
    assert "a paper" in torchyard(kim, "bookings", "show", booked["id"][:6]).stdout
    output = torchyard(kim, "bookings", "history", booked["id"][:6]).stdout
    assert "kim (" in output
    assert " created it" in output
    (made,) = answer(kim, "bookings", "history", booked["id"])
    assert (made["person"], made["kind"]) == ("kim", "made")
    assert {"field": "ends", "before": None, "after": booked["end"]} in made["fields"]
    assert answer(kim, "bookings", "list", "--gpus", "gpu-a:3") == []
    assert answer(kim, "bookings", "list", "--title", "DIGITS") == [booked]

    longer = answer(kim, "bookings", "change", booked["id"], "--extend", "30m")
    lasts = datetime.fromisoformat(longer["end"]) - datetime.fromisoformat(booked["start"])
    assert lasts == timedelta(hours=2, minutes=30)
    assert answer(kim, "bookings", "release", booked["id"])[0]["state"] == "released"
    assert answer(kim, "bookings", "list") == []
    assert [one["id"] for one in answer(kim, "bookings", "list", "--all")] == [booked["id"]]


def test_times_are_of_the_persons_zone_and_a_night_ends_on_the_next_day(kim: Desktop) -> None:
    booked = answer(kim, "book", "gpu-a:0", "--from", f"{TUESDAY} 22:00", "--to", "06:00")
    assert (booked["start"], booked["end"]) == (utc("22:00"), utc("06:00", days=1))
    other = answer(kim, "book", "gpu-a:1", "--from", f"{TUESDAY} 22:00", "--to", "+8h", "--zone", "Asia/Seoul")
    assert (other["start"], other["end"]) == (utc("22:00", "Asia/Seoul"), utc("06:00", "Asia/Seoul", days=1))


def test_words_of_an_end_count_from_now_and_the_whole_interval_is_printed(kim: Desktop) -> None:
    for words in (["tomorrow 9", "tomorrow 17"], ["내일 오후 6시", "내일 오후 8시"]):
        booked = answer(kim, "book", "gpu-a:0", "--from", words[0], "--to", words[1])
        assert datetime.fromisoformat(booked["end"]) - datetime.fromisoformat(booked["start"]) <= timedelta(hours=8)
    output = torchyard(kim, "book", "gpu-a:1", "--from", f"{TUESDAY} 22:00", "--to", "1h30m").stdout
    assert f" from Tue {TUESDAY} 22:00 to Tue {TUESDAY} 23:30 (Europe/Berlin, 90 min)." in output
    year = TODAY.year if TODAY.month < 3 else TODAY.year + 1
    sunday = next(day for day in (datetime(year, 3, number) for number in range(31, 24, -1)) if day.weekday() == 6)
    error = refused(kim, "book", "gpu-a:1", "--from", f"{sunday:%Y-%m-%d} 02:30", "--to", "03:30", code=2)
    assert error["code"] == "no_such_time"


def test_a_clash_says_whose_when_and_the_command_that_books_the_nearest(kim: Desktop) -> None:
    torchyard(kim, "book", "gpu-a:0-1", "--from", "tomorrow 9", "--to", "17:00", "--title", "digits")
    wish = ("book", "gpu-a:1-2", "--from", "tomorrow 10", "--to", "+2h", "--title", "it's ours", "--stop-at-end")
    output = torchyard(kim, *wish, code=1).stderr
    assert "gpu-a:1 is booked by you ('digits') from" in output
    assert "09:00 to 17:00" in output

    error = refused(kim, *wish)
    assert error["code"] == "conflict"
    assert error["conflict"]["clashing"][0]["names"] == "gpu-a:1"

    nearest = answer(kim, *proposed(output))
    assert nearest["gpus"] == error["conflict"]["nearest"][0]["gpus"]
    assert nearest["start"] == error["conflict"]["nearest"][0]["start"]
    assert (nearest["title"], nearest["stop_at_end"]) == ("it's ours", True)


def test_a_booking_that_cannot_be_moved_there_gets_the_command_that_moves_it_elsewhere(kim: Desktop) -> None:
    torchyard(kim, "book", "gpu-a:0", "--from", "tomorrow 9", "--to", "17:00")
    mine = answer(kim, "book", "gpu-a:0", "--from", "tomorrow 18", "--to", "20:00", "--title", "digits")
    output = torchyard(kim, "bookings", "change", mine["id"], "--from", "tomorrow 10", code=1).stderr
    moved = answer(kim, *proposed(output))
    assert (moved["id"], moved["title"]) == (mine["id"], "digits")
    assert len(answer(kim, "bookings", "list")) == 2

    running = answer(kim, "book", "gpu-a:1", "--to", "+2h")
    torchyard(kim, "book", "gpu-a:1", "--from", "+2h", "--to", "+4h")
    output = torchyard(kim, "bookings", "change", running["id"], "--extend", "1h", code=1).stderr
    assert "change" not in proposed(output)  # A booking that has begun cannot be moved.


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code", "reason"),
    [
        (["gpu-a:0", "--from", "+3h", "--to", "now"], "end_before_start", 1, "end after its start"),
        (["gpu-a:0", "--from", "2026-01-05 09:00", "--to", "+2h"], "past", 1, "earliest start is now"),
        (["gpu-a:0", "--to", "+8d"], "too_long", 1, "what comes after is another booking"),
        (["gpu-a:0", "--to", "+1m"], "too_short", 1, "at least"),
        (["gpu-a:0", "--from", "+200d", "--to", "+2h"], "too_far", 1, "may end by"),
        (["gpu-x:0", "--to", "+2h"], "unknown_gpu", 2, "There are:"),
        (["gpu-a:7", "--to", "+2h"], "unknown_gpu", 2, "gpu-a has gpu-a:0-3"),
        (["gpu-a:0", "--to", "+2h", "--zone", "Europe/Berln"], "unknown_zone", 2, "did you mean `Europe/Berlin`"),
        (["gpu-a:0", "--to", "noon"], "bad_time", 2, "tomorrow 9"),
        (["gpu-a:0", "--to", "+2h", "--free-ones"], "usage", 2, "--repeat"),
    ],
)
def test_what_cannot_be_booked_is_a_sentence_with_the_nearest_way(
    kim: Desktop, arguments: list[str], code: str, exit_code: int, reason: str
) -> None:
    error = refused(kim, "book", *arguments, code=exit_code)
    assert error["code"] == code
    assert reason in f"{error['message']} {error['hint']}"


def test_a_quota_that_is_exceeded_says_how_much_is_left(kim: Desktop) -> None:
    torchyard(kim, "bookings", "rules", "--set", "quota_gpu_hours=10", "--set", "same_day_is_free=false")
    error = refused(kim, "book", "gpu-a:*", "--from", "+2d", "--to", "+4h")
    assert error["code"] == "quota"
    assert "10 GPU-hours" in error["message"]


def test_a_rule_that_there_is_not_is_named_with_the_nearest(kim: Desktop, tmp_path: Path) -> None:
    done = torchyard(kim, "bookings", "rules", "--set", "longest=4", code=2)
    assert "longest_h" in done.stderr
    assert answer(kim, "bookings", "rules")["longest_h"] == 168
    (tmp_path / "rules.yaml").write_text("longest_h: 48\n", encoding="utf-8")
    reason = answer(kim, "bookings", "rules", "--file", "-", stdin=tmp_path / "rules.yaml")
    assert reason["longest_h"] == 48


def test_repeated_bookings_are_all_or_nothing_or_the_free_ones(kim: Desktop) -> None:
    torchyard(
        kim,
        "book",
        "gpu-a:0",
        "--from",
        f"{TUESDAY + timedelta(days=7)} 08:30",
        "--to",
        "10:00",
        "--title",
        "in the way",
    )
    weekly = ["book", "gpu-a:0", "--from", f"{TUESDAY} 09:00", "--to", "10:00", "--repeat", "FREQ=WEEKLY;COUNT=3"]
    assert refused(kim, *weekly)["code"] == "conflict"

    made = answer(kim, *weekly, "--free-ones")
    assert [one["start"] for one in made["booked"]] == [utc("09:00"), utc("09:00", days=14)]
    assert [one["start"] for one in made["missed"]] == [utc("09:00", days=7)]

    beyond = ["book", "gpu-a:1", "--from", f"{TUESDAY} 09:00", "--to", "+1h", "--repeat", "FREQ=WEEKLY;COUNT=30"]
    error = refused(kim, *beyond)
    assert error["code"] == "too_far"
    assert "of the 30 bookings of the series" in error["message"]

    first, last = (one["id"] for one in made["booked"])
    changed = answer(kim, "bookings", "change", first, "--from", f"{TUESDAY} 11:00", "--title", "later", "--following")
    assert [(one["start"], one["title"]) for one in changed] == [
        (utc("11:00"), "later"),
        (utc("11:00", days=14), "later"),
    ]
    assert [one["id"] for one in answer(kim, "bookings", "change", last, "--extend", "1h", "--series")] == [first, last]
    assert (
        refused(kim, "bookings", "change", last, "--title", "x", "--series", "--following", code=2)["code"] == "usage"
    )
    assert [one["id"] for one in answer(kim, "bookings", "cancel", last, "--following", "-y")] == [last]
    gone = answer(kim, "bookings", "cancel", first, "--series", "-y")
    assert [one["state"] for one in gone] == ["cancelled"]
    assert refused(kim, "book", "gpu-a:0", "--to", "+2h", "--repeat", "FREQ=SOMETIMES", code=2)["message"]


def test_mine_and_a_person_are_not_asked_for_together(kim: Desktop) -> None:
    assert refused(kim, "bookings", "list", "--mine", "--person", "lee", code=2)["code"] == "usage"


def test_a_place_is_found_and_its_command_books_it(kim: Desktop) -> None:
    torchyard(kim, "book", "gpu-a:0", "--to", "+6h")
    first, *_ = answer(kim, "bookings", "find", "4", "--for", "3h", "--min-memory-gb", "40")
    assert first["names"] == "gpu-b:0-3"
    assert answer(kim, *first["command"].split()[1:])["names"] == "gpu-b:0-3"
    # The proposed times are in the time zone that the request names.
    there = ["--from", f"{TUESDAY} 09:00", "--zone", "Asia/Seoul"]
    later, *_ = answer(kim, "bookings", "find", "4", "--for", "3h", *there)
    words = later["command"].split('"')
    assert answer(kim, *words[0].split()[1:], words[1], *words[2].split())["start"] == utc("09:00", "Asia/Seoul")


NIGHTS = "windows=[{gpus: ['gpu-*'], zone: Europe/Berlin, opens: '20:00', closes: '08:00'}]"
HOPELESS = [
    ([], ["9", "--for", "3h"], "too_few", "9 GPUs requested, but the fleet has 8 of that kind"),
    ([], ["8", "--for", "3h"], "too_few", "no host has 8 GPUs of that kind: the most, 4, are on gpu-a"),
    ([], ["1", "--for", "3h", "--to", "+2h"], "no_time", "3 h do not fit from"),
    ([], ["1", "--for", "3h", "--from", "+100d"], "too_far", "at most 90 days ahead"),
    ([NIGHTS], ["4", "--for", "13h"], "window", "open: daily 20:00 to 08:00 (Europe/Berlin)"),
    (
        ["windows=[]", "quota_gpu_hours=10", "same_day_is_free=false"],
        ["4", "--for", "3h", "--from", f"{TUESDAY} 09:00", "--to", f"{TUESDAY + timedelta(days=4)} 09:00"],
        "quota",
        f"kim has 0 of 10 GPU-hours in the week of {MONDAY:%-d %b}, and this booking takes 12 more",
    ),
]


def test_bookings_are_listed_also_while_a_cluster_does_not_answer(kim: Desktop) -> None:
    booked = answer(kim, "book", "gpu-a:0", "--to", "+2h")
    login = "{address: 127.0.0.1, port: 1}"  # No server listens there.
    with kim.fleet_file.open("a") as file:
        file.write(f"clusters: [{{name: hpc, kind: slurm, login: {login}}}]\n")
    done = torchyard(kim, "bookings", "list", "--on", "hpc", "--json", code=3)
    assert json.loads(done.stdout) == [booked]
    assert "the jobs and reservations of hpc are not listed: " in done.stderr
    assert "127.0.0.1" in done.stderr
    for command in ("show", "cancel"):
        explained = torchyard(kim, "bookings", command, "slurm:hpc/job 7", code=2).stderr
        assert "job 7 belongs to Slurm on hpc and is not a booking, so only Slurm can change it." in explained


def test_bookings_of_nodes_are_marked_where_slurm_has_no_reservation(capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.now(UTC)
    about = ("kim", "t", "", ("slurm:hpc/n1",), now, now + timedelta(hours=1), "UTC", State.BOOKED, now, now)
    bookings = [Booking(name, *about) for name in ("reserved", "plain", "slurm:hpc/job 7")]
    bookings.append(replace(bookings[0], id="gpu", gpus=("GPU-1",)))
    print_bookings(bookings, (), "UTC", {"reserved"})
    rows = {row.split()[0]: row for row in capsys.readouterr().out.splitlines()}
    assert [name for name, row in rows.items() if "not exclusive" in row] == ["plain"]
    found = [booking_json(one, (), {"reserved"}).get("exclusive", "missing") for one in bookings]
    assert found == [True, False, "missing", "missing"]
    assert booking_json(bookings[0], ())["exclusive"] is None


def test_where_nothing_can_ever_be_booked_the_reason_is_printed_and_the_waitlist_stays_empty(kim: Desktop) -> None:
    for rules, wish, code, reason in HOPELESS:
        if rules:
            torchyard(kim, "bookings", "rules", *(word for rule in rules for word in ("--set", rule)))
        error = answer(kim, "bookings", "find", *wish, code=1)["error"]
        assert error["code"] == code
        assert reason in f"{error['message']} {error['hint']}"
        assert "waitlist" not in error["hint"]
    assert refused(kim, "bookings", "wait", *wish)["code"] == "quota"
    assert answer(kim, "bookings", "waitlist") == []


def test_where_only_bookings_are_in_the_way_the_waitlist_is_proposed(kim: Desktop) -> None:
    torchyard(kim, "book", "gpu-a:*", "gpu-b:*", "--to", "+5d")
    error = refused(kim, "bookings", "find", "4", "--for", "3h", "--to", "+4d")
    advised = f"`torchyard --home {kim.home} bookings wait 4 --for 3h` joins the waitlist."
    assert (error["code"], error["hint"]) == ("nothing_free", advised)


def test_who_waits_gets_what_is_released_in_order(kim: Desktop) -> None:
    held = answer(kim, "book", "gpu-a:*", "gpu-b:*", "--to", "+5d")
    wanted = ["bookings", "wait", "4", "--for", "3h", "--to", "+4d", "--title", "evaluation"]
    waiting = answer(kim, *wanted)
    assert waiting["state"] == "waiting"
    assert [one["id"] for one in answer(kim, "bookings", "waitlist")] == [waiting["id"]]

    output = torchyard(kim, "bookings", "release", held["id"])
    assert "Booked for kim from the waitlist" in output.stderr
    (one,) = answer(kim, "bookings", "waitlist", "--all")
    assert one["state"] == "booked"
    assert [b["title"] for b in answer(kim, "bookings", "list", "--mine")] == ["evaluation"]

    # GPUs that become free when bookings are cancelled or shortened are offered to the waitlist.
    both = ["gpu-a:*", "gpu-b:*"]
    for given_up in (["cancel"], ["change", "--to", "+2d"]):
        held = answer(kim, "book", *both, "--from", "+10d", "--to", "+5d")
        answer(kim, "bookings", "wait", "8", "--for", "3h", "--from", "+12d", "--to", "+2d", "--any-hosts")
        output = torchyard(kim, "bookings", given_up[0], held["id"], *given_up[1:])
        assert "Booked for kim from the waitlist" in output.stderr
        for one in answer(kim, "bookings", "list", "--from", "+10d"):
            torchyard(kim, "bookings", "cancel", one["id"])

    again = answer(kim, "bookings", "wait", "8", "--for", "3h", "--to", "+5h", "--any-hosts")
    assert answer(kim, "bookings", "waitlist", "--leave", again["id"]) == []


def test_who_does_not_use_a_booking_is_warned_before_it_frees_itself(kim: Desktop) -> None:
    torchyard(kim, "bookings", "rules", "--set", "idle_release_min=10")
    booked = answer(kim, "book", "gpu-a:0", "--to", "+4h")
    kim.fleet_file.write_text("version: 1\nhosts: []\n")
    start = datetime.fromisoformat(booked["start"])
    store = open_store(f"sqlite:///{kim.home / 'bookings.sqlite3'}", "kim")
    store.record_idle([IdleEvidence(booked["id"], start, start + timedelta(seconds=5))])
    store.close()
    output = torchyard(kim, "status").stderr
    frees_at = (start + timedelta(minutes=10)).astimezone(ZoneInfo("Europe/Berlin"))
    assert "Your booking is idle and will be released at " in output
    assert f"{frees_at:%H:%M}: {booked['id']}" in output
    assert [one["id"] for one in answer(kim, "bookings", "list")] == [booked["id"]]


def test_bookings_go_to_other_calendars_and_come_back(kim: Desktop, tmp_path: Path, make_desktop: MakeDesktop) -> None:
    booked = answer(kim, "book", "gpu-a:0-1", "--from", f"{TUESDAY} 09:00", "--to", "17:00", "--title", "digits")
    file = tmp_path / "gpus.ics"
    torchyard(kim, "bookings", "export", "-o", file)
    assert "BEGIN:VEVENT" in file.read_text()

    (seen,) = answer(kim, "bookings", "import", file)["preview"]
    assert seen["verdict"] == "there"
    other = with_fleet(make_desktop(), person="lee")
    assert answer(other, "bookings", "import", "-", "--preview", stdin=file)["booked"] == []
    (there,) = answer(other, "bookings", "import", file, "-y")["booked"]
    assert (there["names"], there["start"], there["owner"]) == ("gpu-a:0-1", booked["start"], "lee")

    text = file.read_text()
    file.write_text(
        text.replace("END:VCALENDAR", "BEGIN:VEVENT\nUID:y\nSUMMARY:bad\nDTSTART:x\nEND:VEVENT\nEND:VCALENDAR")
    )
    line = text.splitlines().index("END:VCALENDAR") + 1
    assert f"bad (line {line}): left out, DTSTART" in torchyard(kim, "bookings", "import", file, "-y", code=1).stderr

    file.write_text("BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:x\n")
    assert refused(kim, "bookings", "import", str(file), "-y", code=2)["code"] == "bad_calendar"
    assert refused(kim, "bookings", "import", str(tmp_path / "none.ics"), code=2)["code"] == "bad_calendar"


def test_a_run_takes_the_beginning_of_a_booking_s_id(kim: Desktop, tmp_path: Path) -> None:
    booked = answer(kim, "book", "gpu-a:0", "--to", "+2h")
    file = tmp_path / "empty.yaml"
    file.write_text("version: 1\nname: empty\npools: []\nprogram: {script: a.py}\n")
    found = refused(kim, "run", str(file), "--booking", booked["id"][:8])
    assert found["code"] == "topology_problems"
    assert refused(kim, "run", str(file), "--booking", "nonesuch", code=2)["code"] == "no_such_booking"


def test_bookings_of_any_time_are_shown_changed_and_exported(kim: Desktop, tmp_path: Path) -> None:
    torchyard(kim, "bookings", "rules", "--set", "furthest_days=null")
    far = answer(kim, "book", "gpu-a:0", "--from", f"{TODAY.year + 3}-07-01 09:00", "--to", "+2h")
    output = torchyard(kim, "bookings", "show", far["id"][:8]).stdout
    assert f"{TODAY.year + 3}-07-01 09:00 to " in output
    assert answer(kim, "bookings", "export")["bookings"] == 1
    assert answer(kim, "bookings", "change", far["id"][:8], "--extend", "1h")["id"] == far["id"]
    assert refused(kim, "bookings", "show", "b%", code=2)["code"] == "no_such_booking"
    assert refused(kim, "bookings", "show", "", code=2)["message"]
    for number in (0, 6, 12):  # At each of these positions, the ID has a wrong letter.
        wrong = far["id"][:number] + "x" + far["id"][number + 1 :]
        assert f"did you mean `{far['id']}`" in refused(kim, "bookings", "show", wrong.upper(), code=2)["message"]


def test_usage_is_counted_and_written_as_csv(kim: Desktop) -> None:
    torchyard(kim, "book", "gpu-a:0-1", "--to", "+4h")
    (row,) = answer(kim, "bookings", "usage", "--to", "+1d")
    assert row["key"] == "kim"
    assert row["booked_h"] == pytest.approx(8)
    text = torchyard(kim, "bookings", "usage", "--to", "+1d", "--by", "host", "--csv").stdout
    assert [line["host"] for line in csv.DictReader(io.StringIO(text))] == ["gpu-a"]
    assert refused(kim, "bookings", "usage", "--by", "month", code=2)["code"] == "wrong_value"


def test_logins_stand_for_persons(kim: Desktop) -> None:
    entries = answer(kim, "bookings", "logins", "--add", "gpu-*:ubuntu=kim", "--add", "gpu-*:ubuntu=lee")
    assert [one["person"] for one in entries] == ["kim", "lee"]
    assert len(answer(kim, "bookings", "logins", "--remove", "gpu-*:ubuntu=lee")) == 1
    assert refused(kim, "bookings", "logins", "--add", "ubuntu", code=2)["code"] == "bad_login"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("booking_url: sqlite:///x\n", "did you mean `bookings_url`"),
        ("zone: Europe/Berln\n", "did you mean `Europe/Berlin`"),
        ("bookings_url: mysql://x\n", "postgresql+psycopg://"),
        ("bookings_url: postgresql+psycopg://kim:secret@db/x\n", "password"),
    ],
)
def test_wrong_settings_are_a_sentence_and_no_command_goes_on(kim: Desktop, text: str, reason: str) -> None:
    (kim.home / "settings.yaml").write_text(text)
    done = torchyard(kim, "bookings", "wait", "1", "--for", "2h", code=2)
    assert reason in done.stderr
    assert not (kim.home / "bookings.sqlite3").exists()


def test_a_fleet_that_was_never_looked_at_has_nothing_to_book(make_desktop: MakeDesktop) -> None:
    assert "torchyard hosts check" in torchyard(make_desktop(), "book", "gpu-a:0", "--to", "+2h", code=1).stderr


# Tests of a team's calendar in PostgreSQL


def test_a_team_is_set_up_shares_a_calendar_and_takes_the_private_one_along(
    kim: Desktop, make_desktop: MakeDesktop, postgres: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres.connect("owner", "postgres") as connection:
        connection.execute("CREATE DATABASE cli_team")
    url = postgres.url("owner", "cli_team")
    members = [word for name in ("kim", "lee", "mia") for word in ("--member", name)]
    made = answer(kim, "bookings", "setup-team", url, "--admin", "ada", *members)
    urls = {one["name"]: one["bookings_url"] for one in made["members"]}
    mine = answer(kim, "book", "gpu-a:0-1", "--to", "+4h", "--title", "digits")

    # An admin moves a private calendar to the database. The names of its users become roles.
    moved = answer(kim, "bookings", "move-to", urls["ada"], "--rename", "kim=kim", "-y")
    assert moved["counts"]["bookings"] == 1

    # Lee sees Kim's booking, but can neither book its GPUs nor cancel it. Kim can release it from another desktop.
    lee = with_fleet(make_desktop(), bookings_url=urls["lee"])
    assert [one["owner"] for one in answer(lee, "bookings", "list")] == ["kim"]
    error = refused(lee, "book", "gpu-a:1-2", "--to", "+2h")
    assert "is booked by kim ('digits')" in error["message"]
    assert refused(lee, "bookings", "cancel", mine["id"])["code"] == "not_yours"
    assert refused(lee, "bookings", "rules", "--set", "longest_h=1")["code"] == "no_rights"
    own = with_fleet(make_desktop(), bookings_url=urls["kim"])
    torchyard(own, "bookings", "release", mine["id"])
    torchyard(lee, "book", "gpu-a:1-2", "--to", "+2h")

    # The calendar can be moved back into a file without loss.
    file = f"sqlite:///{tmp_path / 'back.sqlite3'}"
    answer(own, "bookings", "move-to", file, "-y")
    store = open_store(file, "kim")
    assert store.count() == 2
    store.close()
    # Mia logs in with the generated password of her new role. No desktop stores the password in a file.
    (password,) = [one["password"] for one in made["members"] if one["password"]]
    mia = with_fleet(make_desktop(), bookings_url=postgres.tcp_url("mia", "cli_team"))
    monkeypatch.setenv("PGPASSWORD", password)
    assert answer(mia, "book", "gpu-b:0", "--to", "+2h")["owner"] == "mia"
    for desktop in (kim, lee, own, mia):
        for path in filter(Path.is_file, desktop.directory.rglob("*")):
            assert password.encode() not in path.read_bytes(), path

    with postgres.connect("owner", "postgres") as connection:
        connection.execute("DROP DATABASE cli_team WITH (FORCE)")
        connection.execute("DROP ROLE mia")


def test_while_the_database_is_away_the_last_known_state_is_shown_with_its_age_and_nothing_is_booked(
    make_desktop: MakeDesktop,
) -> None:
    from tests.core.booking.cluster import cluster

    with cluster() as server:
        desktop = with_fleet(make_desktop(), bookings_url=server.url("kim", "team"))
        unknown = with_fleet(make_desktop(), bookings_url=server.url("lee", "team"))
        # Making this booking stores a copy of the calendar on the desktop.
        booked = answer(desktop, "book", "gpu-a:0", "--to", "+4h", "--title", "digits")
        server.stop()

        seen = torchyard(desktop, "bookings", "list", code=3)
        assert booked["id"] in seen.stdout
        assert "as of " in seen.stderr
        far = torchyard(desktop, "bookings", "list", "--from", "+100d", code=3)
        assert "Nothing is known to be booked then." in far.stdout
        assert "No bookings are known before " in far.stderr
        assert "No bookings are known" not in seen.stderr
        denied = torchyard(desktop, "book", "gpu-a:1", "--to", "+4h", code=3)
        assert "nothing was booked" in denied.stderr
        assert "digits" in torchyard(desktop, "bookings", "show", booked["id"], code=3).stdout
        for one in (desktop, unknown):
            one.fleet_file.write_text("version: 1\nhosts:\n  - {name: gpu-a, address: 127.0.0.1, port: 1}\n")
        output = torchyard(desktop, "status", code=3)  # The host does not answer either.
        (line,) = [line for line in output.stdout.splitlines() if line.startswith("gpu-a  0")]
        assert "kim until" in line
        assert "as of " in output.stderr
        # This desktop has no copy of the calendar, so it shows no GPU as free.
        output = torchyard(unknown, "status", code=3)
        assert "Free now" not in output.stdout
        assert "does not answer" in output.stderr
        with_fleet(desktop, bookings_url=server.url("kim", "team"))

        server.start()
        assert len(answer(desktop, "bookings", "list")) == 1
        torchyard(desktop, "book", "gpu-a:1", "--to", "+4h")
