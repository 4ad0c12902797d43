"""Tests of misuse and faults: cancelled launches, killed keepers, repeated Ctrl-C, closed pipes, and invalid or unusual
data.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.running import REPOSITORY, kill_keepers, log_of, programs_on, run, started, topology
from tests.lab import Desktop, Lab, LabHost
from tests.waiting import wait_until
from torchyard_core.cli.context import CommandContext
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.home import Home
from torchyard_core.launch.launch import Launch
from torchyard_core.launch.progress import Cancelled
from torchyard_core.topology.file import read_topology

pytestmark = pytest.mark.lab

SLEEPING = "import time; time.sleep(600)"
WITH_A_STRAY = """
    import os, subprocess, sys, time
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print("up", flush=True)
    time.sleep(600)
"""
WRITING = r"""
    import sys
    out = sys.stdout.buffer
    for number in range(50_000):
        out.write(b"line %d\n" % number)
    out.write(b"x" * 3_000_000 + b"\n" + bytes(range(256)) * 100 + b"\n\xea\xb0\n\r\x00the end has no newline")
"""
TALK = """
import json, os, socket, sys
sys.path.insert(0, {agent!r})
from torchyard_agent.keeper import control_socket
from torchyard_agent.protocol import paths
folder = os.path.expanduser("~/.torchyard")
run_id = {run_id!r}
run_dir = paths.run_dir(folder, os.uname().nodename, run_id)
address = control_socket.read(run_dir) if run_id else paths.daemon_socket(folder, os.getuid())
def connect():
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(5)
    client.connect(address)
    return client
def ask(method):
    with connect() as client:
        client.sendall(json.dumps({{"jsonrpc": "2.0", "id": 1, "method": method, "params": {{}}}}).encode() + b"\\n")
        return json.loads(client.makefile("rb").readline())["result"]
"""
NONSENSE = r"""
lines = [
    b"\xff\x00",
    b"[]",
    b"[" * 60_000,
    b'{"jsonrpc":"2.0","id":[1]}',
    b'{"jsonrpc":"2.0","id":{},"error":1}',
    b'{"jsonrpc":"2.0","id":"\\ud800","method":"\\udfff"}',
    b'{"jsonrpc":"2.0","id":1,"method":"stop","params":7}',
]
for line in lines:
    with connect() as client:
        client.sendall(line + b"\n")
        client.recv(1)  # waits for an answer or the end of the connection
"""


def on_three_hosts(folder: Path, script: str, program: str = "", replicas: int = 3) -> Path:
    return topology(
        folder,
        f"""
        pools:
          - {{name: workers, role: worker, replicas: {replicas}, placement: spread}}
        program:
          launcher: command
          command: [python3, script.py]
          {program}
        """,
        script_py=script,
    )


def run_script(host: LabHost, script: str, run_id: str = "") -> Any:
    """Runs a script on a host that connects to the daemon or to a run's keeper; returns the script's JSON output."""
    said = host.exec([sys.executable, "-c", TALK.format(agent=str(REPOSITORY / "agent"), run_id=run_id) + script])
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def run_folders(lab: Lab) -> list[Path]:
    return [folder for host in lab.hosts for folder in (host.home / ".torchyard" / "hosts").glob("*/runs/*")]


@pytest.mark.parametrize(
    ("method", "answered"),
    [("run.prepare", False), ("run.join", False), ("run.start", False), ("run.start", True)],
)
def test_a_launch_cancelled_at_any_step_leaves_nothing(
    desktop: Desktop, lab3: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, answered: bool
) -> None:
    home = Home(desktop.home)
    settings = CommandContext(home, home.fleet_file, False)
    source = read_topology(on_three_hosts(tmp_path / "long", SLEEPING))
    assert source.topology is not None
    call = DaemonClient.call

    with settings.fleet(settings.inventory().hosts) as fleet:
        launch = Launch(source, source.topology, "taken-back", fleet, {}, lambda event: None)

        def cancelling(
            link: DaemonClient, asked: str, params: dict[str, Any] | None = None, timeout_s: float = 60.0
        ) -> Any:
            if asked == method and not answered:
                launch.cancel()
            answer = call(link, asked, params, timeout_s)
            if asked == method:
                launch.cancel()
            return answer

        monkeypatch.setattr(DaemonClient, "call", cancelling)
        with pytest.raises(Cancelled):
            launch.run()

    wait_until(lambda: not programs_on(lab3))
    assert not run_folders(lab3)


def test_a_killed_keeper_ends_all_of_its_host(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    following = desktop.start("run", on_three_hosts(tmp_path / "stray", WITH_A_STRAY, replicas=2), "--json")
    run_id = started(following, "run_submitted")["run_id"]
    started(following, state="running")
    wait_until(lambda: all("up" in log_of(desktop, run_id, f"worker-{number}") for number in range(2)))

    # Both keepers are killed at once, because otherwise the primary could detect the loss of the member before the
    # primary itself is killed.
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(kill_keepers, [lab3["gpu-b"], lab3["gpu-a"]]))
    output, errors = following.communicate(timeout=60)

    assert following.returncode == 1, errors
    assert json.loads(output.splitlines()[-1])["error"]["code"] == "keeper_died"
    # gpu-b must end its processes although it has received no request since its keeper was killed.
    wait_until(lambda: not programs_on(lab3))
    shown = json.loads(desktop.torchyard("runs", "show", run_id, "--json").stdout)
    assert shown["state"] == "failed"
    assert {replica["state"] for replica in shown["replicas"]} == {"lost"}


def test_a_new_daemon_survives_garbage_as_first_message(desktop: Desktop, lab3: Lab) -> None:
    assert desktop.torchyard("deploy").returncode == 0

    assert run_script(lab3["gpu-a"], NONSENSE + "\nprint(json.dumps(ask('hello')))")["node"] == "gpu-a"


def test_every_byte_of_a_log_arrives_once(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = on_three_hosts(tmp_path / "writing", WRITING, replicas=1)
    run_id = desktop.torchyard("run", file, "--detach").stdout.strip()

    followed, read = (
        subprocess.run(
            desktop.command("runs", "logs", run_id, *options, "--replica", "worker-0"),
            capture_output=True,
            check=True,
            timeout=60,
            env=desktop.environment(),
        )
        for options in (["-f"], [])
    )

    (log,) = (lab3["gpu-a"].home / ".torchyard").rglob("worker-0*.log")
    text = log.read_bytes().decode(errors="replace") + "\n"
    assert len(text) > 3_000_000
    assert followed.stdout.decode() == text
    assert read.stdout.decode() == text


def test_file_names_that_are_not_utf_8_are_sent(desktop: Desktop, tmp_path: Path) -> None:
    folder = desktop.user_home / "odd"
    listing = "import os; print(sorted(map(os.fsencode, os.listdir('.'))))"
    file = on_three_hosts(folder, listing, "workdir: ~/odd", replicas=1)
    (folder / "caf\udce9.txt").write_text("latin-1")

    outcome = run(desktop, file)

    assert outcome.ended["state"] == "succeeded", outcome.ended["reason"]
    assert repr(b"caf\xe9.txt") in log_of(desktop, outcome.run_id, "worker-0")


def test_two_desktops_stop_a_run_at_the_same_time(
    desktop: Desktop, make_desktop: Callable[..., Desktop], lab3: Lab, tmp_path: Path
) -> None:
    file = on_three_hosts(tmp_path / "long", SLEEPING, "stop_grace_s: 1")
    run_id = desktop.torchyard("run", file, "--detach").stdout.strip()

    stopping = [computer.start("runs", "stop", run_id) for computer in (desktop, make_desktop(lab3))]

    for process in stopping:
        output, errors = process.communicate(timeout=60)
        # The second request fails if it arrives after the run has ended.
        assert "stopped" in output + errors
        assert process.returncode in (0, 1)
    assert any(process.returncode == 0 for process in stopping)
    wait_until(lambda: not programs_on(lab3))


def test_ctrl_c_held_down_ends_the_run_once(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    following = desktop.start("run", on_three_hosts(tmp_path / "long", SLEEPING), "--json")
    started(following, state="checking")

    while following.poll() is None:
        following.send_signal(signal.SIGINT)
        try:
            following.wait(0.02)
        except subprocess.TimeoutExpired:
            continue

    _, errors = following.communicate()
    assert "Traceback" not in errors
    wait_until(lambda: not programs_on(lab3))
    assert not run_folders(lab3)


def test_a_closed_pipe_ends_the_command_and_not_the_run(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    talking = (
        "import itertools, time\nfor number in itertools.count():\n    print(number, flush=True)\n    time.sleep(0.05)"
    )
    following = desktop.start("run", on_three_hosts(tmp_path / "talking", talking, "stop_grace_s: 1", replicas=1))
    assert following.stdout is not None
    assert following.stderr is not None
    assert following.stdout.readline() == "worker-0 | 0\n"

    following.stdout.close()  # The pipe is closed as `head -1` would close it after reading one line.

    assert following.wait(30) == 1
    said = following.stderr.read()
    assert "The reader of this output has gone. Run" in said
    assert "Traceback" not in said
    assert json.loads(desktop.torchyard("runs", "show", "last", "--json").stdout)["state"] == "running"
    assert desktop.torchyard("runs", "stop", "last").returncode == 0
