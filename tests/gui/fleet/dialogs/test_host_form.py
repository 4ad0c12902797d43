"""Tests of parsing the fields of the host dialog, and of the problems that it shows beside them."""

from __future__ import annotations

import pytest

from torchyard_core.fleet.host_fields import Transport
from torchyard_core.fleet.inventory import Host
from torchyard_gui.fleet.dialogs.host_form import host_of


def test_a_name_is_enough_and_empty_fields_stay_out_of_the_file() -> None:
    host, wrong = host_of({"name": " gpu-a ", "address": "", "port": "", "transport": ""}, local=False)
    assert wrong == {}
    assert host is not None
    assert host.model_dump(exclude_unset=True) == {"name": "gpu-a"}


def test_every_field_reaches_the_host() -> None:
    typed = {
        "name": "gpu-a",
        "address": "10.0.0.11",
        "port": "2222",
        "user": "lee",
        "identity_file": "~/.ssh/lab",
        "proxy_jump": "lee@bastion",
        "transport": "openssh",
        "python": "/opt/torch/bin/python",
        "ports": "29400-29499",
        "bandwidth_gbps": "25",
        "labels": "rack=r1, kind=h100",
    }
    host, wrong = host_of(typed, local=False)
    assert wrong == {}
    assert isinstance(host, Host)
    assert (host.port, host.transport, host.bandwidth_gbps) == (2222, Transport.OPENSSH, 25.0)
    assert host.labels == {"rack": "r1", "kind": "h100"}


@pytest.mark.parametrize(
    ("field", "text", "sentence"),
    [
        ("name", "gpu a", "must be a word"),
        ("name", "", "needs a name"),
        ("name", "gpu-z", "has an entry `gpu-z` already"),
        ("port", "70000", "from 1 to 65535"),
        ("port", "ssh", "must be a whole number"),
        ("address", "-oProxyCommand=x", "does not begin with `-`"),
        ("user", "a b", "one word"),
        ("ports", "99-1", "29400-29499"),
        ("bandwidth_gbps", "fast", "must be a number"),
        ("bandwidth_gbps", "-1", "above 0"),
        ("bandwidth_gbps", "nan", "must be a number"),
        ("labels", "rack", "KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_told_beside_its_field(field: str, text: str, sentence: str) -> None:
    host, wrong = host_of({"name": "gpu-a", field: text}, local=False, taken=["gpu-z"])
    assert host is None
    assert list(wrong) == [field]
    assert sentence in wrong[field]


def test_this_computer_needs_no_ssh() -> None:
    host, wrong = host_of({"name": "here", "address": "10.0.0.1", "port": "x"}, local=True)
    assert wrong == {}
    assert host == Host(name="here", local=True)
