"""Tests that scheduled runs start even if no desktop is connected and the daemon is not running."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.faults.runs import LaunchedRun, Team, daemon_of
from tests.waiting import wait_until
from torchyard_core.booking.launch_booking import LaunchBooking
from torchyard_core.booking.sync.cached_calendar import Calendar
from torchyard_core.launch.calendar_interface import BookingOptions
from torchyard_core.launch.launch import Launch
from torchyard_core.topology.file import read_topology

pytestmark = pytest.mark.lab

COMMAND = "launcher: command\ncommand: [python3, script.py]"


def launched(team: Team, folder: Path, start_at: datetime) -> LaunchedRun:
    """Launches a run on three hosts, scheduled to start at the given time."""
    source = read_topology(team.topology("print('started', flush=True)", COMMAND))
    assert source.topology is not None
    calendar = Calendar(f"sqlite:///{folder / 'bookings.sqlite3'}", "kim", folder / "seen.json")
    reserving = LaunchBooking(calendar, "UTC", BookingOptions(start_at=start_at))
    started = Launch(source, source.topology, "night", team.fleet, {}, lambda event: None, reserving=reserving).run()
    places = {replica.name: replica.host for replica in started.plan.replicas}
    return LaunchedRun(team, started.run_id, places, started.primary.host)


def test_scheduled_runs_can_be_stopped_and_start_by_themselves_with_all_desktops_closed(
    team: Team, tmp_path: Path
) -> None:
    launching_at = time.monotonic()
    tonight = launched(team, tmp_path, datetime.now(UTC) + timedelta(hours=2))
    took = timedelta(seconds=time.monotonic() - launching_at)
    shown = team.call(tonight.primary, "run.show", run_id=tonight.run_id)
    assert shown["state"] == "waiting"
    assert shown["reason"].startswith("starts at")
    assert shown["record"]["record"]["start_at"]
    assert tonight.stop(force=False)["state"] == "stopped"
    assert "starting" not in tonight.states()

    # The run starts soon, to keep the test short, but late enough to be inspected before that on a busy machine.
    start_at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=4) + 3 * took
    run = launched(team, tmp_path, start_at)
    for host in run.places.values():
        wait_until(lambda host=host: "waiting" in run.states(host))
    team.fleet.close()
    for host in team.lab.hosts:
        os.kill(daemon_of(host), 9)

    ended = run.ended()

    assert ended["state"] == "succeeded"
    assert run.states()[0] == "waiting"
    (starting,) = [event for event in run.of("run_state") if event["state"] == "starting"]
    assert datetime.fromisoformat(starting["time"]) >= start_at.replace(microsecond=0)
    assert all("started" in run.log(name) for name in run.places)
