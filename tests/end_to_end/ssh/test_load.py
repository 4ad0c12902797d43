"""Tests with many hosts, slow hosts, hosts that do not answer, and servers that limit concurrent logins."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.ssh.logins import connected, desktop_address, half_open, hide_from, says, sessions, write_config
from tests.lab import HostSpec, Lab, LabHost
from tests.lab_fixtures import LabFactory
from tests.waiting import wait_until
from torchyard_core.errors import HostError, Unreachable
from torchyard_core.fleet.fleet import Fleet
from torchyard_core.fleet.host_fields import Transport
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh import SshDialer
from torchyard_core.fleet.ssh.connection import SshChannel, SshConnection
from torchyard_core.fleet.ssh.login_throttle import AT_ONCE, LoginThrottle
from torchyard_core.fleet.ssh.openssh import open_ssh

pytestmark = pytest.mark.lab

ONE_AT_A_TIME = ("MaxStartups 1:100:1",)
"""An sshd setting that drops new connections while a login is in progress on another connection."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


def dialer(lab: Lab, home: Path) -> SshDialer:
    known_hosts = home / "known_hosts"
    known_hosts.write_text(lab.known_hosts)
    return SshDialer(known_hosts)


def all_at_once(dial: SshDialer, names: list[str]) -> list[SshConnection]:
    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(dial.connect, [Host(name=name) for name in names]))


@contextmanager
def logins_blocked(host: LabHost) -> Iterator[None]:
    """Delays all logins to the host until the context exits."""
    gate = host.home / "closed"
    gate.touch()
    keys = host.folder / "slow_keys"
    usual = keys.read_text()
    keys.write_text(usual.replace("\n", f"\nwhile test -e {host.inside(gate)}; do sleep 0.02; done\n", 1))
    try:
        yield
    finally:
        gate.unlink()


def drop_packets(addresses: list[str]) -> None:
    """Silently drops packets from this machine to these addresses until the lab is removed."""
    route = subprocess.run(["ip", "route", "get", addresses[0]], capture_output=True, text=True, check=True).stdout
    device = route.partition(" dev ")[2].split()[0]
    lines = [f"neigh replace {address} lladdr 02:00:00:00:00:fa dev {device}\n" for address in addresses]
    subprocess.run(["ip", "-batch", "-"], input="".join(lines), text=True, check=True)


def test_many_hosts_log_in_through_a_bastion_that_accepts_one_login_at_a_time(lab: LabFactory, home: Path) -> None:
    narrow = HostSpec("gpu-a", login_takes_s=0.01, sshd=ONE_AT_A_TIME)
    made = lab(hosts=[HostSpec("bastion", sshd=ONE_AT_A_TIME), narrow, "gpu-b"])
    bastion, one, other = made.hosts
    hide_from(one, desktop_address(made))
    hide_from(other, desktop_address(made))
    write_config(
        home,
        made,
        f"Host bastion\n  HostName {bastion.address}\nHost one-*\n  HostName {one.address}\n"
        f"Host other-*\n  HostName {other.address}\nMatch originalhost !bastion,*\n  ProxyJump bastion\n",
    )
    names = [f"{kind}-{number}" for number in range(12) for kind in ("one", "other")]

    with ThreadPoolExecutor(1) as pool:
        with logins_blocked(one):
            coming = pool.submit(all_at_once, dialer(made, home), names)
            wait_until(lambda: "past MaxStartups" in one.log())  # The server drops some logins, which are retried.
        connections = coming.result()
    try:
        wait_until(lambda: [sessions(host) for host in made.hosts] == [1, 12, 12])
    finally:
        for connection in connections:
            connection.close()


def test_concurrent_logins_stay_within_the_limit_of_an_sshd(lab: LabFactory, home: Path) -> None:
    made = lab(hosts=[HostSpec("gpu-a", login_takes_s=0.01, sshd=("MaxStartups 10:100:10",))])
    (host,) = made.hosts
    write_config(home, made, f"Host gpu-*\n  HostName {host.address}\n")

    with ThreadPoolExecutor(1) as pool:
        with logins_blocked(host):
            coming = pool.submit(all_at_once, dialer(made, home), [f"gpu-{number}" for number in range(30)])
            wait_until(lambda: half_open(host) == AT_ONCE)
        connections = coming.result()
    try:
        assert "MaxStartups" not in host.log()  # The number of concurrent logins never exceeded the limit.
        wait_until(lambda: sessions(host) == 30)
    finally:
        for connection in connections:
            connection.close()


def test_the_systems_ssh_is_throttled_too(lab: LabFactory, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = lab(hosts=[HostSpec("bastion", login_takes_s=0.5, sshd=("MaxStartups 10:100:10",)), "gpu-a"])
    bastion, host = made.hosts
    known_hosts = home / "known_hosts"
    known_hosts.write_text(made.known_hosts)
    write_config(
        home,
        made,
        f"Host bastion\n  HostName {bastion.address}\nHost gpu-*\n  HostName {host.address}\n  ProxyJump bastion\n"
        f"Host *\n  UserKnownHostsFile {known_hosts}\n",
    )
    # OpenSSH reads its configuration from the home folder in the user's passwd entry, not from $HOME.
    (home / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {home}/.ssh/config "$@"\n')
    (home / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:/usr/bin:/bin")
    throttle = LoginThrottle()

    def hostname(number: int) -> str:
        there = Host(name=f"gpu-{number}", transport=Transport.OPENSSH)
        channel = open_ssh(there, known_hosts, "hostname", throttle)
        try:
            return channel.receive(60).decode() + channel.errors()
        finally:
            channel.close()

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(hostname, range(16))) == {"gpu-a\n"}
    assert "MaxStartups" not in bastion.log()


def test_a_slow_host_does_not_fail_and_dead_hosts_delay_no_others(lab: LabFactory, home: Path) -> None:
    made = lab(hosts=["fast", HostSpec("slow", login_takes_s=10.0)])
    write_config(home, made, "Host *\n  ConnectTimeout 9\n")
    subnet = desktop_address(made).rpartition(".")[0]
    dead = [f"{subnet}.{200 + number}" for number in range(40)]
    drop_packets(dead)
    hosts = [Host(name=f"dead-{number}", address=address) for number, address in enumerate(dead)]
    hosts += [Host(name=host.name, address=host.address) for host in made.hosts]
    (home / "known_hosts").write_text(made.known_hosts)
    came: dict[str, float] = {}
    began = time.monotonic()

    with Fleet(hosts, home / "known_hosts", home / "facts.json") as fleet:

        def arrived(name: str, answer: str | HostError) -> None:
            came[name] = time.monotonic() - began

        def ask(name: str) -> str:
            connection = fleet.dialer.connect(fleet.hosts[name])
            try:
                return says(connection, "hostname")
            finally:
                connection.close()

        found = fleet.each(fleet.hosts, ask, arrived)

    assert (found["fast"], found["slow"]) == ("fast\n", "slow\n")
    assert all(isinstance(found[f"dead-{number}"], Unreachable) for number in range(40))
    assert came["slow"] >= 10
    # A host that waited for a dead host would answer later than the dead host fails.
    assert came["fast"] < min(came[f"dead-{number}"] for number in range(40))


# Tests of connections that are lost or whose login fails


def test_a_pulled_cable_ends_a_silent_connection_within_the_configured_time(lab: LabFactory, home: Path) -> None:
    made = lab(hosts=["bastion", "gpu-a"])
    bastion, far = made.hosts
    write_config(
        home,
        made,
        f"ServerAliveInterval 1\nServerAliveCountMax 2\nHost bastion\n  HostName {bastion.address}\n"
        f"Host near\n  HostName {far.address}\nHost far\n  HostName {far.address}\n  ProxyJump bastion\n",
    )
    with connected(dialer(made, home), [Host(name="near"), Host(name="far"), Host(name="bastion")]) as connections:
        channels = [connection.execute("cat") for connection in connections]
        for channel in channels:
            channel.send(b"hello")
            assert channel.receive(60) == b"hello"
        idle_since = time.monotonic()
        wait_until(lambda: time.monotonic() - idle_since > 4.5)
        assert all(connection.is_active for connection in connections), "an idle connection is no dead one"

        far.cut_cable()
        cut_at = time.monotonic()
        assert [channel.receive(60) for channel in channels[:2]] == [b"", b""]

        assert time.monotonic() - cut_at < 60, "and not the quarter of an hour of TCP"
        assert connections[2].is_active


def test_a_pulled_cable_ends_blocked_senders(lab: LabFactory, home: Path) -> None:
    made = lab(hosts=["bastion", "gpu-a"])
    bastion, far = made.hosts
    write_config(
        home,
        made,
        f"ServerAliveInterval 1\nServerAliveCountMax 2\nHost bastion\n  HostName {bastion.address}\n"
        f"Host far-*\n  HostName {far.address}\n  ProxyJump bastion\n",
    )
    with connected(dialer(made, home), [Host(name=f"far-{number}") for number in range(8)]) as connections:
        channels = [connection.execute("cat >/dev/null") for connection in connections]
        ended = [threading.Event() for _ in channels]

        def send(channel: SshChannel, over: threading.Event) -> None:
            try:
                while True:
                    channel.send(b"x" * 65536)
            except OSError:
                over.set()

        senders = [threading.Thread(target=send, args=pair) for pair in zip(channels, ended, strict=True)]
        for sender in senders:
            sender.start()
        wait_until(lambda: far.bytes_received > 4_000_000)
        bastion.cut_cable()  # Together, the senders send more than the TCP buffers can hold, so they block.

        assert all(over.wait(60) for over in ended)
        for sender in senders:
            sender.join(5)


def test_nothing_is_left_of_logins_that_failed(lab: LabFactory, home: Path) -> None:
    made = lab(hosts=["bastion", HostSpec("gpu-a", sshd=("AllowUsers nobody",))])
    bastion, closed = made.hosts
    write_config(
        home,
        made,
        f"Host gpu-a\n  HostName {closed.address}\n  ProxyJump bastion\nHost bastion\n  HostName {bastion.address}\n",
    )
    dial = dialer(made, home)
    before = threading.active_count()

    for _ in range(3):
        with pytest.raises(HostError):
            dial.connect(Host(name="gpu-a"))

    wait_until(lambda: not any(sessions(host) or half_open(host) for host in made.hosts))
    wait_until(lambda: threading.active_count() <= before)
