"""Tests of known-hosts files with hashed names, damaged lines and OpenSSH's markers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from torchyard_core.errors import KeyChanged, KeyUnknown
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh import known_hosts
from torchyard_core.fleet.ssh.known_hosts import KnownHosts
from torchyard_core.fleet.ssh.route import route_to

ROUTE = replace(route_to(Host(name="gpu-a", address="10.0.0.1", user="lee"), lambda alias: {}), key_name="10.0.0.1")


@pytest.fixture
def key() -> paramiko.PKey:
    return paramiko.ECDSAKey.generate()


def line(name: str, key: paramiko.PKey) -> str:
    return f"{name} {key.get_name()} {key.get_base64()}"


def known(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> KnownHosts:
    """Returns the trusted keys if the user's known-hosts file contains `content` and Torchyard has no such file."""
    monkeypatch.setattr(known_hosts, "USER_KNOWN_HOSTS", folder / "users")
    (folder / "users").write_bytes(content)
    return KnownHosts(folder / "ours")


def test_a_line_that_is_damaged_or_says_something_else_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: paramiko.PKey
) -> None:
    lines = [
        f"@cert-authority *.example.org {key.get_name()} {key.get_base64()}",
        "# J\xfcrgen's hosts",
        "10.0.0.9 ssh-ed25519 A",
        "10.0.0.9 ssh-ed25519 AAAA",
        "10.0.0.9 ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTY=",
        "10.0.0.9 ssh-rsa AAAAB3NzaC1yc2EAAAAB",
        "10.0.0.9 ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAga/FWiTKDnTE/FU=",
        "10.0.0.9",
        f"|1|half {key.get_name()} {key.get_base64()}",
        f"|1|aGFsZg==|aGFsZg== {key.get_name()} {key.get_base64()}",
        line(paramiko.HostKeys.hash_host("10.0.0.1"), key),
    ]
    keys = known(tmp_path, monkeypatch, "\r\n".join(lines).encode("latin-1") + bytes(range(256)))

    keys.check(ROUTE, key)

    with pytest.raises(KeyUnknown):
        keys.check(replace(ROUTE, key_name="host.example.org"), key)


def test_a_revoked_key_is_refused_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: paramiko.PKey
) -> None:
    keys = known(tmp_path, monkeypatch, f"{line('10.0.0.1', key)}\n@revoked {line('*', key)}\n".encode())

    with pytest.raises(KeyChanged, match="is revoked in") as refusal:
        keys.check(ROUTE, key)
    assert "ask the owner of the host" in refusal.value.hint


def test_a_key_is_recorded_beside_what_is_there_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: paramiko.PKey
) -> None:
    keys = known(tmp_path, monkeypatch, b"")
    other = line("10.0.0.2", paramiko.ECDSAKey.generate()).encode()
    keys.path.write_bytes(b"# caf\xe9\n" + other + b"\n" + line("10.0.0.1", paramiko.ECDSAKey.generate()).encode())
    with pytest.raises(KeyChanged):
        keys.check(ROUTE, key)

    keys.trust(ROUTE, line("10.0.0.1", key))

    keys.check(ROUTE, key)
    assert keys.path.read_bytes() == b"# caf\xe9\n" + other + b"\n" + line("10.0.0.1", key).encode() + b"\n"
