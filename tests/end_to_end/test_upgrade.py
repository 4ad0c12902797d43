"""Tests of upgrading agents while runs are active, and of garbage collection on hosts."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.running import REPOSITORY, log_of, only, programs_on, topology
from tests.faults.runs import Team
from tests.lab import Desktop, Lab, LabHost
from tests.waiting import wait_until
from torchyard_agent import __version__ as OURS
from torchyard_core.background_thread import in_background
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.planning import LaunchContext

pytestmark = pytest.mark.lab

UPGRADE_ASKED_WITHIN_S = 5.0
"""Time in seconds for which the launch waits, so that the daemon is asked to exit meanwhile. If the request comes
later, the test proves nothing.
"""
COUNTING = """
    import pathlib, sys, time
    number = 0
    while not pathlib.Path("go").exists():
        print("line", number, flush=True)
        number += 1
        time.sleep(0.005)
    print("in all", number, flush=True)
    sys.exit(7)
"""


class Installation:
    """A Torchyard installation of a different version, with its own agent."""

    def __init__(self, folder: Path, desktop: Desktop, version: str, **changes: tuple[str, str]):
        """Creates the installation.

        Args:
            changes: Old and new source code in the agent, by module (`daemon_rpc_methods` for daemon/rpc_methods.py).
        """
        shutil.copytree(REPOSITORY / "agent", folder, ignore=shutil.ignore_patterns("__pycache__"))
        changes = {"__init__": (f'__version__ = "{OURS}"', f'__version__ = "{version}"'), **changes}
        for module, (before, after) in changes.items():
            name = module if module == "__init__" else module.replace("_", "/", 1)
            path = folder / "torchyard_agent" / f"{name}.py"
            text = path.read_text()
            assert before in text, (module, before)
            path.write_text(text.replace(before, after))
        self._desktop = desktop
        self._env = {"PYTHONPATH": os.pathsep.join(map(str, (folder, REPOSITORY / "core")))}

    def says(self, *arguments: str | Path, code: int = 0, env: Mapping[str, str] | None = None) -> tuple[str, str]:
        """Runs the installation's command; returns stdout and stderr."""
        return says(self._desktop, *arguments, code=code, env={**self._env, **(env or {})})

    def launches(self, file: Path) -> str:
        """Starts a detached run; returns its ID."""
        stdout, _ = self.says("run", file, "--detach", "--json")
        return str(json.loads(stdout.splitlines()[-1])["run_id"])


def says(
    desktop: Desktop, *arguments: str | Path, code: int = 0, env: Mapping[str, str] | None = None
) -> tuple[str, str]:
    done = desktop.torchyard(*arguments, env=env)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def install(desktop: Desktop, tmp_path: Path) -> Callable[..., Installation]:
    def make(version: str, **changes: tuple[str, str]) -> Installation:
        return Installation(tmp_path / f"agent-{len(list(tmp_path.iterdir()))}", desktop, version, **changes)

    return make


@pytest.fixture
def counting_run(tmp_path: Path) -> Path:
    """Writes a topology on gpu-a and gpu-b whose replicas print increasing numbers until a certain file makes them
    fail.
    """
    return topology(
        tmp_path / "counting",
        """
        pools: [{name: workers, role: worker, replicas: 2, hosts: [gpu-a, gpu-b], placement: spread}]
        program: {script: train.py, max_restarts: 0, stop_grace_s: 1}
        """,
        train_py=COUNTING,
    )


def agent_on(desktop: Desktop, host: str = "gpu-a") -> dict[str, Any]:
    """Returns the host's agent as `hosts check` reports it. The command may first replace an older agent."""
    [found] = json.loads(says(desktop, "hosts", "check", host, "--json")[0])
    agent: dict[str, Any] = found["agent"]
    return agent


def noted_on(host: LabHost, version: str) -> dict[str, Any]:
    """Waits until the daemon's state file on the host contains the given version; returns the content of the file."""
    path = host.home / ".torchyard" / "hosts" / host.name / "agent.json"
    wait_until(lambda: path.exists() and json.loads(path.read_text())["version"] == version)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def keepers_on(host: LabHost) -> dict[int, str]:
    """Returns the hash of the archive from which each keeper on a host runs, by PID."""
    found = {}
    for pid, argv in host.processes():
        line = " ".join(argv)
        if "keeper.main" in line and (archive := re.search(r"store/([0-9a-f]{64})", line)):
            found[pid] = archive[1]
    return found


def keeper_on(host: LabHost) -> tuple[int, str]:
    """Returns the PID and the archive's hash of the host's only keeper."""
    return only(lambda: list(keepers_on(host).items()))


def runs_on(lab: Lab) -> list[str]:
    """Returns the command lines of the runs' processes, without those of daemons."""
    return [line for line in programs_on(lab) if "__main__.py daemon" not in line]


def folders(lab: Lab, run_id: str) -> list[Path]:
    return [found for host in lab.hosts for found in host.home.glob(f".torchyard/hosts/*/runs/{run_id}")]


def shown(desktop: Desktop, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(says(desktop, "runs", "show", run_id, "--json")[0])
    return found


def test_a_run_continues_during_an_upgrade_and_loses_nothing(
    desktop: Desktop, lab3: Lab, install: Callable[..., Installation], counting_run: Path
) -> None:
    older = install("0.0.9")
    run_id = older.launches(counting_run)
    hosts = lab3.hosts[:2]
    keepers = [keeper_on(host) for host in hosts]
    before = noted_on(hosts[0], "0.0.9")
    assert [archive for _, archive in keepers] == [before["sha256"]] * 2

    stdout, stderr = says(desktop, "deploy", "gpu-a", "gpu-b")

    assert [line.split(" (")[0] for line in stdout.splitlines()] == [f"gpu-a: agent {OURS}", f"gpu-b: agent {OURS}"]
    assert "older" not in stderr
    assert [keeper_on(host) for host in hosts] == keepers
    wait_until(lambda: shown(desktop, run_id)["state"] == "running")
    wait_until(lambda: all("line 20" in log_of(desktop, run_id, f"worker-{number}") for number in range(2)))
    for folder in folders(lab3, run_id):
        (folder / "work" / "go").touch()
    wait_until(lambda: shown(desktop, run_id)["state"] == "failed")
    found = {one["name"]: one["exit_code"] for one in shown(desktop, run_id)["replicas"]}
    assert set(found) == {"worker-0", "worker-1"}
    assert 7 in found.values()
    name = next(name for name, code in found.items() if code == 7)
    *lines, last = log_of(desktop, run_id, name).splitlines()
    assert lines == [f"line {number}" for number in range(len(lines))]
    assert last == f"in all {len(lines)}"
    assert len(lines) > 10


def test_a_follower_sees_the_end_of_a_run_while_the_agent_is_replaced(
    desktop: Desktop, lab3: Lab, install: Callable[..., Installation], counting_run: Path
) -> None:
    older = install("0.0.9")
    run_id = older.launches(counting_run)
    following = desktop.start("runs", "logs", run_id, "--replica", "worker-0", "-f")
    assert following.stdout is not None
    assert following.stderr is not None
    # Following the run has already replaced the agent with this desktop's newer one. Now another desktop deploys an
    # even newer agent.
    first = following.stdout.readline()
    newest = install("9.0.0")
    newest.says("deploy", "gpu-a", "gpu-b")
    noted_on(lab3["gpu-a"], "9.0.0")
    for folder in folders(lab3, run_id):
        (folder / "work" / "go").touch()

    lines = [first, *following.stdout.read().splitlines()]
    errors = following.stderr.read()
    assert following.wait(60) == 0
    numbers = [int(line.rpartition(" ")[2]) for line in lines if line.startswith("line") or " line " in line]
    assert numbers == list(range(len(numbers)))
    assert "Traceback" not in errors
    noted_on(lab3["gpu-a"], "9.0.0")


def test_an_older_desktop_shows_follows_and_stops_a_run_of_a_newer_agent(
    desktop: Desktop, lab3: Lab, install: Callable[..., Installation], counting_run: Path
) -> None:
    newer = install("9.0.0", protocol___init__=("PROTOCOL = 1", "PROTOCOL = 2"))
    run_id = newer.launches(counting_run)
    daemon = noted_on(lab3["gpu-a"], "9.0.0")

    stdout, stderr = says(desktop, "runs", "list")

    assert run_id in stdout
    assert f"gpu-a: its agent is newer than this desktop's ({OURS}) and was kept: 9.0.0." in stderr
    wait_until(lambda: shown(desktop, run_id)["state"] == "running")
    wait_until(lambda: "line 5" in log_of(desktop, run_id, "worker-1"))
    agent = agent_on(desktop)
    assert agent["version"] == "9.0.0"
    # The newer daemon is killed. The older desktop must start it again, and must not replace it with its own version.
    lab3["gpu-a"].exec(["kill", "-KILL", str(agent["pid"])], check=True)
    wait_until(lambda: all(pid != agent["pid"] for pid, _ in lab3["gpu-a"].processes()))
    assert agent_on(desktop) == {**agent_on(desktop), "version": "9.0.0", "sha256": daemon["sha256"]}
    own = json.loads(says(desktop, "run", counting_run, "--detach", "--json")[0].splitlines()[-1])["run_id"]
    assert len(set(keepers_on(lab3["gpu-a"]).values())) == 2  # Each run uses the agent of its own desktop.
    for one in (own, run_id):
        says(desktop, "runs", "stop", one)
        assert shown(desktop, one)["state"] == "stopped"
    wait_until(lambda: not runs_on(lab3))
    assert noted_on(lab3["gpu-a"], "9.0.0") == daemon


def test_a_newer_desktop_replaces_an_older_daemon_whose_run_continues(
    desktop: Desktop, lab3: Lab, install: Callable[..., Installation], counting_run: Path
) -> None:
    run_id = json.loads(says(desktop, "run", counting_run, "--detach", "--json")[0].splitlines()[-1])["run_id"]
    keeper = keeper_on(lab3["gpu-a"])
    newer = install("9.0.0")

    wait_until(lambda: json.loads(newer.says("runs", "show", run_id, "--json")[0])["state"] == "running")
    assert keeper_on(lab3["gpu-a"]) == keeper
    noted_on(lab3["gpu-a"], "9.0.0")
    newer.says("runs", "stop", run_id)
    wait_until(lambda: not runs_on(lab3))
    assert json.loads(newer.says("runs", "show", run_id, "--json")[0])["state"] == "stopped"


def test_a_launch_continues_while_its_hosts_are_upgraded(
    desktop: Desktop,
    lab3: Lab,
    install: Callable[..., Installation],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An older daemon that is asked to exit during a launch must not exit before the run has started."""
    newer, team = install("9.0.0"), Team(lab3, desktop, tmp_path)
    upgrading: list[Future[Any]] = []

    def upgrade_meanwhile(ground: LaunchContext, *_: object) -> list[Check]:
        upgrading.append(in_background(newer.says, "deploy"))
        until = time.monotonic() + UPGRADE_ASKED_WITHIN_S
        while time.monotonic() < until:
            assert all(link.is_open for link in ground.links.values())
            time.sleep(0.05)
        return []

    monkeypatch.setattr("torchyard_core.launch.launch.check_connectivity", upgrade_meanwhile)
    try:
        run = team.launch(team.topology("print('done')"))
        upgrading[0].result(60)
        assert run.ended()["state"] == "succeeded"
        assert {noted_on(host, "9.0.0")["version"] for host in lab3.hosts} == {"9.0.0"}
    finally:
        team.close()


def test_a_method_unknown_to_an_agent_is_an_error_with_a_hint(
    desktop: Desktop, install: Callable[..., Installation], counting_run: Path
) -> None:
    lacking = install(OURS, daemon_rpc_methods=('            "logs.list": self.logs_list,\n', ""))
    lacking.says("hosts", "check", "gpu-a", "gpu-b")
    run_id = json.loads(says(desktop, "run", counting_run, "--detach", "--json")[0].splitlines()[-1])["run_id"]

    _, stderr = says(desktop, "runs", "logs", run_id, code=1)

    advice = f"Run `torchyard --home {desktop.home} deploy gpu-a`."
    assert f"gpu-a's agent {OURS} does not know logs.list. {advice}" in stderr
    # A desktop does not automatically replace an agent of the same version. `deploy` replaces it, and the run
    # continues.
    pid = agent_on(desktop)["pid"]
    lacking.says("runs", "list")
    assert agent_on(desktop)["pid"] == pid
    says(desktop, "deploy", "gpu-a", "gpu-b")
    wait_until(lambda: "line 0" in says(desktop, "runs", "logs", run_id)[0])
    says(desktop, "runs", "stop", run_id)


def test_an_older_agent_that_does_not_retire_is_used_as_it_is(
    desktop: Desktop, install: Callable[..., Installation]
) -> None:
    stubborn = install("0.0.9", daemon_rpc_methods=('            "retire": self.retire,\n', ""))
    stubborn.says("hosts", "check", "gpu-a")

    stdout, stderr = says(desktop, "hosts", "check", "gpu-a", "--json")

    assert json.loads(stdout)[0]["agent"]["version"] == "0.0.9"
    assert "gpu-a: its agent 0.0.9 is older and stays: gpu-a's agent 0.0.9 does not know retire." in stderr


def test_an_agent_that_no_longer_understands_this_desktop_names_a_remedy(
    desktop: Desktop, install: Callable[..., Installation]
) -> None:
    far = install(
        "9.0.0",
        protocol___init__=("PROTOCOL = 1", "PROTOCOL = 3"),
        daemon_main=("OLDEST_PROTOCOL = 1", "OLDEST_PROTOCOL = 2"),
    )
    far.says("deploy", "gpu-a")

    stderr = says(desktop, "deploy", "gpu-a", code=3)[1]

    assert f"gpu-a has agent 9.0.0, which is newer than this desktop ({OURS}). Upgrade Torchyard here." in stderr


def test_garbage_collection_spares_live_runs(desktop: Desktop, lab3: Lab, counting_run: Path) -> None:
    host = lab3["gpu-a"]
    host.set_ssh_environment({"TORCHYARD_KEEP_DAYS": "20"})
    runs = host.home / ".torchyard" / "hosts" / "gpu-a" / "runs"
    ages = {**{f"20250101-00000{number}-new": 1.0 for number in range(10)}, "19-old": 19.0, "21-old": 21.0}
    for name, days in ages.items():
        (runs / name).mkdir(parents=True)
        journal = runs / name / "journal.jsonl"
        journal.write_text("")
        os.utime(journal, (time.time() - days * 86400,) * 2)

    run_id = json.loads(says(desktop, "run", counting_run, "--detach", "--json")[0].splitlines()[-1])["run_id"]
    live = runs / run_id / "journal.jsonl"
    os.utime(live, (time.time() - 90 * 86400,) * 2)

    wait_until(lambda: not (runs / "21-old").exists(), within_s=120)  # Garbage collection has a low priority.
    assert {path.name for path in runs.iterdir()} == {*ages, run_id} - {"21-old"}
    assert keepers_on(host)
    log = host.home / ".torchyard" / "hosts" / "gpu-a" / "daemon.log"
    wait_until(lambda: "garbage collection: removed run 21-old" in log.read_text())
    wait_until(lambda: shown(desktop, run_id)["state"] == "running")
    says(desktop, "runs", "stop", run_id)
    wait_until(lambda: not runs_on(lab3))

    # The run's folders are removed, but this desktop's history contains the run. `runs list` must still list it, and
    # other commands must report an error.
    for folder in folders(lab3, run_id):
        shutil.rmtree(folder)
    assert run_id in says(desktop, "runs", "list")[0]
    stderr = says(desktop, "runs", "logs", run_id, code=1)[1]
    assert f"there is no run {run_id} on gpu-" in stderr
