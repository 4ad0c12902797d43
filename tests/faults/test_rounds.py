"""Tests that a daemon leaks no resources over a hundred runs, each of which is stopped by force."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.agent.keeper.keeper_cluster import CLUSTER, replica
from tests.faults.runs import Team, daemon_of, outside_pids
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

ROUNDS = 100
WARM_UP = 20
FORKS_AND_IGNORES_SIGTERM = "trap '' TERM; (setsid sleep 600 & sleep 600) & touch up; sleep 600; sleep 600"
MORE_KB = 1024
"""Maximum growth of the daemon's memory in KB: more than the allocator's variation, and far less than a leak in each of
eighty runs would cause.
"""


class Rounds:
    """Prepares, starts, stops and removes runs one after the other over one open link."""

    def __init__(self, team: Team, host: str):
        self._link = team.fleet.link(host)
        self._host = team.lab[host]
        self.daemon = daemon_of(self._host)

    def play(self, number: int) -> None:
        run_id = f"round-{number}"
        prepare = {
            "run_id": run_id,
            "name": "round",
            "host": self._host.name,
            "secret": secrets.token_hex(32),
            "snapshot": None,
            "gpus": [],
            "ports": 1,
            "port_range": None,
            "data_address": None,
            "interface": None,
            "towards": None,
            "record": {},
        }
        prepared = self._link.call("run.prepare", {**prepare, "archive": self._link.archive})
        self._link.call("run.start", self._start(run_id, prepared))
        folder = self._host.home / ".torchyard" / "hosts" / self._host.name / "runs" / run_id
        wait_until(folder.joinpath("work", "up").exists)
        self._link.call("run.stop", {"run_id": run_id, "reason": "next", "force": True})
        journal = folder / "journal.jsonl"
        wait_until(lambda: '"run_ended"' in journal.read_text())
        assert json.loads(journal.read_text().splitlines()[-1])["state"] == "stopped"
        self._link.call("run.remove", {"run_id": run_id})  # `run.remove` waits until the run's keeper has exited.

    def _start(self, run_id: str, prepared: dict[str, Any]) -> dict[str, Any]:
        member = {"host": self._host.name, "address": prepared["address"], "gang_port": prepared["gang_port"]}
        argv = ["/bin/sh", "-c", FORKS_AND_IGNORES_SIGTERM]
        return {
            "run_id": run_id,
            "members": [member],
            "cluster": {**CLUSTER, "run_id": run_id},
            "replicas": [replica("worker-0", self._host.name, argv)],
            "policy": {
                "ends_with": "trainers",
                "stop_grace_s": 30.0,
                "failure_grace_s": 2.0,
                "host_wait_s": 600.0,
                "max_restarts": 0,
                "min_replicas": {},
            },
            "setup": [],
            "secrets": {},
            "notify": None,
        }

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.daemon}/fd").iterdir()))

    def resident_kb(self) -> int:
        return int(Path(f"/proc/{self.daemon}/status").read_text().split("VmRSS:")[1].split()[0])


def test_a_hundred_rounds_leave_no_process_and_a_daemon_that_is_as_it_was(team: Team) -> None:
    """Slow, because the test starts a hundred runs."""
    rounds = Rounds(team, "gpu-a")
    for number in range(WARM_UP):
        rounds.play(number)
    before = rounds.descriptors(), rounds.resident_kb()

    for number in range(WARM_UP, ROUNDS):
        rounds.play(number)

    team.nothing_is_left()
    assert not outside_pids(team.lab["gpu-a"], "sleep")
    wait_until(lambda: rounds.descriptors() <= before[0])
    assert rounds.resident_kb() - before[1] < MORE_KB
