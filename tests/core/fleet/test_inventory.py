"""Tests of the fleet file: problems are reported with line numbers, and edits preserve comments."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from torchyard_core.errors import FileProblem, TorchyardError, UsageError
from torchyard_core.fleet.host_fields import Transport
from torchyard_core.fleet.inventory import (
    THIS_COMPUTER,
    Host,
    add_host,
    parse_ports,
    read_fleet,
    remove_host,
)

EVERY_KEY = """\
version: 1
hosts:
  - name: gpu-a
    address: 10.0.0.11        # or a Host of ~/.ssh/config
    port: 22
    user: lee
    identity_file: ~/.ssh/id_ed25519
    proxy_jump: bastion
    data_address: 192.168.7.11
    interface: ib0
    transport: paramiko
    python: /opt/torch/bin/python
    agent_python: /usr/bin/python3
    agent_dir: ~/.torchyard
    ports: 29400-29499
    bandwidth_gbps: 25
    labels: {rack: r1}
  - {name: this-computer, local: true}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return tmp_path / "home" / "fleet.yaml"


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def names(path: Path) -> list[str]:
    return [host.name for host in read_fleet(path).usable().hosts]


# Tests of reading the fleet file


def test_every_key_of_the_format_is_read(fleet: Path) -> None:
    inventory = read_fleet(written(fleet, EVERY_KEY))
    assert inventory.problems == ()
    a, here = inventory.hosts
    assert (a.address, a.port, a.user, a.identity_file) == ("10.0.0.11", 22, "lee", "~/.ssh/id_ed25519")
    assert (a.proxy_jump, a.data_address, a.interface) == ("bastion", "192.168.7.11", "ib0")
    assert (a.transport, a.python, a.agent_python) == (
        Transport.PARAMIKO,
        "/opt/torch/bin/python",
        "/usr/bin/python3",
    )
    assert (a.agent_dir, a.port_range, a.bandwidth_gbps, a.labels) == (
        "~/.torchyard",
        (29400, 29499),
        25,
        {"rack": "r1"},
    )
    assert (here.name, here.local) == (THIS_COMPUTER, True)


def test_what_a_host_leaves_out_is_left_to_ssh_config(fleet: Path) -> None:
    [host] = read_fleet(written(fleet, "version: 1\nhosts: [{name: a}]\n")).hosts
    assert (host.address, host.port, host.user, host.proxy_jump, host.port_range) == (None,) * 5
    assert (host.local, host.transport) == (False, Transport.PARAMIKO)


def test_without_a_file_the_fleet_is_this_computer(fleet: Path) -> None:
    inventory = read_fleet(fleet)
    assert [(host.name, host.local) for host in inventory.hosts] == [(THIS_COMPUTER, True)]
    assert not fleet.exists()


def test_a_file_without_this_computer_means_it(fleet: Path) -> None:
    assert names(written(fleet, "version: 1\nhosts: [{name: a}]\n")) == ["a"]
    assert names(written(fleet, "version: 1\n")) == []


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("adress: x", "unknown-key unknown key `adress`; did you mean `address`?"),
        ("port: 99999", "wrong-value port must be a whole number from 1 to 65535, not 99999"),
        ("port: ssh", "wrong-value port must be a whole number from 1 to 65535, not 'ssh'"),
        ("ports: 1-2", "wrong-value ports must be a range like 29400-29499, between 1024 and 65535, not '1-2'"),
        ("ports: [29400]", "wrong-value ports must be text, not a list"),
        ("user: -oProxyCommand=x", "wrong-value user must be one word that does not begin with `-`"),
        (
            "proxy_jump: a b",
            "wrong-value proxy_jump must be user@address:port without spaces, such as kim@",
        ),
        ("address: a b", "wrong-value address must be one word that does not begin with `-`"),
        ("transport: ssh", "wrong-value transport must be one of paramiko or openssh, not 'ssh'; did you mean"),
        ("local: yes", "wrong-value local must be true or false, not 'yes'"),
        ("bandwidth_gbps: 0", "wrong-value bandwidth_gbps must be a number above 0, not 0"),
        ("labels: [a]", "wrong-value labels must be a block of keys, not a list"),
        ("name: b", "duplicate-key `name` is given twice, first in line 3"),
    ],
)
def test_a_wrong_entry_is_a_sentence_with_its_line(fleet: Path, line: str, sentence: str) -> None:
    inventory = read_fleet(written(fleet, f"version: 1\nhosts:\n  - name: a\n    {line}\n"))
    [problem] = inventory.problems
    assert problem.printed("fleet.yaml").startswith(f"fleet.yaml:4: error {sentence}")
    with pytest.raises(TorchyardError) as raised:
        inventory.usable()
    assert str(fleet) in raised.value.message


@pytest.mark.parametrize("name", ["a b", "a:0", "-a", "a/b", "''", "a,b", "a" * 101])
def test_a_host_s_name_must_do_in_a_pin(fleet: Path, name: str) -> None:
    [problem] = read_fleet(written(fleet, f"version: 1\nhosts: [{{name: {name!r}}}]\n".replace('"', ""))).problems
    assert problem.code == "wrong-value"


def test_two_hosts_of_one_name(fleet: Path) -> None:
    [problem] = read_fleet(written(fleet, "version: 1\nhosts:\n  - {name: a}\n  - {name: a}\n")).problems
    assert problem.printed("f") == "f:4: error duplicate-host host `a` is defined twice"


def test_ssh_settings_of_a_local_host_are_pointless(fleet: Path) -> None:
    inventory = read_fleet(written(fleet, "version: 1\nhosts:\n  - {name: a, local: true,\n     user: x}\n"))
    assert [problem.printed("f") for problem in inventory.problems] == [
        "f:4: warning local-host `user` has no effect on a local host, which is reached without SSH"
    ]
    assert inventory.usable() is inventory


def test_a_file_that_does_not_parse_is_a_sentence(fleet: Path) -> None:
    for text, sentence in (("hosts: [", "is not closed by"), ("", "the file is empty"), ("\ta: 1", "a tab is used")):
        with pytest.raises(FileProblem, match=sentence):
            read_fleet(written(fleet, text))
    with pytest.raises(FileProblem, match="this is a folder"):
        read_fleet(fleet.parent)


def test_a_dangling_link_is_not_taken_for_an_empty_fleet(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").symlink_to(tmp_path / "gone")
    with pytest.raises(FileProblem, match="there is no such file"):
        read_fleet(tmp_path / "fleet.yaml")


def test_hosts_are_found_by_name_with_the_nearest_one_named(fleet: Path) -> None:
    inventory = read_fleet(written(fleet, EVERY_KEY))
    assert [host.name for host in inventory.named(["gpu-a", "gpu-a"])] == ["gpu-a"]
    assert inventory.named([]) == inventory.hosts
    with pytest.raises(UsageError, match="no host `gpu-b`; did you mean `gpu-a`"):
        inventory.named(["gpu-b"])


@pytest.mark.parametrize(("text", "ports"), [("29400-29499", (29400, 29499)), ("30000", (30000, 30000))])
def test_ports_are_a_range_or_a_single_one(text: str, ports: tuple[int, int]) -> None:
    assert parse_ports(text) == ports


@pytest.mark.parametrize("text", ["", "x", "80-90", "29499-29400", "1-70000", "29400-", "29400-29499,30000"])
def test_ports_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="must be a range like"):
        parse_ports(text)


# Tests of editing the fleet file


def test_the_first_host_makes_a_private_file_that_keeps_this_computer(fleet: Path) -> None:
    add_host(fleet, Host(name="gpu-a", address="10.0.0.1"))
    assert names(fleet) == [THIS_COMPUTER, "gpu-a"]
    assert stat.S_IMODE(fleet.stat().st_mode) == 0o600
    assert [path.name for path in fleet.parent.iterdir()] == ["fleet.yaml"]


def test_an_added_host_reads_back_as_it_was_given(fleet: Path) -> None:
    host = Host(
        name="gpu-a",
        address="a.example",
        port=2222,
        ports="29400-29499",
        bandwidth_gbps=2.5,
        labels={"rack": "no", "row": "07"},
        transport=Transport.OPENSSH,
    )
    add_host(fleet, host)
    assert read_fleet(fleet).host("gpu-a") == host


def test_a_taken_name_is_refused_and_nothing_is_written(fleet: Path) -> None:
    written(fleet, EVERY_KEY)
    with pytest.raises(UsageError, match="has a host `gpu-a` already"):
        add_host(fleet, Host(name="gpu-a"))
    assert fleet.read_text() == EVERY_KEY


def test_the_name_of_a_cluster_is_refused_for_a_host_and_nothing_is_written(fleet: Path) -> None:
    text = "version: 1\nclusters:\n  - {name: hpc, kind: slurm, login: {address: login.example}}\n"
    written(fleet, text)
    with pytest.raises(UsageError, match="has a cluster `hpc` already"):
        add_host(fleet, Host(name="hpc"))
    assert fleet.read_text() == text


def test_a_host_that_is_not_there_cannot_be_removed(fleet: Path) -> None:
    written(fleet, EVERY_KEY)
    with pytest.raises(UsageError, match="did you mean `gpu-a`"):
        remove_host(fleet, "gpua")
    assert fleet.read_text() == EVERY_KEY


def test_a_file_with_problems_is_not_changed(fleet: Path) -> None:
    text = "version: 1\nhosts: [{name: a, foo: 1}]\n"
    written(fleet, text)
    with pytest.raises(TorchyardError, match="unknown key `foo`"):
        add_host(fleet, Host(name="b"))
    assert fleet.read_text() == text


COMMENTED = """\
# Ours.
version: 1

hosts:
  # The big ones
  - name: a     # lee's
    user: lee
    # note on a's labels
    labels: {rack: r1}   # first row

  # The small one
  - {name: b, port: 23}  # spare
# The end.
"""


def test_adding_keeps_every_line_that_was_there(fleet: Path) -> None:
    add_host(written(fleet, COMMENTED), Host(name="c", user="kim"))
    kept = COMMENTED.replace("# The end.\n", "  - name: c\n    user: kim\n# The end.\n")
    assert fleet.read_text() == kept


def test_removing_takes_the_entry_s_own_lines_alone(fleet: Path) -> None:
    remove_host(written(fleet, COMMENTED), "a")
    own = COMMENTED[COMMENTED.index("  - name: a") : COMMENTED.index("\n  # The small one")]
    assert fleet.read_text() == COMMENTED.replace(own, "")
    remove_host(fleet, "b")
    assert "hosts: []\n" in fleet.read_text()
    assert [line for line in fleet.read_text().splitlines() if "#" in line] == [
        "# Ours.",
        "  # The big ones",
        "  # The small one",
        "# The end.",
    ]


LAYOUTS = {
    "brackets": "version: 1\nhosts: [{name: a}, {name: b}]  # both\n",
    "all in brackets": "{version: 1, hosts: [{name: a}, {name: b}]}\n",
    "brackets over lines": "version: 1\nhosts: [\n  {name: a},   # one\n  {name: b},\n]\n",
    "not indented": "version: 1\nhosts:\n- name: a\n- name: b\n",
    "windows": "version: 1\r\nhosts:\r\n  - name: a\r\n    user: x\r\n  - name: b\r\n",
    "no newline at the end": "version: 1\nhosts:\n  - name: a\n  - name: b",
    "dash alone": "version: 1\nhosts:\n  -\n    name: a\n  - # second-best\n    name: b\n",
    "block text": "version: 1\nhosts:\n  - name: a\n    user: |-\n      x\n  - name: b\n    user: >-\n      y\n",
    "version last": "hosts:\n  - name: a\n  - name: b\n    user:\nversion: 1\n",
    "quoted": "'version': 1\n\"hosts\":\n  - 'name': \"a\"\n  - name: 'b'\n",
    "anchors": "version: 1\nhosts:\n  - &a {name: a, user: x}\n  - {<<: *a, name: b}\n",
    "start mark": "---\nversion: 1\nhosts:\n  - name: a\n  - name: b\n...\n",
    "wide dash": "version: 1\nhosts:\n    -   name: a\n        user: x\n    -   name: b\n",
}


@pytest.mark.parametrize("text", [pytest.param(text, id=what) for what, text in LAYOUTS.items()])
def test_any_layout_can_be_changed(fleet: Path, text: str) -> None:
    written(fleet, text)
    before = read_fleet(fleet).hosts
    added = Host(name="new", user="kim")
    assert add_host(fleet, added).hosts == (*before, added)
    assert read_fleet(fleet).hosts == (*before, added)
    for name in ("a", "new", "b"):
        remove_host(fleet, name)
    assert names(fleet) == []
    add_host(fleet, added)
    assert names(fleet) == ["new"]


@pytest.mark.parametrize(
    "text", ["version: 1\n", "version: 1\nhosts:\n", "version: 1\nhosts: []  # none\n# end", "version: 1"]
)
def test_a_host_can_be_added_where_there_is_none(fleet: Path, text: str) -> None:
    add_host(written(fleet, text), Host(name="a"))
    assert names(fleet) == ["a"]
    assert fleet.read_text().count("#") == text.count("#")


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles.yaml", tmp_path / "fleet.yaml"
    real.write_text("version: 1\n")
    real.chmod(0o644)
    link.symlink_to(real)
    add_host(link, Host(name="a"))
    assert link.is_symlink()
    assert names(real) == ["a"]
    assert stat.S_IMODE(real.stat().st_mode) == 0o644


def test_every_key_of_a_host_survives_the_removal_of_its_neighbour(fleet: Path) -> None:
    inventory = read_fleet(written(fleet, EVERY_KEY))
    remove_host(fleet, THIS_COMPUTER)
    assert read_fleet(fleet).hosts == inventory.hosts[:1]
    assert fleet.read_text() == EVERY_KEY.replace("  - {name: this-computer, local: true}\n", "")
