"""Tests that each option of HostSpec has its effect."""

from __future__ import annotations

import pytest
import yaml

from tests.lab import HostSpec
from tests.lab.hosts.boot import old_python
from tests.lab_fixtures import LabFactory

pytestmark = pytest.mark.lab


def test_only_the_home_of_a_shared_home_is_shared(lab: LabFactory) -> None:
    one, other = lab(2, shared_home=True).hosts
    one.exec(["sh", "-c", "echo shared > ~/file; echo own > /tmp/file"])
    assert other.exec(["cat", "/root/file"]).stdout == "shared\n"
    assert other.exec(["cat", "/tmp/file"]).returncode != 0


def test_a_noisy_host_prints_text_before_every_command(lab: LabFactory) -> None:
    made = lab(hosts=[HostSpec("gpu-a", noisy=True)])
    done = made.ssh(made.hosts[0], "echo answer")
    assert done.stdout.endswith("answer\n")
    assert "Welcome to the cluster!" in done.stdout
    assert "a line of ~/.ssh/rc" in done.stdout
    assert "no newline at the end of thisanswer" in done.stdout
    assert "quota" in done.stderr
    assert "Authorised use only." in done.stderr


def test_a_host_with_csh_hands_commands_to_csh(lab: LabFactory) -> None:
    made = lab(
        hosts=[HostSpec("gpu-a", login_shell="/bin/tcsh"), HostSpec("gpu-b", login_shell="/bin/tcsh", noisy=True)]
    )
    assert made.ssh(made.hosts[0], "setenv A b; echo $A $shell").stdout == "b /bin/tcsh\n"
    noise = made.ssh(made.hosts[1], "echo answer").stdout
    assert "Welcome to the cluster (csh)!\n" in noise
    assert noise.endswith("answer\n")


def test_a_host_without_python_has_none_and_its_neighbour_has(lab: LabFactory) -> None:
    made = lab(hosts=[HostSpec("gpu-a", python="none"), "gpu-b"])
    bare, usual = made.hosts
    look = "for p in python python3 python2 /usr/bin/python3 /root/.pyenv/versions/*/bin/python; do command -v $p; done"
    assert made.ssh(bare, look).stdout == ""
    assert made.ssh(bare, "python3 --version").returncode == 127
    assert "Python 3" in made.ssh(usual, "/usr/bin/python3 --version").stdout


def test_a_host_with_an_old_python_has_3_6_and_nothing_else(lab: LabFactory) -> None:
    made = lab(hosts=[HostSpec("gpu-a", python="3.6")])
    assert made.ssh(made.hosts[0], "python3 --version").stdout.startswith("Python 3.6.")
    assert made.ssh(made.hosts[0], "python3 -c 'import json, ssl, asyncio; print(1)'").stdout == "1\n"
    assert made.ssh(made.hosts[0], "ls /root/.pyenv/versions /usr/bin/python*").stdout.split() == [
        "/usr/bin/python3",
        "/root/.pyenv/versions:",
        old_python().parents[1].name,
    ]


def test_another_user_has_a_home_and_no_rights_over_root(lab: LabFactory) -> None:
    made = lab(hosts=[HostSpec("gpu-a", user="lee", users=("kim",))])
    host = made.hosts[0]
    assert made.ssh(host, "whoami; pwd").stdout == "lee\n/home/lee\n"
    assert made.ssh(host, "whoami; touch mine; touch /root/yours", user="kim").returncode != 0
    assert (host.home_of("kim") / "mine").exists()
    assert host.exec(["id", "-un"], user="kim").stdout == "kim\n"
    assert yaml.safe_load(made.fleet_yaml())["hosts"][0]["user"] == "lee"


def test_variables_of_ssh_sessions_are_those_that_were_asked_for(lab: LabFactory) -> None:
    made = lab(hosts=[HostSpec("gpu-a", ssh_environment={"LD_LIBRARY_PATH": "/root/lib:/opt/a b", "FAKE": 'say "hi"'})])
    host = made.hosts[0]
    assert made.ssh(host, 'echo "$LD_LIBRARY_PATH|$FAKE"').stdout == '/root/lib:/opt/a b|say "hi"\n'
    host.set_ssh_environment({"PATH": "/nowhere:/usr/bin:/bin"})
    assert made.ssh(host, 'echo "$PATH|$FAKE"').stdout == "/nowhere:/usr/bin:/bin|\n"


def test_addresses_can_be_chosen(lab: LabFactory) -> None:
    made = lab(hosts=["gpu-a", HostSpec("gpu-b", last_octet=9), HostSpec("gpu-c", last_octet=11)])
    assert [host.address.rpartition(".")[2] for host in made.hosts] == ["12", "9", "11"]
