"""Tests that stopping a run ends all its processes, and that later commands can show a run's log and its end."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.end_to_end.running import log_of, programs_on, run, started, topology
from tests.lab import Desktop, Lab
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

IGNORES_SIGTERM = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            child = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
            subprocess.run([sys.executable, "-c", child])
        os._exit(0)
    print("up", flush=True)
    time.sleep(600)
"""
COUNTING = """
    import os, time
    number = 0
    while not os.path.exists(os.path.expanduser("~/enough")):
        print(os.environ["TORCHYARD_REPLICA"], "line", number, flush=True)
        number += 1
        time.sleep(0.02)
    print("in all", number, flush=True)
"""


def on_three_hosts(folder: Path, script: str, program: str = "") -> Path:
    return topology(
        folder,
        f"""
        pools:
          - {{name: workers, role: worker, replicas: 3, placement: spread}}
        program:
          launcher: command
          command: [python3, script.py]
          {program}
        """,
        script_py=script,
    )


def test_stop_leaves_no_process(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = on_three_hosts(tmp_path / "stubborn", IGNORES_SIGTERM, "stop_grace_s: 1")
    detached = desktop.torchyard("run", file, "--detach")
    assert detached.returncode == 0, detached.stderr
    run_id = detached.stdout.strip()
    wait_until(lambda: all("up" in log_of(desktop, run_id, f"worker-{number}") for number in range(3)))

    stopped = desktop.torchyard("runs", "stop", run_id)

    assert stopped.returncode == 0, stopped.stderr
    assert "stopped" in stopped.stdout
    wait_until(lambda: not programs_on(lab3))
    shown = json.loads(desktop.torchyard("runs", "show", run_id, "--json").stdout)
    assert shown["state"] == "stopped"
    assert {replica["state"] for replica in shown["replicas"]} == {"stopped"}


def test_a_run_does_not_depend_on_a_killed_command(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    following = desktop.start("run", on_three_hosts(tmp_path / "counting", COUNTING), "--json")
    run_id = started(following, "run_submitted")["run_id"]
    started(following, state="running")
    following.kill()
    following.wait(60)

    shown = json.loads(desktop.torchyard("runs", "show", run_id, "--json").stdout)
    assert shown["state"] == "running"
    # `runs logs -f` prints the whole log from its beginning, and follows it to its end.
    reading = desktop.start("runs", "logs", run_id, "-f", "--replica", "worker-1")
    assert reading.stdout is not None
    first = reading.stdout.readline()
    for host in lab3.hosts:
        (host.home / "enough").touch()
    *lines, last = [first.rstrip(), *reading.stdout.read().splitlines()]
    assert reading.wait(60) == 0
    assert lines == [f"worker-1 line {number}" for number in range(len(lines))]
    assert last == f"in all {len(lines)}"
    wait_until(lambda: json.loads(desktop.torchyard("runs", "show", run_id, "--json").stdout)["state"] == "succeeded")
    wait_until(lambda: not programs_on(lab3))


def test_another_desktop_sees_and_stops_the_run(desktop: Desktop, make_desktop, lab3: Lab, tmp_path: Path) -> None:
    launched = desktop.torchyard("run", on_three_hosts(tmp_path / "long", "import time; time.sleep(600)"), "--detach")
    run_id = launched.stdout.strip()
    other = make_desktop(lab3)

    listed = json.loads(other.torchyard("runs", "list", "--json").stdout)

    assert [(line["run_id"], line["name"]) for line in listed] == [(run_id, "test")]
    assert other.torchyard("runs", "stop", run_id).returncode == 0
    wait_until(lambda: not programs_on(lab3))


def test_ctrl_c_while_following_stops_the_run_without_a_terminal(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    following = desktop.start("run", on_three_hosts(tmp_path / "long", "import time; time.sleep(600)"), "--json")
    started(following, state="running")

    following.send_signal(signal.SIGINT)
    output, errors = following.communicate(timeout=60)

    assert following.returncode == 1, errors
    assert json.loads(output.splitlines()[-1])["state"] == "stopped"
    wait_until(lambda: not programs_on(lab3))


def test_ctrl_c_while_launching_leaves_nothing_half_started(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    file = on_three_hosts(folder, COUNTING)
    for number in range(8):
        (folder / f"data-{number}").write_bytes(bytes([number]) * 8_000_000)
    lab3.hosts[0].shape("20mbit")
    try:
        launching = desktop.start("run", file, "--json")
        started(launching, "progress")

        launching.send_signal(signal.SIGINT)
        output, errors = launching.communicate(timeout=60)
    finally:
        lab3.hosts[0].unshape()

    assert launching.returncode == 1
    assert "nothing is left on the hosts" in errors
    assert json.loads(output.splitlines()[-1])["error"]["code"] == "interrupted"
    wait_until(lambda: not programs_on(lab3))
    for host in lab3.hosts:
        left = list((host.home / ".torchyard" / "hosts").glob("*/runs/*"))
        parts = list((host.home / ".torchyard" / "store").rglob("*.part"))
        assert not left
        wait_until(lambda parts=parts: not any(part.exists() for part in parts))


def test_a_replica_that_fails_ends_the_run_with_its_cause(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    script = """
        import os, time
        if os.environ["TORCHYARD_REPLICA"] == "worker-1":
            raise ValueError("the labels do not fit")
        time.sleep(600)
    """

    outcome = run(desktop, on_three_hosts(tmp_path / "failing", script))

    assert outcome.code == 1
    assert outcome.ended["state"] == "failed"
    assert "worker-1 on gpu-" in outcome.ended["reason"]
    assert "ValueError: the labels do not fit" in outcome.ended["reason"]
    states = {replica["name"]: (replica["state"], replica["exit_code"]) for replica in outcome.ended["replicas"]}
    assert states["worker-1"] == ("failed", 1)
    assert states["worker-0"][0] == states["worker-2"][0] == "stopped"
    wait_until(lambda: not programs_on(lab3))


def test_a_killed_replica_is_reported_with_its_signal(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    script = """
        import os, signal, time
        if os.environ["TORCHYARD_REPLICA"] == "worker-2":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    """

    outcome = run(desktop, on_three_hosts(tmp_path / "killed", script))

    assert outcome.code == 1
    assert re.search(r"worker-2 on gpu-\w.*SIGKILL", outcome.ended["reason"]), outcome.ended["reason"]
    wait_until(lambda: not programs_on(lab3))


def test_outputs_are_downloaded(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    script = """
        import os, pathlib
        name = os.environ["TORCHYARD_REPLICA"]
        pathlib.Path(os.environ["TORCHYARD_RUN_DIR"], "model.bin").write_bytes(name.encode() * 1000)
        pathlib.Path("scores.txt").write_text(name)
    """
    outcome = run(desktop, on_three_hosts(tmp_path / "outputs", script))
    assert outcome.ended["state"] == "succeeded"

    fetched = desktop.torchyard("runs", "fetch", outcome.run_id, "-o", tmp_path / "home")

    assert fetched.returncode == 0, fetched.stderr
    hosts = {replica["name"]: replica["host"] for replica in outcome.ended["replicas"]}
    for name, host in hosts.items():
        assert (tmp_path / "home" / host / "outputs" / name / "model.bin").read_bytes() == name.encode() * 1000
        assert (tmp_path / "home" / host / "work" / "scores.txt").read_text() == name
        assert not (tmp_path / "home" / host / "work" / "script.py").exists()


def test_replicas_on_one_host_have_separate_outputs_and_a_warning_about_their_working_folder(
    desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    script = """
        import os, pathlib
        pathlib.Path(os.environ["TORCHYARD_RUN_DIR"], "snapshot.pt").write_text(os.environ["TORCHYARD_REPLICA"])
    """
    pools = """
        pools:
          - {name: workers, role: worker, replicas: 2, hosts: [gpu-a]}
        program: {launcher: command, command: [python3, script.py]}
    """
    outcome = run(desktop, topology(tmp_path / "program", pools, script_py=script))
    assert outcome.ended["state"] == "succeeded"
    [warned] = [event for event in outcome.of("check") if event["name"] == "folder"]
    assert warned["warning"]
    assert warned["message"].startswith("2 replicas share the run's working folder")

    fetched = desktop.torchyard("runs", "fetch", outcome.run_id, "snapshot.pt", "-o", tmp_path / "home")

    assert fetched.returncode == 0, fetched.stderr
    outputs = tmp_path / "home" / "gpu-a" / "outputs"
    assert {path.relative_to(outputs).as_posix(): path.read_text() for path in outputs.rglob("*.pt")} == {
        "worker-0/snapshot.pt": "worker-0",
        "worker-1/snapshot.pt": "worker-1",
    }
