"""Tests that actions are attributed to users and desktops in a run's journal, in `runs show` and in the host's audit
log.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.running import topology
from tests.lab import Desktop, Lab, LabHost
from tests.waiting import wait_until
from torchyard_agent import __version__
from torchyard_core.cli.context import CommandContext
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.home import Home

pytestmark = pytest.mark.lab

KIM, LEE = {"LOGNAME": "kim"}, {"LOGNAME": "lee"}
HERE = socket.gethostname()
SLEEPS = """
    pools: [{name: workers, role: worker, replicas: 2, hosts: [gpu-a, gpu-b], placement: spread}]
    program: {launcher: command, command: [sleep, "600"]}
"""


def journal_of(host: LabHost, run_id: str) -> list[dict[str, Any]]:
    [file] = host.home.glob(f".torchyard/hosts/*/runs/{run_id}/journal.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def audit_of(host: LabHost) -> list[dict[str, Any]]:
    files = list(host.home.glob(".torchyard/hosts/*/audit.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def attributions(acts: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(act["what"], act["by"], act["from"]) for act in acts]


def test_the_users_who_launch_and_stop_are_recorded(
    desktop: Desktop, make_desktop: Callable[..., Desktop], lab3: Lab, tmp_path: Path
) -> None:
    other = make_desktop(lab3)
    submitted = desktop.torchyard("run", topology(tmp_path / "long", SLEEPS), "--detach", "--json", env=KIM)
    run_id = json.loads(submitted.stdout.splitlines()[-1])["run_id"]

    stopped = other.torchyard("runs", "stop", run_id, "--force", "--json", env=LEE)

    assert json.loads(stopped.stdout)["reason"] == f"stopped by lee@{HERE}"
    asked = [event for event in journal_of(lab3["gpu-a"], run_id) if event["event"] == "asked"]
    assert attributions(asked) == [("launch", "kim", HERE), ("stop", "lee", HERE)]
    assert [(event["uid"], event.get("force")) for event in asked] == [(0, None), (0, True)]
    shown = json.loads(desktop.torchyard("runs", "show", run_id, "--json").stdout)
    assert attributions(shown["asked"]) == attributions(asked)
    assert shown["launched_from"] == f"kim@{HERE}"
    as_text = desktop.torchyard("runs", "show", run_id).stdout
    assert f"from kim@{HERE}" in as_text
    assert f"by lee@{HERE}" in as_text


def test_installing_and_removing_an_agent_is_recorded_with_its_user(desktop: Desktop, lab3: Lab) -> None:
    host = lab3["gpu-a"]
    assert desktop.torchyard("deploy", "gpu-a", env=KIM).returncode == 0
    [deployed] = audit_of(host)
    assert (deployed["what"], deployed["by"], deployed["from"], deployed["uid"]) == ("deploy", "kim", HERE, 0)

    with linked(desktop, "gpu-a") as link:
        before = link.hello["pid"]
        link.call("retire", {"by": "lee@tower"})
    wait_until(lambda: all(process.pid != before for process in host.processes()))
    assert desktop.torchyard("deploy", "gpu-a", env=KIM).returncode == 0

    with linked(desktop, "gpu-a") as link:
        # The audit log contains no entry for this call.
        link.call("host.facts")
        acts = link.call("audit.read", {"last": 50})
        assert acts == audit_of(host)
        assert attributions(acts) == [("deploy", "kim", HERE), ("retire", "lee", "tower"), ("start", "kim", HERE)]
        link.call("retire", {"by": "kim@laptop"})
    wait_until(lambda: attributions(audit_of(host))[-1] == ("retire", "kim", "laptop"))

    # The entries of all hosts are printed in one table, in chronological order.
    assert desktop.torchyard("deploy", "gpu-b", env=LEE).returncode == 0
    shown = desktop.torchyard("hosts", "audit", "gpu-b", "gpu-a", "--last", "3", env=LEE)
    assert shown.returncode == 0, shown
    assert [re.split("  +", line)[1:] for line in shown.stdout.splitlines()[1:]] == [
        ["gpu-a", "agent retired", "kim@laptop", "-"],
        ["gpu-b", "agent installed", f"lee@{HERE}", __version__],
        ["gpu-a", "agent restarted", f"lee@{HERE}", __version__],  # `hosts audit` has started the agent.
    ]
    lab3["gpu-a"].stop_sshd()
    silent = desktop.torchyard("hosts", "audit", "gpu-a", "gpu-b", "--json")
    found = json.loads(silent.stdout)
    assert (silent.returncode, [len(told["acts"]) for told in found]) == (3, [0, 1]), silent
    assert found[0]["error"]["code"] == "unreachable"
    assert found[1]["acts"] == audit_of(lab3["gpu-b"])
    lab3["gpu-a"].start_sshd()

    assert desktop.torchyard("undeploy", "gpu-a", "-y", env=KIM).returncode == 0
    assert audit_of(host) == []
    nothing = desktop.torchyard("hosts", "audit", "gpu-a")
    assert (nothing.returncode, nothing.stdout.count("\n")) == (0, 1), nothing
    assert "agent on gpu-a" in nothing.stderr
    assert audit_of(host) == []  # `hosts audit` must not install an agent on the host.


def test_removed_and_cancelled_runs_stay_in_the_audit(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = topology(tmp_path / "long", SLEEPS)
    submitted = desktop.torchyard("run", file, "--detach", "--json", env=KIM)
    run_id = json.loads(submitted.stdout.splitlines()[-1])["run_id"]
    refused = desktop.torchyard("undeploy", "gpu-a", "-y", env=LEE)
    assert refused.returncode != 0
    assert desktop.torchyard("runs", "stop", run_id, "--force").returncode == 0
    with linked(desktop, "gpu-a") as link:
        link.call("run.remove", {"run_id": run_id, "by": "lee@tower"})
    known = audit_of(lab3["gpu-a"])
    assert attributions(known) == [("deploy", "kim", HERE), ("undeploy", "lee", HERE), ("remove", "lee", "tower")]
    assert (known[1]["refused"], known[2]["run_id"]) == ("run_alive", run_id)


def test_a_cancelled_launch_is_recorded(desktop: Desktop, lab3: Lab) -> None:
    with linked(desktop, "gpu-a", install=True) as link:
        wanted = {"run_id": "run-1", "name": "test", "host": "gpu-a", "secret": "5e" * 32, "snapshot": None, "gpus": []}
        where = {"ports": 1, "port_range": None, "data_address": None, "interface": None, "towards": None}
        record = {"launched_from": "kim@laptop"}
        link.call("run.prepare", {**wanted, **where, "record": record, "archive": link.archive})
        link.call("run.abort", {"run_id": "run-1", "by": "kim@laptop"})
        last = link.call("audit.read", {"last": 1})
    assert attributions(last) == [("take_back", "kim", "laptop")]
    assert last[0]["run_id"] == "run-1"


@contextmanager
def linked(desktop: Desktop, name: str, *, install: bool = False) -> Iterator[DaemonClient]:
    """Opens a connection from a desktop to a host's daemon."""
    home = Home(desktop.home)
    known = CommandContext(home, home.fleet_file, False)
    with known.fleet(known.inventory().hosts) as fleet:
        yield fleet.link(name, install=install)
