"""Tests of the calendar of a real cluster: its running jobs and reservations in the list of bookings."""

from __future__ import annotations

import json
import time
from datetime import datetime

import pytest

from tests.end_to_end.slurm.conftest import DesktopFactory
from tests.lab.slurm import SlurmCluster

pytestmark = pytest.mark.lab


def test_running_jobs_and_reservations_are_listed_with_their_ends(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    desktop = on_cluster(user="lee")
    job = desktop.occupy("-t", "30", "-J", "train")
    made = cluster.run(
        *("scontrol", "create", "reservation", "ReservationName=maint", "StartTime=now+2hours", "Duration=60"),
        *("Nodes=n[1-2]", "Users=lee"),
    )
    assert made.returncode == 0, made.stderr
    try:
        begun = time.time()
        listed = desktop.torchyard("bookings", "list", "--on", "hpc", "--json")
        assert listed.returncode == 0, listed.stderr
        found = {one["title"]: one for one in json.loads(listed.stdout)}
        assert found[f"job {job} (train)"]["names"] == "hpc:n1, hpc:n2, hpc:n3"
        assert found[f"job {job} (train)"]["owner"] == "root on hpc"  # The login of the user, root here, is lee.
        assert found["reservation maint"]["names"] == "hpc:n1, hpc:n2"
        assert found["reservation maint"]["owner"] == "root"
        assert _seconds(found["reservation maint"]["as_of"]) >= begun - 60
        assert "The jobs of hpc are those of " in listed.stderr
        minutes = {
            title.split()[0]: (_seconds(one["end"]) - _seconds(one["start"])) / 60 for title, one in found.items()
        }
        assert minutes == {"job": 30, "reservation": 60}
        others = desktop.torchyard("bookings", "list", "--on", "hpd")
        assert others.returncode == 2
        assert "no cluster `hpd`" in others.stderr
    finally:
        cluster.run("scontrol", "delete", "ReservationName=maint")


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
