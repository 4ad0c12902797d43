"""Tests of routes to a host: jumps, proxy commands, included configuration files, key aliases and shared bastions."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.end_to_end.running import started, topology
from tests.end_to_end.ssh.logins import connected, desktop_address, hide_from, says, sessions, write_config
from tests.lab import Desktop, Lab
from tests.lab_fixtures import LabFactory
from tests.waiting import wait_until
from torchyard_core.errors import KeyUnknown, Unreachable
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh import SshDialer

pytestmark = pytest.mark.lab

MakeDesktop = Callable[..., Desktop]


@pytest.fixture(scope="module")
def chain(module_lab: LabFactory) -> Lab:
    """Sets up a chain of hosts: gpu-c is reachable only from gpu-b, and gpu-b only from gpu-a."""
    made = module_lab(3)
    outer, inner, far = made.hosts
    hide_from(inner, desktop_address(made))
    hide_from(far, desktop_address(made), outer.address)
    return made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


@pytest.fixture
def dialer(home: Path, chain: Lab) -> SshDialer:
    known_hosts = home / "known_hosts"
    known_hosts.write_text(chain.known_hosts)
    return SshDialer(known_hosts)


def deep(lab: Lab) -> str:
    """Returns an SSH configuration with two jumps: gpu-c is reached through the host `inner`, and `inner` through the
    host `outer`.
    """
    outer, inner, far = lab.hosts
    return (
        f"Host outer\n  HostName {outer.address}\n"
        f"Host inner\n  HostName {inner.address}\n  ProxyJump outer\n"
        f"Host gpu-c far-*\n  HostName {far.address}\n  ProxyJump inner\n"
    )


def test_a_host_two_jumps_away_is_checked_from_the_command(
    chain: Lab, make_desktop: MakeDesktop, tmp_path: Path
) -> None:
    desktop = make_desktop(chain)
    write_config(desktop.user_home, chain, deep(chain))
    desktop.fleet_file.write_text(
        f"version: 1\nhosts:\n  - {{name: gpu-c, python: {sys.executable}}}\n"
        f"  - {{name: gpu-b, address: inner, python: {sys.executable}}}\n"
    )

    done = desktop.torchyard("hosts", "check", "--json")

    assert done.returncode == 0, done.stderr
    assert [check["state"] for check in json.loads(done.stdout)] == ["ready", "ready"]


def test_hosts_behind_a_bastion_share_one_login_on_it_until_the_last_has_left(
    chain: Lab, home: Path, dialer: SshDialer
) -> None:
    write_config(home, chain, deep(chain))
    outer, inner, far = chain.hosts

    with connected(dialer, [Host(name=f"far-{number}") for number in range(6)]) as connections:
        assert {says(connection, "hostname") for connection in connections[:2]} == {"gpu-c\n"}
        wait_until(lambda: [sessions(host) for host in (outer, inner, far)] == [1, 1, 6])
        for connection in connections[:-1]:
            connection.close()
        assert [sessions(host) for host in (outer, inner)] == [1, 1]
        connections[-1].close()
        wait_until(lambda: not any(sessions(host) for host in chain.hosts))


def test_logins_that_begin_at_once_share_the_bastion_too(chain: Lab, home: Path, dialer: SshDialer) -> None:
    write_config(home, chain, deep(chain))

    with ThreadPoolExecutor(12) as pool:
        connections = list(pool.map(dialer.connect, [Host(name=f"far-{number}") for number in range(12)]))
    try:
        wait_until(lambda: [sessions(host) for host in chain.hosts] == [1, 1, 12])
    finally:
        for connection in connections:
            connection.close()


def test_a_lost_bastion_ends_its_hosts_connections_and_the_next_login_restores_it(
    chain: Lab, home: Path, dialer: SshDialer
) -> None:
    write_config(home, chain, deep(chain))
    outer = chain.hosts[0]
    before = [dialer.connect(Host(name=f"far-{number}")) for number in range(2)]
    try:
        outer.exec(["sh", "-c", "kill -KILL $(pgrep -f 'sshd: root')"])
        wait_until(lambda: not any(connection.is_active for connection in before))

        with connected(dialer, [Host(name="far-0"), Host(name="far-1")]) as after:
            assert says(after[0], "hostname") == "gpu-c\n"
            wait_until(lambda: sessions(outer) == 1)
    finally:
        for connection in before:
            connection.close()


def test_the_configuration_can_lie_in_an_included_file(chain: Lab, home: Path, dialer: SshDialer) -> None:
    write_config(home, chain, "Include cluster/*.conf")
    (home / ".ssh" / "cluster").mkdir()
    (home / ".ssh" / "cluster" / "lab.conf").write_text(deep(chain))

    with connected(dialer, [Host(name="gpu-c")]) as (connection,):
        assert says(connection, "hostname") == "gpu-c\n"


def test_a_proxy_command_is_used_and_ends_with_the_login(chain: Lab, home: Path, dialer: SshDialer) -> None:
    outer, inner, _ = chain.hosts
    known_hosts = home / "known_hosts"
    command = f"ssh -F none -i {chain.identity_file} -o UserKnownHostsFile={known_hosts} -W %h:%p root@{outer.address}"
    write_config(home, chain, f"Host gpu-b\n  HostName {inner.address}\n  ProxyCommand {command}\n")

    with connected(dialer, [Host(name="gpu-b")]) as (connection,):
        assert says(connection, "hostname") == "gpu-b\n"

    wait_until(lambda: not sessions(outer))


def test_a_failing_proxy_command_is_reported_with_its_message(chain: Lab, home: Path, dialer: SshDialer) -> None:
    write_config(home, chain, "Host gpu-b\n  ProxyCommand sh -c 'echo the gate is shut >&2; exit 3'\n")

    with pytest.raises(Unreachable, match="the ProxyCommand to gpu-b failed: the gate is shut"):
        dialer.connect(Host(name="gpu-b"))


def test_a_key_on_record_under_an_alias_counts(chain: Lab, home: Path, dialer: SshDialer) -> None:
    outer = chain.hosts[0]
    write_config(home, chain, f"Host gpu-a\n  HostName {outer.address}\n  HostKeyAlias the-door\n")
    with pytest.raises(KeyUnknown):
        dialer.connect(Host(name="gpu-a"))
    (home / "known_hosts").write_text(f"the-door {' '.join(outer.public_key.split()[:2])}\n")

    with connected(dialer, [Host(name="gpu-a")]) as (connection,):
        assert says(connection, "hostname") == "gpu-a\n"


def test_the_keys_of_bastions_are_checked_and_trusted_over_their_route(
    chain: Lab, home: Path, dialer: SshDialer
) -> None:
    write_config(home, chain, deep(chain))
    outer, inner, far = chain.hosts
    (home / "known_hosts").write_text(outer.known_hosts + far.known_hosts)
    host = Host(name="gpu-c")

    with pytest.raises(KeyUnknown) as refused:
        dialer.connect(host)

    assert refused.value.host == "inner"
    assert [bastion.name for bastion in dialer.bastions(host)] == ["outer", "inner"]
    bastion = dialer.bastions(host)[1]
    fingerprint, line = dialer.host_key(bastion)
    assert fingerprint == inner.host_key_fingerprint
    dialer.trust(bastion, line)
    with connected(dialer, [host]) as (connection,):
        assert says(connection, "hostname") == "gpu-c\n"


def test_a_dead_bastion_is_named(chain: Lab, home: Path, dialer: SshDialer) -> None:
    unused = f"{desktop_address(chain).rpartition('.')[0]}.250"
    write_config(home, chain, f"Host gpu-*\n  ProxyJump gate\nHost gate\n  HostName {unused}\n  ConnectTimeout 1\n")

    with pytest.raises(Unreachable, match=rf"gate \({unused}:22\)"):
        dialer.connect(Host(name="gpu-b"))


def test_a_run_behind_a_broken_bastion_continues_and_is_followed_to_its_end(
    chain: Lab, make_desktop: MakeDesktop, tmp_path: Path
) -> None:
    desktop = make_desktop(chain)
    write_config(desktop.user_home, chain, deep(chain))
    desktop.fleet_file.write_text(f"version: 1\nhosts:\n  - {{name: gpu-c, python: {sys.executable}}}\n")
    file = topology(
        tmp_path / "long",
        """
        pools:
          - {name: workers, role: worker, replicas: 1, hosts: [gpu-c]}
        program: {launcher: command, command: [python3, script.py]}
        """,
        script_py="""
            import os, time
            while not os.path.exists("/tmp/enough"):
                time.sleep(0.1)
        """,
    )
    process = desktop.start("run", file, "--json")
    started(process, "replica_state", state="running")

    chain.hosts[0].exec(["sh", "-c", "kill -KILL $(pgrep -f 'sshd: root')"])
    lost = started(process, "connection", state="lost")
    started(process, "connection", state="back")
    chain.hosts[2].exec(["touch", "/tmp/enough"])

    assert lost["host"] == "gpu-c"
    assert started(process, "run_ended")["state"] == "succeeded"
