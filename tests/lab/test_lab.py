"""Tests of properties of lab hosts on which other tests rely."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.lab import Desktop, Lab
from tests.lab.keys import make_key
from tests.lab_fixtures import LabFactory
from tests.waiting import wait_until

pytestmark = pytest.mark.lab


def test_three_hosts_are_up_in_seconds(lab: LabFactory) -> None:
    began = time.monotonic()
    hosts = lab(3).hosts
    took = time.monotonic() - began
    assert [host.name for host in hosts] == ["gpu-a", "gpu-b", "gpu-c"]
    assert took < 20  # On an idle machine, creating the hosts takes 1 s.


def test_a_host_has_its_own_name_home_and_processes_over_ssh(lab3: Lab) -> None:
    host = lab3.hosts[1]
    (host.home / "hello").write_text("from outside\n")
    done = lab3.ssh(
        host,
        "hostname; pwd; cat hello; readlink /proc/self/ns/pid; echo inside > /root/answer; echo inside > /tmp/answer",
    )
    assert done.returncode == 0, done.stderr
    name, home, hello, processes = done.stdout.splitlines()
    assert (name, home, hello) == ("gpu-b", "/root", "from outside")
    assert processes != str(Path("/proc/self/ns/pid").readlink()), "it counts its own processes"
    assert (host.home / "answer").read_text() == (host.tmp / "answer").read_text() == "inside\n"
    assert host.inside(host.home / "answer") == "/root/answer"
    assert not (lab3.hosts[0].home / "answer").exists()


def test_a_terminal_session_shows_nothing_but_what_was_asked_for(lab3: Lab) -> None:
    assert lab3.ssh(lab3.hosts[0], "test -t 1 && echo yes", options=["-tt"]).stdout == "yes\n"


def test_names_of_hosts_resolve_nowhere(lab3: Lab) -> None:
    ask = "import socket, sys; socket.getaddrinfo(sys.argv[1], 22)"
    for host in lab3.hosts:
        assert host.exec(["getent", "hosts", host.name]).returncode != 0
        here = host.exec(["/usr/bin/python3", "-c", ask, host.name])
        assert "socket.gaierror" in here.stderr
        with pytest.raises(socket.gaierror):
            socket.getaddrinfo(host.name, 22)


def test_hosts_reach_each_other_by_address(lab3: Lab) -> None:
    greet = "import socket, sys; print(socket.create_connection((sys.argv[1], 22), 5).recv(4))"
    for one in lab3.hosts:
        for other in lab3.hosts:
            assert "SSH-" in one.exec(["/usr/bin/python3", "-c", greet, other.address]).stdout


def test_the_interpreter_of_the_fleet_file_runs_there(lab3: Lab) -> None:
    fleet = yaml.safe_load(lab3.fleet_yaml(labels={"rack": "r1"}))
    assert [entry["labels"] for entry in fleet["hosts"]] == [{"rack": "r1"}] * 3
    for host, entry in zip(lab3.hosts, fleet["hosts"], strict=True):
        assert (entry["name"], entry["address"]) == (host.name, host.address)
        assert lab3.ssh(host, f"{entry['python']} -c 'import yaml; print(7 * 6)'").stdout == "42\n"


def test_a_login_without_the_key_is_refused(lab3: Lab, tmp_path: Path) -> None:
    other_key = tmp_path / "other"
    make_key(other_key, "a stranger")
    refused = lab3.ssh(lab3.hosts[0], "true", identity_file=other_key)
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr


def test_a_changed_host_key_is_noticed_by_ssh(lab: LabFactory) -> None:
    made = lab(1)
    host = made.hosts[0]
    known = made.directory / "known_before"
    known.write_text(made.known_hosts)
    strictly = ["-o", f"UserKnownHostsFile={known}"]
    fingerprint = host.host_key_fingerprint
    assert scanned_fingerprint(host.address) == fingerprint
    assert made.ssh(host, "true", options=strictly).returncode == 0
    host.change_host_key()
    assert scanned_fingerprint(host.address) == host.host_key_fingerprint != fingerprint
    assert made.ssh(host, "true").returncode == 0
    assert "IDENTIFICATION HAS CHANGED" in made.ssh(host, "true", options=strictly).stderr


def scanned_fingerprint(address: str) -> str:
    """Returns the fingerprint of a server's key, computed by ssh-keygen."""
    scanned = subprocess.run(
        ["ssh-keyscan", "-t", "ed25519", address], capture_output=True, text=True, check=True
    ).stdout
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", "-"], input=scanned, capture_output=True, text=True, check=True
    ).stdout
    return shown.split()[1]


def test_counters_count_what_is_sent(lab3: Lab) -> None:
    host = lab3.hosts[0]
    sent, received = host.bytes_sent, host.bytes_received
    assert len(lab3.ssh(host, "head -c 1000000 /dev/zero").stdout) == 1_000_000
    assert 1_000_000 < host.bytes_sent - sent < 1_200_000
    assert 1_000 < host.bytes_received - received < 200_000


def test_a_shaped_cable_has_the_given_rate(lab3: Lab) -> None:
    host = lab3.hosts[0]
    host.shape("40mbit")
    try:
        assert 0.7 < seconds_for_4_mb(lab3) < 30, "4 MB at 5 MB/s"
    finally:
        host.unshape()
    # At the limited rate, 4 MB would take longer. A busy machine may need several tries.
    wait_until(lambda: seconds_for_4_mb(lab3) < 0.7, what="a cable as fast as before")


def seconds_for_4_mb(lab: Lab) -> float:
    began = time.monotonic()
    lab.ssh(lab.hosts[0], "head -c 4000000 /dev/zero")
    return time.monotonic() - began


def test_a_plain_host_is_clean_after_a_test_has_used_it(lab: LabFactory) -> None:
    host = lab(1).hosts[0]
    host.exec(["sh", "-c", "mkdir -p ~/.torchyard/a; touch /tmp/x; setsid -f sleep 1000 >/dev/null 2>&1"])
    host.clean()
    assert len(host.processes()) == 2
    assert not (host.tmp / "x").exists()
    assert not (host.home / ".torchyard").exists()
    assert host.exec([sys.executable, "-c", "print(1)"]).stdout == "1\n", "the interpreter is still there"


def test_orphans_are_reaped_by_the_first_process(lab3: Lab) -> None:
    host = lab3.hosts[0]
    host.exec(["sh", "-c", "setsid -f sleep 0.05 >/dev/null 2>&1"])
    wait_until(lambda: len(host.processes()) <= 2, what=host.processes)


def test_the_desktop_runs_commands_with_a_home_of_its_own(lab3: Lab, desktop: Desktop) -> None:
    environment = desktop.environment({"EXTRA": "1"})
    assert environment["HOME"] == str(desktop.user_home)
    assert not list(desktop.user_home.iterdir())
    assert "SSH_AUTH_SOCK" not in environment
    assert environment["EXTRA"] == "1"
    assert yaml.safe_load(desktop.fleet_file.read_text())["hosts"][2]["name"] == "gpu-c"
    assert desktop.known_hosts.read_text() == lab3.known_hosts
    assert desktop.command("hosts", "list")[-4:] == ["--home", str(desktop.home), "hosts", "list"]
