"""Tests of SSH servers that are stopped: runs continue, commands that follow a run reconnect, and deployments can be
repeated.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from typing import Any

import pytest

from tests.end_to_end.running import Event
from tests.faults.runs import Team, daemon_of
from tests.lab import Desktop, Lab
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

REPORTING = """
    import os, pathlib, time
    number = 0
    while not pathlib.Path(os.path.expanduser("~/enough")).exists():
        print(os.environ["TORCHYARD_REPLICA"], number, flush=True)
        number += 1
        time.sleep(0.02)
    print("the last line", flush=True)
"""


class Following:
    """A `torchyard run --json` command whose events are read as they arrive."""

    def __init__(self, process: subprocess.Popen[str]):
        self.process = process
        self.events: list[Event] = []
        self.errors = ""

    def read_until(self, wanted: Any) -> Event:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if wanted(self.events[-1]):
                return self.events[-1]
        raise AssertionError(f"it ended without: {self.process.stderr and self.process.stderr.read()}")

    def read_to_the_end(self) -> None:
        output, self.errors = self.process.communicate(timeout=60)
        self.events += map(json.loads, output.splitlines())


def test_a_run_continues_without_ssh_servers_and_its_follower_misses_nothing(team: Team) -> None:
    file = team.topology(REPORTING)
    following = Following(team.desktop.start("run", file, "--json"))
    following.read_until(lambda event: event.get("state") == "running" and event["event"] == "run_state")
    (run_id,) = [event["run_id"] for event in following.events if event["event"] == "run_submitted"]

    for host in team.lab.hosts:
        host.stop_sshd(sessions=True)
    following.read_until(lambda event: event["event"] == "connection" and event["state"] == "lost")
    # The run ends while no desktop is connected.
    for host in team.lab.hosts:
        (host.home / "enough").touch()
    journal = team.lab["gpu-a"].home / ".torchyard" / "hosts" / "gpu-a" / "runs" / run_id / "journal.jsonl"
    wait_until(lambda: '"run_ended"' in journal.read_text())
    for host in team.lab.hosts:
        host.start_sshd()

    following.read_to_the_end()
    assert following.process.returncode == 0, following.errors
    assert following.events[-1]["event"] == "run_ended"
    wanted = [entry for entry in map(json.loads, journal.read_text().splitlines()) if entry["event"] != "report"]
    seen = [event["seq"] for event in following.events if "seq" in event]
    # `run_ended` has no sequence number. Every earlier event arrived exactly once and in order.
    assert seen == [entry["seq"] for entry in wanted[:-1]]
    for number, host in enumerate(team.lab.hosts):
        replica = f"worker-{number}"
        piece = team.call(host.name, "logs.read", run_id=run_id, replica=replica, offset=0)
        lines = base64.b64decode(piece["data"]).decode().splitlines()
        assert lines == [f"{replica} {line}" for line in range(len(lines) - 1)] + ["the last line"]


@pytest.mark.usefixtures("bare_hosts")
def test_a_deploy_whose_ssh_server_stops_fails_and_can_be_repeated(desktop: Desktop, lab3: Lab) -> None:
    host = lab3["gpu-b"]
    host.shape("400kbit")
    deploying = desktop.start("deploy", "--json")
    before = host.bytes_received
    wait_until(lambda: host.bytes_received > before + 60_000)

    host.stop_sshd(sessions=True)
    output, errors = deploying.communicate(timeout=60)

    assert deploying.returncode == 3, output + errors
    assert "gpu-b" in output + errors
    assert "Traceback" not in errors
    host.unshape()
    host.start_sshd()
    again = desktop.torchyard("deploy")
    assert again.returncode == 0, again.stderr
    assert daemon_of(host)
    ours = host.home / ".torchyard"
    wait_until(lambda: not [path for path in ours.rglob("*") if path.suffix in (".part", ".new", ".tmp")])


def test_a_daemon_killed_while_a_desktop_follows_is_restarted_by_it(team: Team) -> None:
    file = team.topology(REPORTING)
    following = Following(team.desktop.start("run", file, "--json"))
    following.read_until(lambda event: event.get("state") == "running" and event["event"] == "run_state")

    for host in team.lab.hosts:
        os.kill(daemon_of(host), signal.SIGKILL)
    following.read_until(lambda event: event["event"] == "connection" and event["state"] == "back")
    for host in team.lab.hosts:
        (host.home / "enough").touch()

    following.read_to_the_end()
    assert following.events[-1]["state"] == "succeeded"
