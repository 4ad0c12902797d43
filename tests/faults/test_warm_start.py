"""Tests of interpreters that are started while a launch is being checked, on hosts whose Python has torch."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.running import Event
from tests.faults.runs import Team, daemon_of, outside_pids, run_folders
from tests.waiting import wait_until
from torchyard_core.booking.launch_booking import LaunchBooking
from torchyard_core.booking.sync.cached_calendar import Calendar
from torchyard_core.launch.calendar_interface import BookingOptions
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.launch import Launch
from torchyard_core.launch.progress import Cancelled
from torchyard_core.topology.file import read_topology

pytestmark = pytest.mark.lab

TRAINING = """
import os, sys
was_there = "torch" in sys.modules
import torch
print("torch was there:", was_there, torch.zeros(1).item(), os.environ["TORCHYARD_RUN_ID"])
"""


def launch_of(team: Team, file: Path, name: str = "warm", **options: Any) -> Launch:
    source = read_topology(file)
    assert source.topology is not None, source.problems
    return Launch(source, source.topology, name, team.fleet, {}, lambda event: None, **options)


@pytest.mark.parametrize("how", ["cancelled", "a check fails"])
def test_a_launch_that_ends_while_it_checks_leaves_no_interpreter(team: Team, how: str) -> None:
    def on_check(check: Check) -> None:
        if check.name == "bandwidth":
            wait_until(lambda: all(outside_pids(host, "script.py") for host in team.lab.hosts))
            if how == "a check fails":
                raise RuntimeError("a check fails")
            launch.cancel()

    launch = launch_of(team, team.topology(TRAINING), on_check=on_check)
    with pytest.raises(Cancelled if how == "cancelled" else RuntimeError):
        launch.run()
    team.nothing_is_left()
    assert not run_folders(team.lab)


@pytest.mark.parametrize("how", ["desktop", "daemon"])
def test_interpreters_end_with_the_connection_of_their_launch(team: Team, how: str) -> None:
    (host, *_) = team.lab.hosts
    fleet = team.fleet
    link = next(iter(fleet.reach([host.name], lambda name, found: None).values()))
    assert not isinstance(link, Exception)
    rank = {"rank": 0, "local_rank": 0, "argv": [sys.executable, "script.py"], "env": {}}
    wanted = {"run_id": "warm", "host": host.name, "run_dir": "<folder>", "imports": ["colorsys"]}
    wanted["replicas"] = [{"name": "worker-0", "ranks": [rank]}]
    link.call("run.warm", {**wanted, "archive": link.archive})
    wait_until(lambda: outside_pids(host, "script.py"))
    if how == "daemon":
        os.kill(daemon_of(host), 9)
    else:
        fleet.close()
    team.nothing_is_left()
    assert not run_folders(team.lab)


def test_a_scheduled_run_has_no_waiting_interpreters(team: Team, tmp_path: Path) -> None:
    calendar = Calendar(f"sqlite:///{tmp_path / 'bookings.sqlite3'}", "kim", tmp_path / "seen.json")
    reserving = LaunchBooking(calendar, "UTC", BookingOptions(start_at=datetime.now(UTC) + timedelta(hours=2)))
    started = launch_of(team, team.topology(TRAINING), reserving=reserving).run()
    assert not any(outside_pids(host, "script.py") for host in team.lab.hosts)
    team.call(started.primary.host, "run.stop", run_id=started.run_id, force=True)
    team.nothing_is_left()


@pytest.mark.train
def test_two_launches_at_once_on_one_host_begin_in_interpreters_that_have_torch(team: Team) -> None:
    pool = "[{name: workers, role: worker, replicas: 1, hosts: [gpu-a]}]"
    files = [team.topology(TRAINING, pools=pool) for _ in range(2)]
    (host,) = (host for host in team.lab.hosts if host.name == "gpu-a")

    def on_event(event: Event) -> None:
        if event.get("state") == "sending":  # An interpreter that has hardly started by then would not be used.
            wait_until(lambda: len(outside_pids(host, "script.py")) == 2)

    with ThreadPoolExecutor(2) as threads:
        runs = list(threads.map(lambda file: team.launch(file, on_event), files))
    for run in runs:
        assert run.ended(120)["state"] == "succeeded"
        assert run.log("worker-0") == f"torch was there: True 0.0 {run.run_id}\n"
