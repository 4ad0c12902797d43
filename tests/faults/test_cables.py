"""Tests of network failures: a short failure has no effect, and a host lost in a long one is used again afterwards."""

from __future__ import annotations

import time

import pytest

from tests.faults.generation_watch import GenerationWatch
from tests.faults.runs import COUNTING, Team
from tests.waiting import wait_until

pytestmark = pytest.mark.lab


def test_a_cable_cut_for_five_seconds_has_no_effect(team: Team) -> None:
    run = team.launch(team.topology(COUNTING))
    run.wait_for_output(" 1\n")
    run.wait_for("running")
    host = team.lab["gpu-c"]

    host.cut_cable()
    time.sleep(5)
    before = len(run.log("worker-2").splitlines())
    host.mend_cable()

    wait_until(lambda: len(run.log("worker-2").splitlines()) > before + 25)
    assert run.states()[-1] == "running"
    assert run.of("gang_restart") == []
    assert run.stop()["state"] == "stopped"
    # The member's journal has the end of the run, which only the primary knows, so the member has reconnected.
    assert run.ended(host="gpu-c")["state"] == "stopped"


@pytest.mark.timeout(240)
def test_a_cable_cut_for_thirty_seconds_never_leaves_two_generations_running_at_once(team: Team) -> None:
    """Slow, because the cable is cut for thirty seconds, much longer than the default lease of ten seconds."""
    run = team.launch(team.topology(COUNTING, "max_restarts: 2\nfailure_grace_s: 0.5\nstop_grace_s: 1"))
    run.wait_for_output(" 1\n")
    host = team.lab["gpu-c"]

    with GenerationWatch(team.lab, run.run_id) as watch:
        wait_until(lambda: watch.last().alive.keys() == {"gpu-a", "gpu-b", "gpu-c"})
        cut_at = time.monotonic()
        host.cut_cable()
        wait_until(lambda: not watch.last().alive)
        wait_until(lambda: run.of("gang_restart"))
        assert "gpu-c was lost" in run.of("gang_restart")[0]["cause"]
        while time.monotonic() < cut_at + 30:
            # The lost host may still reconnect, so no rank of the next generation may start yet.
            assert watch.last().generations <= {0}
            time.sleep(0.1)
        host.mend_cable()
        wait_until(lambda: watch.last().alive.keys() == {"gpu-a", "gpu-b", "gpu-c"})
        run.wait_for("running")

    assert watch.overlaps == []
    assert watch.last().generations == {1}
    assert watch.seen(1) == {"gpu-a", "gpu-b", "gpu-c"}
    assert len(watch.samples) > 60
    assert run.stop()["state"] == "stopped"
