"""Tests that launches by two users with the same fleet obey the calendar that the users share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.core.booking.cluster import cluster
from tests.core.cli.command_runner import answer, torchyard
from tests.lab import Desktop, Lab
from tests.waiting import wait_until
from torchyard_core.booking.store import BookingStore, open_store

pytestmark = pytest.mark.lab

HOSTS = ("gpu-a", "gpu-b")


@pytest.fixture
def calendar(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'team.sqlite3'}"


@pytest.fixture
def kim_and_lee(gpu_lab: Lab, make_desktop: Callable[..., Desktop], calendar: str) -> tuple[Desktop, Desktop]:
    desktops = []
    for person in ("kim", "lee"):
        desktop = make_desktop(gpu_lab, python=None)
        (desktop.home / "settings.yaml").write_text(f"bookings_url: {calendar}\nperson: {person}\n")
        desktops.append(desktop)
    torchyard(desktops[0], "hosts", "check", code=1)  # The exit code is 1 because the hosts have no torch.
    return desktops[0], desktops[1]


@pytest.fixture
def store(calendar: str) -> Iterator[BookingStore]:
    opened = open_store(calendar, "the test")
    yield opened
    opened.close()


def topology(folder: Path, *, hosts: tuple[str, ...] = ("gpu-a",), gpus: int = 1, says: str = "print('done')") -> Path:
    """Writes a topology with one worker per host, each of which uses `gpus` GPUs and runs the program `says`."""
    folder.mkdir(exist_ok=True)
    (folder / "work.py").write_text(f"import os, time\n{says}\n")
    pools = "".join(
        f"  - {{name: on-{host}, role: worker, replicas: 1, gpus: {gpus}, hosts: [{host}]}}\n" for host in hosts
    )
    file = folder / "work.yaml"
    file.write_text(
        f"version: 1\nname: work\npools:\n{pools}"
        "program: {launcher: command, command: [python3, work.py], stop_grace_s: 1}\n"
    )
    return file


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_launch_on_gpus_booked_by_another_user_is_refused_with_owner_and_end(
    kim_and_lee: tuple[Desktop, Desktop], tmp_path: Path, gpu_lab: Lab
) -> None:
    kim, lee = kim_and_lee
    booked = answer(kim, "book", "gpu-a:*", "--to", "+3h", "--title", "digits", "--zone", "Europe/Berlin")

    file = topology(tmp_path / "my run")
    refused = torchyard(lee, "run", file, "--name", "of lee", "--set", "name=x", code=1).stderr

    assert "is booked by kim ('digits')" in refused
    assert "--book" in refused
    # The refusal proposes the same command with another time, quoted for the shell.
    assert f" run '{file}' --name 'of lee' --set name=x --at " in refused
    # The refused launch created no run folder.
    assert list((gpu_lab["gpu-a"].home).glob(".torchyard/hosts/*/runs/*")) == []
    # The owner's run uses exactly the booked GPUs, and the booking remains in the calendar.
    done = events(torchyard(kim, "run", topology(tmp_path / "run", gpus=2), "--json").stdout)
    assert done[-1]["state"] == "succeeded"
    (line,) = [event["message"] for event in done if event["event"] == "check" and event["name"] == "booking"]
    assert "gpu-a:0-1: in your booking 'digits'" in line
    assert [one["id"] for one in answer(kim, "bookings", "list", "--mine")] == [booked["id"]]
    torchyard(kim, "bookings", "release", booked["id"])
    torchyard(lee, "run", topology(tmp_path / "run"))


def test_a_run_is_placed_on_gpus_without_a_booking(kim_and_lee: tuple[Desktop, Desktop], tmp_path: Path) -> None:
    kim, lee = kim_and_lee
    torchyard(kim, "book", "gpu-a:0", "--to", "+3h")
    says = "print('on', os.environ['CUDA_VISIBLE_DEVICES'])"
    shown = torchyard(lee, "run", topology(tmp_path / "run", says=says))
    assert "on GPU-gpu-a-1" in shown.stdout


def test_gpus_of_several_hosts_need_a_booking_which_ends_with_the_run(
    kim_and_lee: tuple[Desktop, Desktop], tmp_path: Path, store: BookingStore
) -> None:
    kim, _ = kim_and_lee
    file = topology(tmp_path / "run", hosts=HOSTS)

    refused = torchyard(kim, "run", file, code=1).stderr
    assert "only with a booking" in refused
    assert "--book 8h" in refused
    assert store.count() == 0

    torchyard(kim, "run", file, "--book", "4h")
    now = datetime.now(UTC)
    (booking,) = store.bookings(now - timedelta(hours=1), now + timedelta(hours=1))
    assert (booking.owner, booking.state, len(booking.gpus)) == ("kim", "released", 2)
    assert booking.run_id is not None
    assert booking.until <= now

    torchyard(kim, "run", file, "-y")  # `-y` answers the question "Book them until …?".
    assert store.count() == 2


def test_after_a_failure_the_gpus_are_kept_for_half_an_hour(
    kim_and_lee: tuple[Desktop, Desktop], tmp_path: Path, store: BookingStore
) -> None:
    kim, _ = kim_and_lee
    file = topology(tmp_path / "run", says="raise SystemExit(3)")
    torchyard(kim, "run", file, "--book", "4h", "--set", "program.max_restarts=0", code=1)
    now = datetime.now(UTC)
    (booking,) = store.bookings(now, now + timedelta(minutes=1), live=True)
    assert timedelta(minutes=28) < booking.end - now < timedelta(minutes=31)
    # A second launch within the half hour gets the same GPUs.
    done = events(torchyard(kim, "run", topology(tmp_path / "run"), "--json").stdout)
    assert any("in your booking" in event.get("message", "") for event in done)


def test_a_launch_that_fails_gives_its_booking_back(
    kim_and_lee: tuple[Desktop, Desktop], tmp_path: Path, store: BookingStore
) -> None:
    kim, _ = kim_and_lee
    file = topology(tmp_path / "run")
    file.write_text(file.read_text().replace("stop_grace_s: 1", "stop_grace_s: 1, workdir: nowhere"))
    torchyard(kim, "run", file, "--book", "4h", code=1)
    now = datetime.now(UTC)
    assert store.bookings(now, now + timedelta(hours=4), live=True) == ()


def test_a_scheduled_run_starts_without_a_desktop(
    kim_and_lee: tuple[Desktop, Desktop], tmp_path: Path, store: BookingStore, gpu_lab: Lab
) -> None:
    kim, lee = kim_and_lee
    file = topology(tmp_path / "run", hosts=HOSTS, gpus=2, says="time.sleep(600)")
    # The start is a few seconds from now. If the launch takes longer, the run begins as soon as it has been launched.
    done = torchyard(kim, "run", file, "--at", "+0.07m", "--book", "1h", "--detach")
    run_id = done.stdout.strip()
    assert re.search(r"^It starts at (\w+ \d+ \w+ )?\d\d:\d\d by itself", done.stderr, re.MULTILINE)
    assert "are booked by kim" in torchyard(lee, "run", file, "--book", "1h", code=1).stderr
    wait_until(lambda: answer(lee, "runs", "show", run_id)["state"] == "running")
    (journal,) = gpu_lab["gpu-a"].home.glob(f".torchyard/hosts/*/runs/{run_id}/journal.jsonl")
    states = [event for event in events(journal.read_text()) if event["event"] == "run_state"]
    went = {event["state"]: event for event in states}
    assert list(went) == ["waiting", "starting", "running"]
    (at, *_) = [event["reason"] for event in states if event.get("reason", "").startswith("starts at ")]
    assert went["starting"]["time"] >= at.removeprefix("starts at ").rstrip("Z")

    torchyard(kim, "runs", "stop", run_id)
    assert store.bookings(datetime.now(UTC), datetime.now(UTC) + timedelta(hours=1), live=True) == ()


def test_status_shows_free_gpus_and_bookings(kim_and_lee: tuple[Desktop, Desktop]) -> None:
    kim, lee = kim_and_lee
    torchyard(kim, "book", "gpu-a:0", "--to", "+3h", "--title", "digits")
    shown = torchyard(lee, "status").stdout
    assert "Free now: 3 of 4 GPUs" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("gpu-a") and "kim until" in line]
    assert "digits" in line
    hosts = {host["name"]: host["slots"] for host in answer(lee, "status")}
    assert [slot["free"] for slot in hosts["gpu-a"]] == [False, True]
    assert hosts["gpu-a"][0]["booked"]["owner"] == "kim"


def test_without_the_database_a_launch_uses_the_last_known_bookings_and_books_nothing(
    gpu_lab: Lab, make_desktop: Callable[..., Desktop], tmp_path: Path
) -> None:
    alone, both = topology(tmp_path / "alone", hosts=("gpu-b",)), topology(tmp_path / "both", hosts=HOSTS)
    with cluster() as server:
        kim, lee = (make_desktop(gpu_lab, python=None) for _ in range(2))
        for person, desktop in (("kim", kim), ("lee", lee)):
            (desktop.home / "settings.yaml").write_text(f"bookings_url: {server.url(person, 'team')}\n")
        torchyard(kim, "hosts", "check", code=1)
        torchyard(kim, "book", "gpu-a:*", "--to", "+3h", "--title", "digits")
        torchyard(lee, "bookings", "list")  # Copies the calendar to Lee's desktop. Kim's desktop already has a copy.
        server.stop()

        shown = torchyard(kim, "status")
        assert "kim until" in shown.stdout
        assert "Free now: 2 of 4 GPUs" in shown.stdout
        assert "as of " in shown.stderr
        # Lee's copy of the calendar contains Kim's booking, which may still exist, so Lee's launch is refused.
        refused = torchyard(lee, "run", topology(tmp_path / "run"), code=1).stderr
        assert "is booked by kim ('digits')" in refused
        assert "That is as of " in refused
        # The copy contains no booking of this GPU, but another user may have booked it since the copy was made. The run
        # therefore starts with a warning.
        told = events(torchyard(lee, "run", alone, "--json").stdout)
        assert told[-1]["state"] == "succeeded"
        (line,) = [event for event in told if event["event"] == "check" and event["name"] == "booking"]
        assert (line["ok"], line["warning"]) == (True, True)
        assert "others may have booked gpu-b:0 since" in line["message"]
        # While the database is unavailable, a run can use the user's own booking from the copy, but a run that needs a
        # new booking does not start.
        assert "in your booking 'digits'" in torchyard(kim, "run", topology(tmp_path / "run")).stderr
        runs = {run["run_id"] for run in answer(kim, "runs", "list")}
        for wanted in (["run", alone, "--book", "1h"], ["run", both, "-y"]):
            assert "nothing was booked" in torchyard(kim, *wanted, code=3).stderr
        assert {run["run_id"] for run in answer(kim, "runs", "list")} == runs

        server.start()
        torchyard(lee, "run", alone, "--book", "1h")
        assert [one["state"] for one in answer(lee, "bookings", "list", "--mine", "--all")] == ["released"]
