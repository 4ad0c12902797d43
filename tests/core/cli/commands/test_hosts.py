"""Tests of `torchyard hosts`: changes to the fleet file, and each state that `hosts check` reports."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.core.cli.command_runner import answer, daemons_on, torchyard
from tests.lab import Desktop, HostSpec, Lab
from tests.lab_fixtures import LabFactory
from torchyard_core.fleet.ssh.route import CONNECT_TIMEOUT_S

MakeDesktop = Callable[..., Desktop]

CHECK_KEYS = ["name", "state", "agent", "python", "torch", "cpus", "memory_gb", "gpus", "bookings", "problems"]


def states(checks: list[dict[str, object]]) -> dict[object, object]:
    return {check["name"]: check["state"] for check in checks}


# Tests of commands that edit the fleet file without contacting a host


def test_a_host_is_added_listed_and_removed(make_desktop: MakeDesktop) -> None:
    desktop = make_desktop()
    added = torchyard(
        desktop,
        "hosts",
        "add",
        "gpu-a",
        "--address",
        "192.0.2.1",
        "--port",
        "2222",
        "--user",
        "lee",
        "--label",
        "rack=r1",
    )
    assert "hosts trust gpu-a" in added.stderr
    assert "hosts check gpu-a" in added.stderr
    entry = {"name": "gpu-a", "address": "192.0.2.1", "port": 2222, "user": "lee", "labels": {"rack": "r1"}}
    assert entry in yaml.safe_load(desktop.fleet_file.read_text())["hosts"]

    listed = answer(desktop, "hosts", "list")

    assert [host["name"] for host in listed] == ["this-computer", "gpu-a"]
    assert listed[1].items() >= (entry | {"checked_at": None, "cpus": None, "gpus": []}).items()
    assert "lee@192.0.2.1:2222" in torchyard(desktop, "hosts", "list").stdout

    with desktop.fleet_file.open("a") as file:
        file.write("clusters: [{name: hpc, kind: slurm, partition: gpu}]\n")
    assert answer(desktop, "hosts", "list")[2:] == [{"name": "hpc", "kind": "slurm", "partition": "gpu"}]

    # Without a terminal, the command cannot ask for confirmation.
    assert "undeploy gpu-a" in torchyard(desktop, "hosts", "remove", "gpu-a", code=2).stderr
    torchyard(desktop, "hosts", "remove", "gpu-a", "-y")
    assert [host["name"] for host in answer(desktop, "hosts", "list")] == ["this-computer", "hpc"]


def test_without_a_fleet_file_the_fleet_is_this_computer(make_desktop: MakeDesktop) -> None:
    desktop = make_desktop()
    listed = torchyard(desktop, "hosts", "list")
    assert "this-computer" in listed.stdout
    # The command in the hint contains the option --home, so the user can run it unchanged.
    assert f"`torchyard --home {desktop.home} hosts add NAME" in listed.stderr
    assert not desktop.fleet_file.exists()


def test_a_fleet_file_that_is_named_has_to_be_there_unless_a_host_is_added(make_desktop: MakeDesktop) -> None:
    desktop = make_desktop()
    other = desktop.directory / "my fleet.yaml"
    refused = torchyard(desktop, "--fleet", other, "hosts", "list", code=2).stderr
    assert f"{other}: there is no such file." in refused
    assert f"--fleet '{other}' hosts add NAME" in refused
    torchyard(desktop, "--fleet", other, "hosts", "add", "gpu-a", "--address", "192.0.2.1")
    assert "192.0.2.1" in torchyard(desktop, "--fleet", other, "hosts", "list").stdout
    assert not desktop.fleet_file.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["add", "gpu-a", "--port", "70000"], "port must be"),
        (["add", "gpu a"], "name must be a word"),
        (["add", "gpu-a", "--ports", "99-1"], "29400-29499"),
        (["add", "gpu-a", "--label", "rack"], "KEY=VALUE"),
        (["add", "this-computer"], "has a host `this-computer` already"),
        (["add", "gpu-a", "--adress", "x"], "--address"),
        (["check", "this-computr"], "did you mean `this-computer`?"),
        (["remove", "this-computr", "-y"], "did you mean `this-computer`?"),
        (["trust", "this-computr"], "did you mean `this-computer`?"),
        (["trust", "this-computer"], "no key to trust"),
    ],
)
def test_wrong_usage_is_a_sentence_and_exit_code_2(
    make_desktop: MakeDesktop, arguments: list[str], sentence: str
) -> None:
    desktop = make_desktop()
    done = torchyard(desktop, "hosts", *arguments, "--json", code=2)
    assert sentence in done.stderr
    assert sentence in json.loads(done.stdout)["error"]["message"]
    assert not desktop.fleet_file.exists()


def test_a_fleet_file_that_is_no_yaml_is_named_with_its_line(make_desktop: MakeDesktop) -> None:
    desktop = make_desktop()
    desktop.fleet_file.write_text("version: 1\nhosts: [\n")
    for command in (["hosts", "list"], ["hosts", "check"], ["status"], ["runs", "list"], ["deploy"]):
        assert "fleet.yaml" in torchyard(desktop, *command, code=2).stderr


def test_problems_of_the_fleet_file_come_with_their_lines(make_desktop: MakeDesktop) -> None:
    desktop = make_desktop()
    desktop.fleet_file.write_text("version: 1\nhosts:\n  - {name: gpu-a, adress: 192.0.2.1}\n")
    error = torchyard(desktop, "hosts", "check", code=1).stderr
    assert "fleet.yaml:3: error unknown-key" in error
    assert "address" in error


# Tests of the facts and states that `hosts check` reports


@pytest.mark.lab
def test_check_puts_the_agent_there_and_tells_what_each_host_has(desktop: Desktop, lab3: Lab) -> None:
    checks = answer(desktop, "hosts", "check")

    assert states(checks) == {"gpu-a": "ready", "gpu-b": "ready", "gpu-c": "ready"}
    assert [list(check) for check in checks] == [CHECK_KEYS] * 3
    for host, check in zip(lab3.hosts, checks, strict=True):
        assert check["agent"]["version"] == "0.1.0"
        assert len(check["agent"]["sha256"]) == 64
        assert check["agent"]["pid"] in daemons_on(host)
        assert check["python"].startswith("3.11")
        assert check["torch"].startswith("2.")
        assert check["cpus"] >= 1
        assert check["memory_gb"] > 0
        assert check["gpus"] == []
        assert check["problems"] == []
    assert [host["cpus"] for host in answer(desktop, "hosts", "list")] == [check["cpus"] for check in checks]


@pytest.mark.lab
def test_each_state_that_keeps_us_out_has_its_word_sentence_and_way_out(
    lab: LabFactory, make_desktop: MakeDesktop
) -> None:
    hosts = lab(
        hosts=[
            "fine", "destroyed", "closed", "unknown", "changed", "stranger",
            HostSpec("bare", python="none"), HostSpec("aged", python="3.6"),
            HostSpec("noisy", noisy=True), HostSpec("csh", login_shell="/bin/tcsh", noisy=True),
        ]
    )  # fmt: skip
    desktop = make_desktop(hosts)
    fleet = yaml.safe_load(desktop.fleet_file.read_text())
    for entry in fleet["hosts"]:
        if entry["name"] == "stranger":
            entry["user"] = "nobody-here"
        if entry["name"] == "noisy":
            del entry["python"]
    desktop.fleet_file.write_text(yaml.safe_dump(fleet))
    lines = [host.known_hosts for host in hosts.hosts if host.name != "unknown"]
    desktop.known_hosts.write_text("".join(lines))
    hosts["changed"].change_host_key()
    hosts["closed"].stop_sshd()
    hosts["destroyed"].destroy()

    done = torchyard(desktop, "hosts", "check", "--json", code=3)

    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert {name: check["state"] for name, check in checks.items()} == {
        "fine": "ready",
        "destroyed": "unreachable",
        "closed": "unreachable",
        "unknown": "key unknown",
        "changed": "key changed",
        "stranger": "login refused",
        "bare": "no python",
        "aged": "no python",
        "noisy": "degraded",  # The Python of this host has no torch.
        "csh": "ready",
    }
    output = {
        name: " ".join(f"{problem['message']} {problem['hint']}" for problem in check["problems"])
        for name, check in checks.items()
    }
    assert "refused" in output["closed"]
    assert "Is it up" in output["destroyed"]
    assert hosts["unknown"].host_key_fingerprint in output["unknown"]
    assert "hosts trust unknown" in output["unknown"]
    assert hosts["changed"].host_key_fingerprint in output["changed"]
    assert "nobody-here" in output["stranger"]
    assert "agent_python" in output["bare"]
    assert "3.6.15" in output["aged"]
    assert "torch" in output["noisy"]
    assert all(checks[name]["agent"] is None for name in output if checks[name]["state"] not in ("ready", "degraded"))
    # Without a terminal, the command prints a plain line for each host that answers.
    assert "fine: ready" in done.stderr
    assert "changed: key changed" in done.stderr
    # All hosts answered, but the exit code is 1 because some have problems.
    result = torchyard(desktop, "hosts", "check", "fine", "noisy", code=1)
    assert "degraded" in result.stdout
    assert re.search(r"^noisy: torch is not installed for \S+\. Install it there with ", result.stdout, re.MULTILINE)
    # The stored facts are only a cache. A host can be used even if they cannot be written, for example because the disk
    # is full.
    facts = desktop.home / "facts.json"
    facts.unlink()
    facts.mkdir()
    assert "Facts about hosts cannot be stored" in torchyard(desktop, "hosts", "check", "fine").stderr


@pytest.mark.lab
def test_what_the_systems_own_ssh_complains_of_has_the_same_words(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    # OpenSSH reads its configuration from the home folder in the user's passwd entry, not from $HOME.
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text('#!/bin/sh\nexec /usr/bin/ssh -F none -o UserKnownHostsFile=none -o IdentityAgent=none "$@"\n')
    wrapper.chmod(0o755)
    path = {"PATH": f"{wrapper.parent}:/usr/bin:/bin"}
    desktop.use(lab3, transport="openssh", identity_file=str(lab3.identity_file))
    desktop.known_hosts.write_text(lab3["gpu-a"].known_hosts + lab3["gpu-c"].known_hosts)
    lab3["gpu-c"].change_host_key()

    first = json.loads(desktop.torchyard("hosts", "check", "--json", env=path).stdout)
    assert states(first) == {"gpu-a": "ready", "gpu-b": "key unknown", "gpu-c": "key changed"}
    for name in ("gpu-b", "gpu-c"):
        torchyard(desktop, "hosts", "trust", name, "-y")
    lab3["gpu-c"].stop_sshd()
    desktop.fleet_file.write_text(desktop.fleet_file.read_text().replace("user: root", "user: nobody-here", 1))
    again = json.loads(desktop.torchyard("hosts", "check", "--json", env=path).stdout)
    assert states(again) == {"gpu-a": "login refused", "gpu-b": "ready", "gpu-c": "unreachable"}


@pytest.mark.lab
def test_ctrl_c_does_not_wait_for_a_host_that_is_silent(desktop: Desktop, lab3: Lab) -> None:
    lab3["gpu-b"].cut_cable()
    checking = desktop.start("hosts", "check")
    assert checking.stderr is not None
    assert "ready" in checking.stderr.readline()

    checking.send_signal(signal.SIGINT)
    _, errors = checking.communicate(timeout=CONNECT_TIMEOUT_S / 2)

    assert checking.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors


# Tests of `hosts trust` and of changed host keys


@pytest.mark.lab
def test_a_host_is_trusted_by_its_fingerprint_and_again_after_its_key_changed(desktop: Desktop, lab3: Lab) -> None:
    host = lab3["gpu-a"]
    before = host.host_key_fingerprint
    desktop.known_hosts.write_text("")

    # Without a terminal, the command cannot ask for confirmation.
    refused = torchyard(desktop, "hosts", "trust", "gpu-a", code=2)
    assert before in refused.stdout
    assert desktop.known_hosts.read_text() == ""

    assert answer(desktop, "hosts", "trust", "gpu-a", "-y") == {"name": "gpu-a", "fingerprint": before, "trusted": True}
    assert states(answer(desktop, "hosts", "check", "gpu-a")) == {"gpu-a": "ready"}
    assert "trusted already" in torchyard(desktop, "hosts", "trust", "gpu-a").stdout

    both = answer(desktop, "hosts", "trust", "gpu-b", "gpu-c", "-y")
    assert [(one["name"], one["trusted"]) for one in both] == [("gpu-b", True), ("gpu-c", True)]
    assert states(answer(desktop, "hosts", "check")) == dict.fromkeys(("gpu-a", "gpu-b", "gpu-c"), "ready")

    host.change_host_key()
    output = torchyard(desktop, "hosts", "trust", "gpu-a", "-y").stdout
    assert before in output
    assert host.host_key_fingerprint in output
    assert "reinstalled" in output
    assert states(answer(desktop, "hosts", "check", "gpu-a")) == {"gpu-a": "ready"}
    assert len(desktop.known_hosts.read_text().splitlines()) == 3


@pytest.mark.lab
def test_the_bastion_on_the_way_is_trusted_by_its_own_name(desktop: Desktop, lab3: Lab) -> None:
    bastion, behind = lab3["gpu-a"], lab3["gpu-b"]
    entry = lab3.fleet_entry(behind, proxy_jump=bastion.address, python=sys.executable)
    desktop.fleet_file.write_text(yaml.safe_dump({"version": 1, "hosts": [entry]}))
    desktop.known_hosts.write_text(behind.known_hosts)
    (desktop.user_home / ".ssh").mkdir(mode=0o700)
    (desktop.user_home / ".ssh" / "config").write_text(f"Host *\n  User root\n  IdentityFile {lab3.identity_file}\n")

    (check,) = answer(desktop, "hosts", "check", code=3)
    assert check["state"] == "key unknown"
    assert f"hosts trust {bastion.address}" in check["problems"][0]["hint"]

    torchyard(desktop, "hosts", "trust", bastion.address, "-y")
    assert states(answer(desktop, "hosts", "check")) == {"gpu-b": "ready"}


@pytest.mark.lab
def test_a_terminal_is_asked_and_a_no_records_nothing(desktop: Desktop, lab3: Lab) -> None:
    desktop.known_hosts.write_text("")
    keyboard, terminal = pty.openpty()
    try:
        asking = subprocess.Popen(
            desktop.command("hosts", "trust", "gpu-a"),
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=desktop.environment(),
        )
        os.write(keyboard, b"n\n")
        output, _ = asking.communicate(timeout=60)
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert asking.returncode == 1, output
    assert lab3["gpu-a"].host_key_fingerprint in output
    assert "Nothing was recorded" in output
    assert desktop.known_hosts.read_text() == ""


# Tests with this computer as a host


def test_this_computer_is_checked_and_left_as_it_was(make_desktop: MakeDesktop) -> None:
    desktop = make_desktop()
    try:
        (check,) = answer(desktop, "hosts", "check")
        assert check["state"] == "ready"
        assert Path(desktop.user_home, ".torchyard", "store").is_dir()
    finally:
        torchyard(desktop, "undeploy", "-y")
    assert list(desktop.user_home.iterdir()) == []


@pytest.mark.lab
def test_two_checks_at_the_same_time_start_one_daemon(desktop: Desktop, lab3: Lab) -> None:
    both = [desktop.start("hosts", "check", "gpu-a", "--json") for _ in range(2)]
    checks = [json.loads(check.communicate(timeout=60)[0])[0] for check in both]
    assert checks[0]["agent"] == checks[1]["agent"]
    assert daemons_on(lab3["gpu-a"]) == [checks[0]["agent"]["pid"]]
