"""Tests of local clients that send malformed or partial messages to the daemon or a keeper, or never read answers."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.running import REPOSITORY
from tests.faults.runs import FOREVER, Team, daemon_of, keeper_of
from tests.lab import LabHost
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

TALK = """
import json, os, socket, sys
sys.path.insert(0, sys.argv[1])
from torchyard_agent.keeper import control_socket
from torchyard_agent.protocol import jsonrpc, paths
folder, run_id = os.path.expanduser("~/.torchyard"), sys.argv[2]
run_dir = paths.run_dir(folder, os.uname().nodename, run_id)
address = control_socket.read(run_dir) if run_id else paths.daemon_socket(folder, os.getuid())
def connect():
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(30)
    client.connect(address)
    return client
def until_closed(client):
    said = b""
    try:
        while piece := client.recv(65536):
            said += piece
    except ConnectionError:
        pass
    return said
"""
MALFORMED = r"""
lines = [b"\xff\x00", b"[]", b"7", b"{}", b"[" * 60_000, b'{"jsonrpc":"1.0","id":1,"method":"hello"}',
         b'{"jsonrpc":"2.0","id":{},"method":"hello"}', b'{"jsonrpc":"2.0","id":1,"method":7}',
         b'{"jsonrpc":"2.0","id":1,"method":"hello","params":7}', b'{"jsonrpc":"2.0","id":1,']
codes = []
for line in lines:
    with connect() as client:
        client.sendall(line + b"\n")
        codes.append(json.loads(client.makefile("rb").readline() or b"{}").get("error", {}).get("code"))
print(json.dumps(codes))
"""
OVERSIZED = r"""
with connect() as client:
    try:
        for _ in range(jsonrpc.MAX_LINE // 65536 + 64):
            client.sendall(b"x" * 65536)
    except ConnectionError:
        pass
    answers = until_closed(client).splitlines()
print(json.dumps([json.loads(answer).get("error", {}).get("code") for answer in answers]))
"""
TRUNCATED = r"""
whole = jsonrpc.request(1, sys.argv[3], {})
for length in range(1, len(whole)):
    with connect() as client:
        client.sendall(whole[:length])
with connect() as client:
    client.sendall(whole[:10])
    client.shutdown(socket.SHUT_WR)
    print(json.dumps(len(until_closed(client))))
"""
NEVER_READING = r"""
client = connect()
asked = 0
try:
    while True:
        client.sendall(jsonrpc.request(1, sys.argv[3], {}) * 1000)
        asked += 1000
except (ConnectionError, TimeoutError) as error:
    print(json.dumps([type(error).__name__, asked]))
"""
MORE_MB = 40
"""Maximum growth in MB of a process that serves a client which never reads. Unread requests take 16 MB, because asyncio
buffers two lines of the maximum length; answers take 1 MB; a thousand requests in progress take the rest.
"""


def run_script(host: LabHost, script: str, method: str = "hello", run_id: str = "") -> Any:
    """Runs a script on a host, which connects to the daemon or to a run's keeper; returns the script's JSON output."""
    said = host.exec([sys.executable, "-c", TALK + script, str(REPOSITORY / "agent"), run_id, method], timeout=90)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def peak_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def test_malformed_oversized_and_truncated_messages_end_their_connection_and_nothing_else(team: Team) -> None:
    run = team.launch(team.topology(FOREVER, replicas=1))
    run.wait_for("running")
    host = team.lab[run.primary]
    daemon, keeper = daemon_of(host), keeper_of(host)
    before = {pid: descriptors(pid) for pid in (daemon, keeper)}

    for run_id, method in (("", "hello"), (run.run_id, "status")):
        codes = run_script(host, MALFORMED, method, run_id)
        assert all(code is not None for code in codes), codes
        assert run_script(host, OVERSIZED, method, run_id) in ([-32700], [])
        assert run_script(host, TRUNCATED, method, run_id) == 0

    assert (daemon_of(host), keeper_of(host)) == (daemon, keeper)
    wait_until(lambda: all(descriptors(pid) <= most for pid, most in before.items()))
    assert team.call(host.name, "run.show", run_id=run.run_id)["state"] == "running"
    assert run.stop()["state"] == "stopped"


def test_a_client_that_never_reads_is_dropped(team: Team) -> None:
    """Slow, because a client is dropped only after ten seconds."""
    run = team.launch(team.topology(FOREVER, replicas=1))
    run.wait_for("running")
    host = team.lab[run.primary]

    def is_dropped(pid: int, method: str, run_id: str) -> None:
        before = peak_mb(pid)
        how, asked = run_script(host, NEVER_READING, method, run_id)
        assert how in ("BrokenPipeError", "ConnectionResetError"), (how, asked)
        assert peak_mb(pid) - before < MORE_MB

    with ThreadPoolExecutor(2) as pool:  # The scripts run in parallel, because each of them takes ten seconds.
        both = (daemon_of(host), "run.list", ""), (keeper_of(host), "status", run.run_id)
        list(pool.map(lambda one: is_dropped(*one), both))

    assert team.call(host.name, "run.show", run_id=run.run_id)["state"] == "running"
    assert run.stop()["state"] == "stopped"
