"""Tests of enforcement on a host whose GPU is booked by one of two Unix users. The agent runs as root or as a user."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.faults.booked_host import SLEEPER, UUID, Site, booked_host
from tests.faults.runs import FOREVER
from tests.lab import Desktop, Lab
from tests.waiting import wait_until
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.sync.agent_sync import sync_agents
from torchyard_core.launch.launch import Launch
from torchyard_core.topology.file import read_topology

pytestmark = pytest.mark.lab

IGNORES_SIGTERM = "import os, signal, sys, time; signal.signal(15, signal.SIG_IGN); " + SLEEPER.partition("; ")[2]
AT_A_TERMINAL = """
import os
master, slave = os.openpty()
print(os.getpid(), flush=True)
while True:
    text = os.read(master, 4096).decode(errors="replace").strip()
    if text:
        print(text.replace("\\r", " ").replace("\\n", " "), flush=True)
"""


@pytest.fixture
def site(lab: Callable[..., Lab], make_desktop: Callable[..., Desktop], tmp_path: Path) -> Iterator[Site]:
    with booked_host(lab, make_desktop, tmp_path) as made:
        yield made


def test_a_root_agent_ends_use_of_another_users_booking_and_spares_the_owner(site: Site) -> None:
    root = site.team("root")
    _, anns = site.run("ann")
    _, stubborn = site.run("ann", IGNORES_SIGTERM)
    _, bobs = site.run("bob")
    site.on_gpu(anns, stubborn, bobs)
    site.booked_by("lee")

    site.exchange(root, "observe")
    wait_until(lambda: site.acts(root, anns) == ["observed"])
    site.exchange(root, "stop", dry_run=True)
    wait_until(lambda: "terminated" in site.acts(root, stubborn))
    assert all(map(site.is_alive, (anns, stubborn, bobs)))

    site.exchange(root, "off")
    wait_until(lambda: root.call("gpu-a", "bookings.status")["findings"] == [])
    site.exchange(root, "stop")
    wait_until(lambda: not site.is_alive(anns))
    wait_until(lambda: not site.is_alive(stubborn))
    wait_until(lambda: site.acts(root, stubborn)[-3:] == ["warned", "terminated", "killed"])
    assert site.acts(root, bobs) == []
    assert site.is_alive(bobs)

    told = root.desktop.torchyard("hosts", "check", "gpu-a", "--json")
    found = json.loads(told.stdout)
    (check,) = found if isinstance(found, list) else found["hosts"]
    assert check["bookings"]["capabilities"]["acts_on"] == "all"
    assert check["bookings"]["enforcement"]["level"] == "stop"
    assert [one["verdict"] for one in check["bookings"]["findings"] if one["pid"] == bobs] == ["own"]
    shown = root.desktop.torchyard("hosts", "check", "gpu-a").stdout
    assert "gpu-a: bookings are enforced (stop) on all users' processes; 0 on GPUs that others have booked." in shown


def test_a_run_is_ended_through_its_keeper_and_not_restarted(site: Site) -> None:
    ann = site.team("ann")
    program = "launcher: command\ncommand: [python3, script.py]\nmax_restarts: 3"
    file = ann.topology(FOREVER, program, "[{name: workers, role: worker, replicas: 1, gpus: 1}]")
    source = read_topology(file)
    assert source.topology is not None
    started = Launch(source, source.topology, "anns", ann.fleet, {}, lambda event: None).run()
    wait_until(lambda: ann.call("gpu-a", "run.show", run_id=started.run_id)["state"] == "running")
    (rank,) = [process.pid for process in site.host.processes() if "script.py" in process.argv]
    site.on_gpu(rank)
    site.booked_by("lee")
    root = site.team("root")
    site.exchange(root, "stop")
    wait_until(lambda: not site.is_alive(rank))
    site.on_gpu()
    wait_until(lambda: ann.call("gpu-a", "run.show", run_id=started.run_id)["ended"])
    shown = ann.call("gpu-a", "run.show", run_id=started.run_id)
    assert (shown["state"], shown["restarts"]) == ("stopped", [])
    wait_until(lambda: site.acts(root, rank) == ["observed", "warned", "terminated"])


def test_a_members_agent_acts_on_that_members_processes_only(site: Site) -> None:
    ann = site.team("ann")
    _, anns = site.run("ann")
    _, bobs = site.run("bob")
    site.on_gpu(anns, bobs)
    site.booked_by("max")
    site.exchange(ann, "stop")
    wait_until(lambda: not site.is_alive(anns))
    wait_until(lambda: site.acts(ann, bobs) == ["observed"])
    assert site.is_alive(bobs)
    assert ann.call("gpu-a", "bookings.status")["capabilities"] == {"acts_on": "own", "root": False, "pidfd": True}


def test_the_owner_is_notified_on_their_terminal(site: Site) -> None:
    root = site.team("root")
    terminal, pid = site.run("ann", AT_A_TERMINAL)
    site.on_gpu(pid)
    site.booked_by("lee")
    site.exchange(root, "warn")
    assert terminal.stdout is not None
    wait_until(lambda: "warned" in site.acts(root, pid))
    (warned,) = [act for act in root.call("gpu-a", "bookings.status")["acts"] if act["act"] == "warned"]
    assert warned["outcome"] == "on 1 terminals"
    said = terminal.stdout.readline()
    assert f"(PID {pid}) uses a GPU of gpu-a, booked by lee until" in said
    assert "will be ended" not in said
    assert site.is_alive(pid)


def test_idle_time_that_agents_recorded_releases_an_unused_booking(site: Site) -> None:
    site.booked_by("kim")
    root = site.team("root")
    site.exchange(root, "off")
    wait_until(lambda: root.call("gpu-a", "bookings.evidence")["idle"])
    evidence: list[Any] = []

    def is_idle() -> bool:
        evidence[:] = root.call("gpu-a", "bookings.evidence")["idle"]
        return bool(evidence[0]["seen"] > evidence[0]["since"])

    wait_until(is_idle)
    site.store.set_rules(Rules(idle_release_min=0.01))
    (freed,) = sync_agents(root.fleet, site.store).released
    assert (freed.owner, freed.is_live) == ("kim", False)
    site.booked_by("lee")


def test_use_is_reported_with_its_user(site: Site) -> None:
    root = site.team("root")
    _, bobs = site.run("bob")
    site.on_gpu(bobs)
    site.booked_by("lee")
    site.exchange(root, "off")
    now = site.store.now()

    def uses() -> Any:
        sync_agents(root.fleet, site.store)
        return site.store.uses(now - timedelta(hours=1), now + timedelta(hours=1))

    wait_until(uses)
    assert {(use.gpu, use.person, use.host) for use in uses()} == {(UUID, "lee", "gpu-a")}
