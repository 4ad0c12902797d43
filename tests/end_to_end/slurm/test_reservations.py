"""Tests of bookings of a real cluster's nodes, which Slurm mirrors as reservations."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.slurm.conftest import DesktopFactory
from tests.end_to_end.slurm.jobs import COMMAND, WAITS, ClusterDesktop, reservations
from tests.lab.slurm import SlurmCluster
from torchyard_core.booking.model import Booking, Draft
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.engines.registry import mirror_reservations, open_fleet, read_node_slots
from torchyard_core.fleet.fleet import Fleet
from torchyard_core.fleet.inventory import read_fleet

pytestmark = pytest.mark.lab

FROM, TO = "2031-01-08 09:00", "2031-01-08 17:00"
RULES = ("--set", "furthest_days=null", "--set", "longest_h=null")


def book(desktop: ClusterDesktop, nodes: str, *options: str) -> dict[str, Any]:
    done = desktop.torchyard("book", nodes, "--from", FROM, "--to", TO, "--zone", "UTC", "--json", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def bookings(desktop: ClusterDesktop) -> dict[str, dict[str, Any]]:
    """Lists the bookings after bringing them into agreement with Slurm."""
    options = ("--from", "now", "--to", "2031-02-01", "--all", "--on", "hpc", "--json")
    done = desktop.torchyard("bookings", "list", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return {one["id"]: one for one in json.loads(done.stdout)}


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


@pytest.fixture
def operator(on_cluster: DesktopFactory) -> ClusterDesktop:
    """A desktop of root, who may reserve nodes; its calendar takes bookings far ahead."""
    desktop = on_cluster()
    assert desktop.torchyard("bookings", "rules", *RULES).returncode == 0
    return desktop


@pytest.fixture(autouse=True)
def _no_reservations_left(cluster: SlurmCluster) -> Any:
    yield
    for name in reservations(cluster):
        cluster.run("scontrol", "delete", f"ReservationName={name}")


def test_a_booking_of_nodes_and_its_reservation_follow_each_other(
    operator: ClusterDesktop, cluster: SlurmCluster
) -> None:
    part = operator.torchyard("book", "hpc:n1:0", "--from", FROM, "--to", TO)
    assert part.returncode == 1
    assert "Slurm reserves whole nodes" in part.stderr
    made = book(operator, "hpc:n1,hpc:n2")
    name = f"torchyard_{made['id']}"
    found = reservations(cluster)[name]
    assert (found["Nodes"], found["Users"]) == ("n[1-2]", "root")
    assert (int(found["StartTime"]), int(found["EndTime"])) == (seconds(made["start"]), seconds(made["end"]))
    extended = operator.torchyard("bookings", "change", made["id"], "--extend", "2h", "--json")
    assert extended.returncode == 0, extended.stderr
    end = seconds(json.loads(extended.stdout)["end"])
    assert int(reservations(cluster)[name]["EndTime"]) == end
    changed = cluster.run("scontrol", "update", f"ReservationName={name}", "Nodes=n3", "Duration=60")
    assert changed.returncode == 0, changed.stderr
    listed = bookings(operator)
    assert (made["exclusive"], listed[made["id"]]["exclusive"]) == (True, True)
    assert f"slurm:hpc/reservation {name}" not in listed  # It is the booking, which is listed already.
    assert listed[made["id"]]["names"] == "hpc:n3"
    assert seconds(listed[made["id"]]["end"]) == seconds(listed[made["id"]]["start"]) + 3600
    cluster.run("scontrol", "delete", f"ReservationName={name}")
    assert bookings(operator)[made["id"]]["state"] == "cancelled"
    history = json.loads(operator.torchyard("bookings", "history", made["id"], "--json").stdout)
    assert [one["desktop"] == "slurm:hpc" for one in history] == [False, False, True, True]
    other = book(operator, "hpc:n1")
    assert operator.torchyard("bookings", "cancel", other["id"]).returncode == 0
    assert reservations(cluster) == {}


def test_a_refused_reservation_books_and_changes_nothing(operator: ClusterDesktop, cluster: SlurmCluster) -> None:
    cluster.run(
        *("scontrol", "create", "reservation", "ReservationName=maint", "StartTime=2031-01-08T10:00:00"),
        *("Duration=120", "Nodes=n1", "Users=root"),
    )
    done = operator.torchyard("book", "hpc:n1", "--from", FROM, "--to", TO, "--zone", "UTC", "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "not_reserved"
    assert "(n1 is reserved as maint from " in error["message"]
    assert list(reservations(cluster)) == ["maint"]
    other = book(operator, "hpc:n2")
    moved = operator.torchyard("bookings", "change", other["id"], "--gpus", "hpc:n1", "--json")
    assert moved.returncode == 1
    assert "so nothing was changed" in json.loads(moved.stdout)["error"]["message"]
    assert bookings(operator)[other["id"]]["names"] == "hpc:n2"
    assert reservations(cluster)[f"torchyard_{other['id']}"]["Nodes"] == "n2"
    assert operator.torchyard("bookings", "cancel", other["id"]).returncode == 0
    assert {one["state"] for one in bookings(operator).values() if not one["id"].startswith("slurm:")} == {"cancelled"}


def test_a_booking_of_another_user_is_not_exclusive_and_becomes_the_earliest_start(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    desktop = on_cluster(user="lee")
    assert desktop.torchyard("bookings", "rules", *RULES).returncode == 0
    done = desktop.torchyard("book", "hpc:n1", "--from", FROM, "--to", TO, "--zone", "UTC", "--json")
    assert done.returncode == 0, done.stderr
    assert "these bookings are not exclusive" in done.stderr
    assert reservations(cluster) == {}
    booking_id = json.loads(done.stdout)["id"]
    assert json.loads(done.stdout)["exclusive"] is False
    assert bookings(desktop)[booking_id]["exclusive"] is False
    pool = [{"name": "workers", "role": "worker", "replicas": 1}]
    run_id = desktop.run(desktop.write(WAITS, program=COMMAND, pools=pool), "--booking", booking_id)
    script = (desktop.run_dir(run_id, user="lee") / "job" / "job.sh").read_text()
    assert "#SBATCH --begin=now+" in script
    assert "--reservation" not in script


def test_a_run_on_a_booking_runs_in_its_reservation(operator: ClusterDesktop, cluster: SlurmCluster) -> None:
    done = operator.torchyard("book", "hpc:n2", "--to", "+2h", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    booking_id = json.loads(done.stdout)["id"]
    pool = [{"name": "workers", "role": "worker", "replicas": 1}]
    file = operator.write(WAITS, program=COMMAND, pools=pool)
    named, found = operator.run(file, "--booking", booking_id), operator.run(file)
    for run_id in (named, found):  # A launch at the time of a booking uses it, whether it is named or not.
        operator.wait_for(run_id, "running")
        nodes = json.loads((operator.run_dir(run_id) / "job" / "started.json").read_text())["nodes"]
        assert nodes == {"hpc.1": "n2"}
        assert json.loads((operator.run_dir(run_id) / "run.json").read_text())["record"]["booking"] == booking_id
    # A release ends the reservation at once, and the same nodes can be booked again while the user's jobs run on.
    assert operator.torchyard("bookings", "cancel", booking_id).returncode == 0
    assert reservations(cluster) == {}
    again = operator.torchyard("book", "hpc:n2", "--to", "+2h", "--json")
    assert again.returncode == 0, again.stdout + again.stderr
    assert list(reservations(cluster)) == [f"torchyard_{json.loads(again.stdout)['id']}"]
    assert set(cluster.jobs().values()) == {"RUNNING"}
    (cluster.controller.home / "end").touch()
    for run_id in (named, found):
        operator.wait_for(run_id, "succeeded")


def test_a_run_in_the_way_of_which_are_reservations_waits_for_their_end(
    operator: ClusterDesktop, cluster: SlurmCluster
) -> None:
    """Slurm gives one answer to a request that it can never satisfy and to one that waits for reservations."""
    done = operator.torchyard("book", "hpc:n1", "hpc:n2", "--from", "+2h", "--to", "+4h", "--title", "later", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    reserve = ("scontrol", "create", "reservation", "ReservationName=maint", "StartTime=now", "Duration=60")
    assert cluster.run(*reserve, "Nodes=n3", "Users=root").returncode == 0
    pool = [{"name": "workers", "role": "worker", "replicas": 2, "placement": "spread"}]
    file = operator.write(WAITS, program=COMMAND, pools=pool)
    started = operator.torchyard("run", file, "--on", "hpc", "-y", "--detach", "--json")
    assert started.returncode == 0, started.stdout + started.stderr
    lines = [json.loads(line) for line in started.stdout.splitlines()]
    (waits,) = [line for line in lines if "waits for reserved nodes" in str(line.get("message"))]
    assert "for your booking 'later'" in waits["message"]
    assert "A launch planned for the start of your booking 'later' runs in it." in str(waits)
    assert "With a `time_limit` of at most" in str(waits)
    run_id = lines[-1]["run_id"]
    operator.wait_for(run_id, "waiting", "ReqNodeNotAvail")
    assert operator.torchyard("runs", "stop", run_id).returncode == 0
    planned = operator.run(file, "--booking", json.loads(done.stdout)["id"])
    operator.wait_for(planned, "waiting")
    assert operator.torchyard("runs", "stop", planned).returncode == 0
    pool[0]["gpus"] = 64
    message = operator.run(operator.write(WAITS, program=COMMAND, pools=pool), expect=3)
    assert "reserved" not in message


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_fifty_bookings_and_their_reservations_do_not_diverge(
    operator: ClusterDesktop, cluster: SlurmCluster, tmp_path: Path
) -> None:
    """Fifty bookings are reserved; then half of them change in the calendar, and the other half in Slurm."""
    inventory = read_fleet(operator.fleet_file).usable()
    fleet = open_fleet(inventory.hosts, inventory.clusters, operator.known_hosts, tmp_path / "facts.json")
    store = open_store(f"sqlite:///{operator.home / 'bookings.sqlite3'}", "root")
    with fleet:
        try:
            _mirror_fifty(cluster, store, lambda: _mirrored(fleet, store, tmp_path))
        finally:
            store.close()


def _mirrored(fleet: Fleet, store: BookingStore, folder: Path) -> None:
    store.remember_slots(read_node_slots(fleet, "hpc"))
    assert mirror_reservations(fleet, "hpc", store, folder).problems == {}


def _mirror_fifty(cluster: SlurmCluster, store: BookingStore, mirror: Callable[[], None]) -> None:
    mirror()
    begin, hour = datetime(2031, 1, 8, tzinfo=UTC), timedelta(hours=1)
    made = []
    for number in range(50):
        start = begin + 3 * hour * (number // 3)
        made.append(store.book(Draft(f"b{number}", (f"slurm:hpc/n{number % 3 + 1}",), start, start + hour, "UTC")))
    mirror()
    assert _holds(cluster) == _wanted(store, made)
    for number, booking in enumerate(made):
        if number % 4 == 0:
            store.change(booking.id, end=booking.end + hour)
        elif number % 4 == 1:
            store.release(booking.id)
        elif number % 4 == 2:
            cluster.run("scontrol", "update", f"ReservationName=torchyard_{booking.id}", "Duration=120")
        else:
            cluster.run("scontrol", "delete", f"ReservationName=torchyard_{booking.id}")
    for _ in range(2):  # The second time, nothing is left to do.
        mirror()
        assert _holds(cluster) == _wanted(store, made)
    assert len(_holds(cluster)) == 25
    assert {end - start for _, start, end in _holds(cluster).values()} == {7200}


def _holds(cluster: SlurmCluster) -> dict[str, tuple[str, int, int]]:
    """Returns the nodes and times of the reservations, by the booking's ID."""
    return {
        name.removeprefix("torchyard_"): (one["Nodes"], int(one["StartTime"]), int(one["EndTime"]))
        for name, one in reservations(cluster).items()
    }


def _wanted(store: BookingStore, made: list[Booking]) -> dict[str, tuple[str, int, int]]:
    """Returns the nodes and times of the live bookings, by ID."""
    return {
        one.id: (one.gpus[0].partition("/")[2], int(one.start.timestamp()), int(one.end.timestamp()))
        for one in map(store.booking, (booking.id for booking in made))
        if one.is_live
    }
