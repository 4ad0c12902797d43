"""A run that starts by itself, with no desktop and no daemon left, on the lab's hosts."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.faults.runs import LaunchedRun, Team, daemon_of
from torchyard_core.booking.launching import LaunchBooking, Wanted
from torchyard_core.booking.offline import Calendar
from torchyard_core.launch.start import Launch
from torchyard_core.topology.file import read_topology

pytestmark = pytest.mark.lab

COMMAND = "launcher: command\ncommand: [python3, script.py]"


def launched(team: Team, folder: Path, start_at: datetime) -> LaunchedRun:
    """On three hosts, to start at that time."""
    source = read_topology(team.topology("print('started', flush=True)", COMMAND))
    assert source.topology is not None
    calendar = Calendar(f"sqlite:///{folder / 'bookings.sqlite3'}", "kim", folder / "seen.json")
    reserving = LaunchBooking(calendar, "UTC", Wanted(start_at=start_at))
    started = Launch(source, source.topology, "night", team.fleet, {}, lambda event: None, reserving=reserving).run()
    places = {replica.name: replica.host for replica in started.plan.replicas}
    return LaunchedRun(team, started.run_id, places, started.primary.host)


def test_a_scheduled_run_starts_by_itself_with_all_desktops_closed(team: Team, tmp_path: Path) -> None:
    start_at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=12)
    run = launched(team, tmp_path, start_at)
    for host in run.places.values():
        run.wait_for("waiting", host=host)
    assert run.log("worker-0") == ""
    team.fleet.close()
    for host in team.lab.hosts:
        os.kill(daemon_of(host), 9)
    assert datetime.now(UTC) < start_at, "the machine is too slow for this test"

    ended = run.ended(within_s=60)

    assert ended["state"] == "succeeded"
    (starting,) = [event for event in run.of("run_state") if event["state"] == "starting"]
    began = datetime.fromisoformat(starting["time"])
    assert start_at <= began < start_at + timedelta(seconds=10)
    assert all("started" in run.log(name) for name in run.places)


def test_a_scheduled_run_is_shown_as_waiting_and_can_be_stopped(team: Team, tmp_path: Path) -> None:
    run = launched(team, tmp_path, datetime.now(UTC) + timedelta(hours=2))
    shown = team.call(run.primary, "run.show", run_id=run.run_id)
    assert shown["state"] == "waiting"
    assert shown["reason"].startswith("starts at")
    assert shown["record"]["record"]["start_at"]
    began = time.monotonic()
    assert run.stop(force=False)["state"] == "stopped"
    assert time.monotonic() - began < 10
    assert "starting" not in run.states()
