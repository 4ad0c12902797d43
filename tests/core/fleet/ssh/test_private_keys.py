"""Tests of inspecting and loading private key files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torchyard_core.fleet.ssh.private_keys import BadKey, WrongPassphrase, inspect_key_file


def make(path: Path, kind: str, *options: str, passphrase: str = "") -> Path:
    size = ["-b", "1024"] if kind == "rsa" else []  # Generating larger RSA keys takes seconds.
    command = ["ssh-keygen", "-q", "-t", kind, *size, "-N", passphrase, "-f", str(path), *options]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
@pytest.mark.parametrize("format", ["openssh", "pem"])
def test_each_kind_is_recognised_and_opens_with_its_passphrase(tmp_path: Path, kind: str, format: str) -> None:
    options = ["-m", "PEM"] if format == "pem" else []
    key = inspect_key_file(make(tmp_path / "key", kind, *options, passphrase="open it"))

    assert (key.encrypted, key.private) == (True, True)
    with pytest.raises(WrongPassphrase):
        key.open("wrong")
    assert key.open("open it").asbytes() == key.public

    plain = inspect_key_file(make(tmp_path / "plain", kind, *options))
    assert not plain.encrypted
    assert plain.open().asbytes() == plain.public


def test_the_public_key_is_read_from_an_encrypted_file_without_its_companion(tmp_path: Path) -> None:
    path = make(tmp_path / "key", "ed25519", passphrase="x1234")
    beside = inspect_key_file(path).public
    (tmp_path / "key.pub").unlink()
    assert inspect_key_file(path).public == beside != b""


def test_a_public_key_alone_is_no_key_to_log_in_with(tmp_path: Path) -> None:
    path = make(tmp_path / "key", "ed25519")
    alone = inspect_key_file(path.with_name("key.pub"))
    assert not alone.private
    assert alone.public == inspect_key_file(path).public
    path.unlink()
    assert not inspect_key_file(path).private


@pytest.mark.parametrize("content", [b"", b"hello", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", b"\x00\xff" * 99])
def test_rubbish_is_reported_as_such(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(BadKey, match=r"key .*key is malformed"):
        inspect_key_file(path).open()
