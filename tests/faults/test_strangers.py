"""Tests of unauthenticated clients that send no data, malformed data or recorded traffic to a gang port."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path

import pytest

from tests.faults.runs import QUICK, Team, keeper_of
from tests.lab import LabHost
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

GENERATIONS = """
    import os, time
    print("up", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    time.sleep(600)
"""
RECORDS_TRAFFIC = """
import select, socket, struct, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0003))
wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
print("listening", flush=True)
heard = []
while wire in select.select([wire, sys.stdin], [], [])[0]:
    packet, (_, kind, *_) = wire.recvfrom(65535)
    if kind != 0x0800:
        continue
    length = struct.unpack("!H", packet[2:4])[0]
    tcp = packet[(packet[0] & 15) * 4 : length]
    payload = tcp[(tcp[12] >> 4) * 4 :]
    source, target, number = struct.unpack("!HHI", tcp[:8])
    if packet[9] == 6 and 0 < len(payload) < 600 and 22 not in (source, target):  # no SSH, no bandwidth test
        heard.append((socket.inet_ntoa(packet[12:16]), source, target, number, payload.hex()))
for one in heard:
    print(*one)
"""
SILENT = 150
"""Number of silent connections, larger than the number of unauthenticated connections that the keeper keeps open."""


def gang_port(host: LabHost) -> int:
    """Returns the port on which the host's keeper listens for members: the only listening port besides SSH's.

    Reserved ports are bound, but not listening.
    """
    rows = (line.split() for line in Path(f"/proc/{keeper_of(host)}/net/tcp").read_text().splitlines()[1:])
    (port,) = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"} - {host.port}
    return port


def descriptors(host: LabHost) -> int:
    return len(list(Path(f"/proc/{keeper_of(host)}/fd").iterdir()))


def test_strangers_at_the_gang_port_do_not_block_members(team: Team) -> None:
    team.impatient(**QUICK)
    run = team.launch(team.topology(GENERATIONS, "max_restarts: 1\nfailure_grace_s: 0.2"))
    run.wait_for_output("up 0")
    primary, member = team.lab[run.primary], team.lab["gpu-b"]
    address, before = (primary.address, gang_port(primary)), descriptors(primary)

    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection(address, 10)) for _ in range(SILENT)]
        for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000, bytes(64), b"x"):
            talking = stack.enter_context(socket.create_connection(address, 10))
            with contextlib.suppress(OSError):  # The keeper may close the connection during any of these calls.
                talking.sendall(nonsense)
                talking.shutdown(socket.SHUT_WR)
                while talking.recv(4096):
                    pass
        assert run.of("gang_restart") == []
        # Although unauthenticated connections are open, a disconnected member must be able to reconnect.
        member.cut_cable()
        wait_until(lambda: run.of("gang_restart"))
        strangers += [stack.enter_context(socket.create_connection(address, 10)) for _ in range(SILENT)]
        member.mend_cable()
        run.wait_for_output("up 1")
        run.wait_for("running")
        assert len(strangers) == 2 * SILENT
        wait_until(lambda: descriptors(primary) <= before)

    assert run.stop()["state"] == "stopped"


def test_a_replay_of_recorded_traffic_is_rejected(team: Team) -> None:
    member = team.lab["gpu-b"]
    team.fleet.links()
    ear = member.start([sys.executable, "-c", RECORDS_TRAFFIC])
    assert ear.stdout is not None
    assert ear.stdout.readline() == "listening\n"
    try:
        run = team.launch(team.topology(GENERATIONS, "max_restarts: 1", replicas=2))
        run.wait_for_output("up 0")
        run.wait_for("running")
        primary = team.lab[run.primary]
        address = primary.address, gang_port(primary)
    finally:
        heard, _ = ear.communicate(timeout=60)
    said = _data_sent_to(address[1], member.address, heard)
    assert len(said) > 96, "the proof, and frames after it"

    before = len(run.journal())
    with socket.create_connection(address, 10) as stranger:
        stranger.sendall(said)
        stranger.settimeout(10)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := stranger.recv(4096):
                answer += piece
    # After its first message of 48 bytes, the keeper may send a refusal, but neither data nor a proof that it knows the
    # key.
    assert answer[48:] in (b"", bytes(32))
    log = run.folder(run.primary) / "keeper.log"
    wait_until(lambda: "the caller does not know the run's secret" in log.read_text())
    assert len(run.journal()) == before
    assert run.states()[-1] == "running"
    assert run.stop()["state"] == "stopped"


def _data_sent_to(port: int, speaker: str, heard: str) -> bytes:
    """Returns the data that the address `speaker` sent to a port, on the connection with the most data.

    Other connections only test whether the port can be reached.
    """
    pieces: dict[int, dict[int, bytes]] = {}
    for line in heard.splitlines():
        source_address, source, target, number, payload = line.split()
        if source_address == speaker and int(target) == port:
            pieces.setdefault(int(source), {})[int(number)] = bytes.fromhex(payload)
    return max((b"".join(said[number] for number in sorted(said)) for said in pieces.values()), key=len)
