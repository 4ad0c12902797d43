"""Tests of changing a host's entry in the fleet file, which must leave every other character unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchyard_core.errors import UsageError
from torchyard_core.fleet.host_fields import Transport
from torchyard_core.fleet.inventory import Host, change_hosts, read_fleet

FILE = """\
version: 1
hosts:
  - name: gpu-a              # the fast one
    address: 10.0.0.11  # or a Host
    labels: {rack: r1, kind: h100}
  # between
  - {name: gpu-b, port: 22, transport: paramiko}  # flow
  - name: gpu-c
    labels:
      rack: r1   # nested
      kind: x
    # tail
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FILE)
    return path


def changed(path: Path, host: str, /, **values: Any) -> str:
    """Returns the text after the given keys have been changed. The value None removes a key."""
    before = read_fleet(path).usable().host(host)
    entry = {**before.model_dump(exclude_unset=True), **values}
    change_hosts(path, [(before, Host(**{key: value for key, value in entry.items() if value is not None}))])
    return path.read_text()


def test_a_value_changes_in_its_place(fleet: Path) -> None:
    assert changed(fleet, "gpu-a", address="10.0.0.12") == FILE.replace("10.0.0.11", "10.0.0.12")


def test_new_keys_come_last_and_removed_ones_leave_no_gap(fleet: Path) -> None:
    assert changed(fleet, "gpu-a", python="/opt/x/bin/python", address=None) == FILE.replace(
        "    address: 10.0.0.11  # or a Host\n", ""
    ).replace("kind: h100}\n", "kind: h100}\n    python: /opt/x/bin/python\n")


def test_an_entry_in_braces_stays_one_and_keeps_its_explicit_default(fleet: Path) -> None:
    assert changed(fleet, "gpu-b", port=None, user="lee") == FILE.replace(
        "{name: gpu-b, port: 22, transport: paramiko}", "{name: gpu-b, transport: paramiko, user: lee}"
    )


def test_a_label_changes_in_its_block(fleet: Path) -> None:
    assert changed(fleet, "gpu-c", labels={"rack": "r2", "kind": "x"}) == FILE.replace("rack: r1   #", "rack: r2   #")


def test_an_unsupported_change_rewrites_only_its_entry(fleet: Path) -> None:
    nested = "    labels:\n      rack: r1   # nested\n      kind: x\n"
    assert changed(fleet, "gpu-c", labels=None, user="lee") == FILE.replace(nested, "    user: lee\n")


def test_a_host_is_renamed(fleet: Path) -> None:
    assert changed(fleet, "gpu-a", name="gpu-z") == FILE.replace("name: gpu-a", "name: gpu-z")


def test_every_key_of_a_host_can_be_set_and_removed_again(fleet: Path) -> None:
    every: dict[str, Any] = {
        "address": "10.0.0.1",
        "port": 2222,
        "user": "lee",
        "identity_file": "~/k",
        "proxy_jump": "bastion",
        "data_address": "10.1.0.1",
        "interface": "ib0",
        "transport": Transport.OPENSSH,
        "python": "/p",
        "agent_python": "/q",
        "agent_dir": "/d",
        "ports": "29400-29499",
        "bandwidth_gbps": 25.0,
        "labels": {"a": "b"},
    }
    assert {*every, "name", "local"} == set(Host.model_fields)
    changed(fleet, "gpu-b", **every)
    host = read_fleet(fleet).usable().host("gpu-b")
    assert host == Host(name="gpu-b", **every)
    assert changed(fleet, "gpu-b", **dict.fromkeys(every)) == FILE.replace(", port: 22, transport: paramiko", "")


def test_several_hosts_change_in_one_write_or_none_does(fleet: Path) -> None:
    a, b, _ = read_fleet(fleet).usable().hosts
    edits = [(host, host.model_copy(update={"user": "lee"})) for host in (a, b)]
    assert [host.user for host in change_hosts(fleet, edits).hosts] == ["lee", "lee", None]
    text = fleet.read_text()
    with pytest.raises(UsageError, match="was changed meanwhile"):
        change_hosts(fleet, [(read_fleet(fleet).host("gpu-c"), Host(name="gpu-d")), (b, Host(name="gpu-e"))])
    assert fleet.read_text() == text


def test_a_name_of_another_host_is_refused(fleet: Path) -> None:
    with pytest.raises(UsageError, match="has a host `gpu-b` already"):
        changed(fleet, "gpu-a", name="gpu-b")
    assert fleet.read_text() == FILE


def test_the_default_fleet_is_written_with_its_change(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    text = changed(path, "this-computer", python="/opt/x/bin/python")
    assert text.endswith("  - name: this-computer\n    local: true\n    python: /opt/x/bin/python\n")
