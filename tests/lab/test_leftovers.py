"""Tests that a closed or killed lab leaves no process, interface or namespace behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests import REPOSITORY
from tests.lab import Lab
from tests.lab.hosts.processes import processes_in
from tests.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("needs_lab")]


def traces(tag: str) -> dict[str, list[str]]:
    """Returns all processes, interfaces and namespaces on this machine whose names contain the lab's tag."""
    links = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout)
    namespaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout.splitlines()
    commands = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            commands.append((entry / "cmdline").read_text(errors="replace").replace("\0", " "))
        except OSError:
            continue
    everything = {
        "links": [link["ifname"] for link in links],
        "namespaces": namespaces,
        "mounts": Path("/proc/self/mountinfo").read_text().splitlines(),
        "processes": [command for command in commands if "netns exec" in command or "unshare" in command],
    }
    found = {kind: [name for name in names if tag in name] for kind, names in everything.items()}
    return {kind: names for kind, names in found.items() if names}


def owner_tag(pid: int) -> str:
    """Returns the prefix that the tags of all labs of one process have in common."""
    return f"ty{pid}n"


def test_nothing_is_left_of_a_closed_lab(tmp_path: Path) -> None:
    with Lab(2, directory=tmp_path / "closing") as made:
        subnet = made.hosts[0].address.split(".")[2]
        tag = owner_tag(os.getpid()) + subnet
        assert {"links", "namespaces", "mounts"} <= set(traces(tag))
        namespaces = [host.pid_namespace for host in made.hosts]
        made.hosts[0].exec(["sh", "-c", "setsid -f sleep 1000 >/dev/null 2>&1"])
    assert traces(tag) == {}
    assert [process for namespace in namespaces for process in processes_in(namespace)] == []
    assert not Path(f"/run/torchyard-lab/{subnet}.lock").exists()
    assert "closing" not in Path("/proc/self/mountinfo").read_text()


def test_nothing_is_left_after_an_exception(tmp_path: Path) -> None:
    tags = []

    def interrupted() -> None:
        with Lab(1, directory=tmp_path) as made:
            tags.append(owner_tag(os.getpid()) + made.hosts[0].address.split(".")[2])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert traces(tags[0]) == {}


def test_a_failed_start_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "gpu-b").write_text("a file where the host's folder should go")
    before = traces(owner_tag(os.getpid()))
    with pytest.raises(FileExistsError):
        Lab(2, directory=tmp_path).open()
    assert traces(owner_tag(os.getpid())) == before


def test_a_lab_with_a_killed_owner_is_removed_by_the_next(tmp_path: Path) -> None:
    with held_lab(tmp_path / "home" / "fleet.yaml") as holder:
        tag = owner_tag(holder.pid)
        assert traces(tag)
        holder.kill()
        holder.wait()
    with Lab(1, directory=tmp_path / "next"):
        assert traces(tag) == {}


def test_the_processes_of_a_host_end_with_its_killed_owner(tmp_path: Path) -> None:
    with held_lab(tmp_path / "home" / "fleet.yaml") as holder:
        (outer,) = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        namespace = Path(f"/proc/{outer}/ns/pid_for_children").readlink()
        assert len(processes_in(namespace)) == 2
        holder.kill()
        holder.wait()
        wait_until(lambda: processes_in(namespace) == [])


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_command_keeps_hosts_until_it_is_interrupted(tmp_path: Path, ending: signal.Signals) -> None:
    fleet = tmp_path / "home" / "fleet.yaml"
    with held_lab(fleet) as holder:
        entry = yaml.safe_load(fleet.read_text())["hosts"][0]
        with socket.create_connection((entry["address"], 22), 5) as connection:
            assert connection.recv(4) == b"SSH-"
        assert fleet.with_name("known_hosts").read_text().startswith(entry["address"])
        holder.send_signal(ending)
        _, said = holder.communicate(timeout=60)
    assert holder.returncode == 0
    assert "The lab is gone." in said
    assert traces(owner_tag(holder.pid)) == {}


@contextmanager
def held_lab(fleet: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs `python -m tests.lab` with one host. Yields when the host is up, and kills the program afterwards."""
    command = [sys.executable, "-m", "tests.lab", "--hosts", "1", "--fleet", str(fleet)]
    # The killed program leaves files, which are removed with the test's folder.
    surroundings = {**os.environ, "TMPDIR": str(fleet.parents[1])}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, env=surroundings
    ) as holder:
        try:
            assert holder.stdout
            assert holder.stdout.readline() == "version: 1\n"
            yield holder
        finally:
            holder.kill()
