"""Tests of runs while no desktop is connected: gang restarts, lost and returning hosts, and secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.running import kill_keepers, log_of, run, started, topology
from tests.lab import Desktop, Lab
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

SECRET = "hunter2-hunter2-5e5e"
FAILS_ONCE = """
    import os, sys, time
    count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print(f"generation {count}, rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
    if count == 0 and os.environ["RANK"] == "1":
        raise ValueError("a bad batch")
    while count == 0:
        time.sleep(1)
"""


def test_a_gang_restarts_by_itself_and_the_first_cause_is_kept(desktop: Desktop, tmp_path: Path) -> None:
    file = topology(
        tmp_path / "again",
        """
        pools:
          - {name: chief, role: chief, replicas: 1, hosts: [gpu-a]}
          - {name: workers, role: worker, replicas: 2, hosts: [gpu-b, gpu-c], placement: spread}
        program: {script: train.py, failure_grace_s: 0.5}
        """,
        train_py=FAILS_ONCE,
    )

    outcome = run(desktop, file)

    assert outcome.ended["state"] == "succeeded", outcome.ended
    assert [one["restarts"] for one in outcome.ended["replicas"]] == [1, 1, 1]
    [restart] = outcome.of("gang_restart")
    assert (restart["gang"], restart["generation"]) == ("trainers", 1)
    assert restart["cause"] == "worker-0 on gpu-b: exited with 1: ValueError: a bad batch"
    assert "generation 1, rank 1 of 3" in log_of(desktop, outcome.run_id, "worker-0")


def test_a_run_restarts_with_every_desktop_closed(desktop: Desktop, tmp_path: Path) -> None:
    file = topology(
        tmp_path / "alone",
        """
        pools: [{name: workers, role: worker, replicas: 2, hosts: [gpu-a, gpu-b], placement: spread}]
        program: {script: train.py, failure_grace_s: 0.5}
        """,
        train_py=FAILS_ONCE.replace("count == 0 and", "time.sleep(2) or count == 0 and"),
    )
    submitted = desktop.torchyard("run", file, "--detach", "--json")
    run_id = json.loads(submitted.stdout.splitlines()[-1])["run_id"]

    def shown() -> dict[str, object]:
        answer: dict[str, object] = json.loads(desktop.torchyard("runs", "show", run_id, "--json").stdout)
        return answer

    wait_until(lambda: shown()["state"] == "succeeded", within_s=60)
    replicas = shown()["replicas"]
    assert isinstance(replicas, list)
    assert [one["restarts"] for one in replicas] == [1, 1]


def test_a_secret_is_in_the_program_and_nowhere_else(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = topology(
        tmp_path / "secret",
        """
        pools: [{name: workers, role: worker, replicas: 2, hosts: [gpu-a, gpu-b], placement: spread}]
        program:
          launcher: command
          command: [sh, -c, 'test ${#TOKEN} = 20 && echo it is there; while ! test -e go; do sleep 0.1; done']
          secrets: [TOKEN]
        """,
    )
    process = desktop.start("run", file, "--json", env={"TOKEN": SECRET})
    try:
        started(process, state="running")
        command_lines = [" ".join(argv) for host in lab3.hosts for _, argv in host.processes()]
        assert any("it is there" in line for line in command_lines)  # Processes exist when `running` is reported.
        assert not any(SECRET in line for line in command_lines)
        assert desktop.torchyard("status", "--json").stdout.count(SECRET) == 0
        for host in lab3.hosts[:2]:
            for work in host.home.glob(".torchyard/hosts/*/runs/*/work"):
                (work / "go").touch()
        output, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert json.loads(output.splitlines()[-1])["state"] == "succeeded"
    assert SECRET not in output + errors
    places = [tmp_path, desktop.home, *[host.home for host in lab3.hosts]]
    for place in places:
        seen = subprocess.run(["grep", "-rlas", SECRET, str(place)], capture_output=True, text=True, check=False)
        assert seen.stdout == ""


def test_after_a_reboot_the_run_reports_its_missing_secrets(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = topology(
        tmp_path / "reboot",
        """
        pools: [{name: workers, role: worker, replicas: 1, hosts: [gpu-a]}]
        program: {launcher: command, command: [sleep, "600"]}
        """,
    )
    submitted = desktop.torchyard("run", file, "--detach", "--json")
    run_id = json.loads(submitted.stdout.splitlines()[-1])["run_id"]
    [record] = lab3["gpu-a"].home.glob(f".torchyard/hosts/*/runs/{run_id}/run.json")
    known = json.loads(record.read_text())
    assert len(known["boot_id"]) == 36

    # Lab hosts cannot reboot. The test simulates a reboot by changing the boot_id and killing the keeper.
    record.write_text(json.dumps({**known, "boot_id": "of before"}))
    kill_keepers(lab3["gpu-a"])

    answer = desktop.torchyard("runs", "show", run_id, "--json")
    assert answer.stdout, answer
    shown = json.loads(answer.stdout)
    assert shown["state"] == "failed"
    assert shown["reason"] == "gpu-a was rebooted: its replicas and the run's secrets are gone; launch it again"


def test_the_daemon_that_systemd_starts_is_the_one_that_a_desktop_finds(
    desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    def checked() -> dict[str, object]:
        [found] = json.loads(desktop.torchyard("hosts", "check", "gpu-a", "--json").stdout)
        agent: dict[str, object] = found["agent"]
        return agent

    host = lab3["gpu-a"]
    before = checked()
    archive = f"/root/.torchyard/store/{before['sha256']}"
    main = f"{archive}/torchyard_agent/__main__.py"
    wait_until(lambda: (host.home / main.removeprefix("/root/")).exists())
    # systemd does not run in the lab, so the test itself runs the command of the systemd unit.
    command = [sys.executable, "-I", "-S", main, "daemon", "/root/.torchyard", str(before["sha256"])]
    second = host.exec(command)
    # A daemon is already running, so the second one exits.
    assert (second.returncode, second.stderr) == (0, "")
    host.exec(["kill", "-KILL", str(before["pid"])], check=True)
    wait_until(lambda: all(pid != before["pid"] for pid, _ in host.processes()))
    started_by_hand = host.start(command)
    try:
        wait_until(lambda: any("__main__.py daemon" in " ".join(argv) for _, argv in host.processes()))
        after = checked()
        assert after["pid"] != before["pid"]
        assert any(pid == after["pid"] and "__main__.py" in " ".join(argv) for pid, argv in host.processes())
    finally:
        ours = [pid for pid, argv in host.processes() if "__main__.py" in " ".join(argv)]
        host.exec(["kill", "-TERM", *map(str, ours)])
        started_by_hand.communicate(timeout=60)
