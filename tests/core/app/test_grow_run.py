"""Tests of requests to add workers that are refused before a host is contacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard_core.app.desktop import Desktop
from torchyard_core.app.grow_run import GrowRun
from torchyard_core.booking.sync.cached_calendar import Calendar
from torchyard_core.engines.registry import open_fleet
from torchyard_core.errors import UsageError
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.fleet.inventory import Host
from torchyard_core.home import Home
from torchyard_core.launch.runs.known_runs import KnownRun

CLUSTER = Cluster.model_validate({"name": "hpc", "kind": "slurm"})


def test_workers_cannot_be_added_to_a_run_on_a_cluster(tmp_path: Path) -> None:
    fleet = open_fleet([Host(name="gpu-a")], [CLUSTER], tmp_path / "known", tmp_path / "facts")
    calendar = Calendar(f"sqlite:///{tmp_path / 'bookings'}", "lee", tmp_path / "seen")
    desktop = Desktop(Home(tmp_path), fleet, calendar, "UTC")
    run = KnownRun("r", "digits", "running", "", "", "hpc.1", ("hpc.1", "hpc.2"), is_fresh=True)
    for host in ("gpu-a", "hpc.2", "n1"):
        with pytest.raises(UsageError, match="run r is on a cluster, where Slurm allocates all nodes") as refused:
            GrowRun(desktop, run, host).run()
        assert "more replicas" in refused.value.sentence()
