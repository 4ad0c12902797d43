"""Tests that hosts, SSH servers and cables of the lab fail in the same way as real ones."""

from __future__ import annotations

import socket

import pytest

from tests.lab import Lab
from tests.lab.hosts.processes import processes_in
from tests.lab_fixtures import LabFactory

pytestmark = pytest.mark.lab


def test_destroying_a_host_ends_only_its_own_processes(lab: LabFactory) -> None:
    made = lab(2)
    lost, other = made.hosts
    lost.exec(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & setsid -f sleep 1001 >/dev/null 2>&1"])
    assert {"1000", "1001"} <= {process.argv[-1] for process in lost.processes()}
    namespace = lost.pid_namespace
    lost.destroy()
    assert not lost.alive
    assert lost.processes() == []
    assert processes_in(namespace) == []
    assert made.ssh(lost, "true", options=["-o", "ConnectTimeout=1"]).returncode == 255
    assert made.ssh(other, "hostname").stdout == "gpu-b\n"


def test_a_power_cut_is_silent_and_a_killed_host_still_closes_its_connections(lab: LabFactory) -> None:
    silent, loud = lab(2).hosts
    with (
        socket.create_connection((silent.address, 22), 5) as to_silent,
        socket.create_connection((loud.address, 22), 5) as to_loud,
    ):
        for connection in (to_silent, to_loud):
            connection.settimeout(5)
            assert connection.recv(100).startswith(b"SSH-")
        loud.destroy(silently=False)
        silent.destroy()
        assert answer(to_loud) == b""
        to_silent.settimeout(0.3)
        with pytest.raises(TimeoutError):
            to_silent.recv(100)


def test_a_stopped_sshd_refuses_and_a_started_one_answers(lab3: Lab) -> None:
    host = lab3.hosts[0]
    host.stop_sshd()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host.address, 22), 5)
    host.start_sshd()
    assert lab3.ssh(host, "echo back").stdout == "back\n"


@pytest.mark.parametrize("sessions", [False, True])
def test_stopping_sshd_leaves_or_ends_its_sessions(lab3: Lab, sessions: bool) -> None:
    host = lab3.hosts[0]
    with socket.create_connection((host.address, 22), 5) as connection:
        connection.settimeout(5)
        assert connection.recv(100).startswith(b"SSH-")
        host.stop_sshd(sessions=sessions)
        connection.sendall(b"SSH-2.0-lab\r\n")
        assert bool(answer(connection)) is not sessions


def test_a_cut_cable_passes_nothing_and_connections_survive(lab3: Lab) -> None:
    host = lab3.hosts[0]
    with socket.create_connection((host.address, 22), 5) as connection:
        connection.settimeout(5)
        assert connection.recv(100).startswith(b"SSH-")
        host.cut_cable()
        connection.sendall(b"SSH-2.0-lab\r\n")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        with pytest.raises(OSError, match="timed out"):
            socket.create_connection((host.address, 22), 0.3)
        host.mend_cable()
        connection.settimeout(20)
        assert connection.recv(100), "the kernel sends again what was lost"


def answer(connection: socket.socket) -> bytes:
    """Returns the next data from the other end, or no bytes if the other end has closed the connection."""
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""
