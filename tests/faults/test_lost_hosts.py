"""Tests of members and primaries whose hosts lose power."""

from __future__ import annotations

import time

import pytest

from tests.faults.runs import BUSY_S, QUICK, Team, outside_pids
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

WORLDS = """
    import os, time
    print(os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
    time.sleep(600)
"""
IGNORING_SIGTERM = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("up", flush=True)
    time.sleep(600)
"""
RESTARTS = "max_restarts: 1\nhost_wait_s: 1\nfailure_grace_s: 0.5\nstop_grace_s: 1"
TWO_ARE_ENOUGH = "[{name: workers, role: worker, replicas: 3, min_replicas: 2, placement: spread}]"
LEASE_S = 10.0
GRACE_S = 2.0


def test_a_gang_continues_without_a_destroyed_host_if_min_replicas_allows(team: Team) -> None:
    team.impatient(**QUICK)
    run = team.launch(team.topology(WORLDS, RESTARTS, TWO_ARE_ENOUGH))
    run.wait_for_output("of 3")

    team.lab["gpu-c"].destroy()

    wait_until(lambda: "0 of 2" in run.log("worker-0") and "1 of 2" in run.log("worker-1"))
    run.wait_for("running")
    assert "gpu-c was lost" in run.of("gang_restart")[0]["cause"]
    waited = [state["reason"] for state in run.of("run_state") if "waiting up to" in state.get("reason", "")]
    assert waited
    assert waited[0].endswith("for gpu-c to come back")
    assert run.replica_states("worker-2")[-1] == "lost"
    assert run.stop()["state"] == "stopped"


def test_a_destroyed_host_that_is_needed_ends_the_run_with_its_reason(team: Team) -> None:
    team.impatient(**QUICK)
    run = team.launch(team.topology(WORLDS, RESTARTS))
    run.wait_for_output("of 3")

    team.lab["gpu-b"].destroy()

    ended = run.ended()
    assert ended["state"] == "failed"
    assert "gpu-b was lost: its keeper was not heard for" in ended["reason"]
    assert "gpu-b did not come back, and the pool workers has no `min_replicas`" in ended["reason"]
    assert {one["name"]: one["state"] for one in ended["replicas"]}["worker-1"] == "lost"


def test_all_other_hosts_end_their_ranks_when_the_primary_is_destroyed(team: Team) -> None:
    """Slow, because the default lease is ten seconds, and ranks that ignore SIGTERM are killed only after the grace."""
    run = team.launch(team.topology(IGNORING_SIGTERM, "host_wait_s: 0"))
    run.wait_for_output("up")
    others = [host for host in team.lab.hosts if host.name != run.primary]
    assert len([pid for host in others for pid in outside_pids(host, "script.py")]) == 2

    team.lab[run.primary].destroy()
    began = time.monotonic()

    wait_until(lambda: not any(outside_pids(host, "script.py") for host in others))
    took_s = time.monotonic() - began
    for host in others:
        ended = run.ended(host=host.name)
        assert ended["state"] == "failed"
        assert f"the primary host {run.primary} was lost: not heard for 1" in ended["reason"]
        assert team.call(host.name, "run.show", run_id=run.run_id)["reason"] == ended["reason"]
    # A keeper checks only once a second whether its lease has expired.
    assert took_s < LEASE_S + GRACE_S + 1 + BUSY_S
