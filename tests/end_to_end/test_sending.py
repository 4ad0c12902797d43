"""Tests of uploading the working folder: only new content is sent, even after an interruption."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.running import Event, Outcome, events_of, run, topology
from tests.end_to_end.terminals import terminal
from tests.lab import Desktop, Lab, LabHost
from tests.lab_fixtures import LabFactory
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

MakeDesktop = Callable[..., Desktop]

CAT = """
    pools:
      - {name: workers, role: worker, replicas: %d, placement: spread}
    program: {launcher: command, command: [cat, code.txt]}
"""
MB = 1_000_000
MANY = 24
A_PART, THEN_SLOWLY = "6mb", "2mbit"
"""Burst and rate for `shape`: after the burst, the link is so slow that a test can interrupt an upload."""


def folder_with(folder: Path, replicas: int, size: int = 0) -> Path:
    """Writes a topology whose ranks print the contents of code.txt, and data.bin with `size` random bytes."""
    file = topology(folder, CAT % replicas, code_txt="first\n")
    if size:
        (folder / "data.bin").write_bytes(random.Random(7).randbytes(size))
    return file


def folder_with_many(folder: Path) -> Path:
    """Writes a topology with one rank, and files whose upload over a slow link takes more than a minute."""
    file = folder_with(folder, 1)
    for number in range(MANY):
        (folder / f"data-{number}.bin").write_bytes(random.Random(number).randbytes(MB))
    return file


def store(host: LabHost) -> Path:
    return host.home / ".torchyard" / "store"


def blobs(host: LabHost) -> list[Path]:
    return [path for path in (store(host) / "files").rglob("*") if path.is_file()]


def parts(host: LabHost) -> list[Path]:
    return [path for path in (store(host) / "files").rglob("*.part") if path.is_file()]


def whole(host: LabHost) -> list[Path]:
    return [path for path in blobs(host) if path.suffix != ".part"]


def succeeded(outcome: Outcome) -> Outcome:
    assert outcome.ended["state"] == "succeeded", (outcome.events[-1], outcome.stderr)
    return outcome


def received(hosts: list[LabHost]) -> int:
    return sum(host.bytes_received for host in hosts)


def started_upload(desktop: Desktop, file: Path) -> tuple[subprocess.Popen[str], Event]:
    """Starts a launch and waits until a part of the folder has been sent. Returns the process and the progress of the
    launch.
    """
    process = desktop.start("run", file, "--json")
    for event in events_of(process):
        if event.get("event") == "progress" and 0 < event["done"] < event["total"]:
            return process, event
    raise AssertionError(f"nothing was sent: {process.stderr and process.stderr.read()}")


def test_a_folder_that_has_not_changed_is_not_sent_again(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = folder_with(tmp_path / "work", 3, 6 * MB)

    first = succeeded(run(desktop, file))
    before = received(lab3.hosts)
    second = succeeded(run(desktop, file))
    unchanged = received(lab3.hosts) - before
    (tmp_path / "work" / "code.txt").write_text("second\n")
    third = succeeded(run(desktop, file))

    sent = [outcome.of("progress")[-1]["total"] if outcome.of("progress") else 0 for outcome in (first, second, third)]
    assert sent[0] > 3 * 6 * MB
    assert sent[1] == 0
    assert sent[2] == 3 * len("second\n")
    assert unchanged < MB  # Only protocol messages were sent, not the 18 MB.


def test_each_run_keeps_the_code_that_it_ran(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = folder_with(tmp_path / "work", 1)
    first = succeeded(run(desktop, file)).run_id
    (tmp_path / "work" / "code.txt").write_text("second\n")
    second = succeeded(run(desktop, file)).run_id

    [runs] = [found for host in lab3.hosts for found in (host.home / ".torchyard" / "hosts").glob("*/runs")]
    kept = {}
    for run_id in (first, second):
        record = json.loads((runs / run_id / "run.json").read_text())
        kept[(runs / run_id / "work" / "code.txt").read_text()] = record["snapshot"]
    assert sorted(kept) == ["first\n", "second\n"]
    host = next(host for host in lab3.hosts if (host.home / ".torchyard" / "hosts" / host.name / "runs").exists())
    assert {path.name for path in (store(host) / "snapshots").iterdir()} == set(kept.values())


def test_hosts_that_share_a_home_get_it_once(lab: LabFactory, make_desktop: MakeDesktop, tmp_path: Path) -> None:
    hosts = lab(3, shared_home=True)
    desktop = make_desktop(hosts)
    assert desktop.torchyard("deploy").returncode == 0
    file = folder_with(tmp_path / "work", 3, 8 * MB)
    for host in hosts.hosts:
        host.shape("100mbit")  # All three hosts must be queried before the first one has all files.
    before = received(hosts.hosts)

    outcome = succeeded(run(desktop, file))

    assert outcome.of("progress")[-1]["total"] < 1.1 * 8 * MB
    assert received(hosts.hosts) - before < 1.34 * 1.1 * 8 * MB + MB
    assert not list((store(hosts.hosts[0]) / "sending").iterdir())
    for host in hosts.hosts:
        [work] = (host.home / ".torchyard" / "hosts" / host.name / "runs").glob("*/work")
        assert (work / "data.bin").stat().st_size == 8 * MB


def test_two_launches_at_once_into_one_shared_home(lab: LabFactory, make_desktop: MakeDesktop, tmp_path: Path) -> None:
    hosts = lab(2, shared_home=True)
    desktops = [make_desktop(hosts), make_desktop(hosts)]
    assert desktops[0].torchyard("deploy").returncode == 0
    file = folder_with(tmp_path / "work", 2, 8 * MB)
    for host in hosts.hosts:
        host.shape("100mbit")

    launches = [desktop.start("run", file, "--json") for desktop in desktops]
    outputs = [launch.communicate(timeout=90) for launch in launches]

    totals = 0
    for launch, (stdout, stderr) in zip(launches, outputs, strict=True):
        assert launch.returncode == 0, stderr
        progress = [json.loads(line) for line in stdout.splitlines()]
        totals += max([event["total"] for event in progress if event.get("event") == "progress"], default=0)
    assert totals < 1.1 * 8 * MB


def test_a_broken_connection_is_restored_and_the_rest_is_sent(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    host = lab3["gpu-a"]
    file = folder_with_many(tmp_path / "work")
    assert desktop.torchyard("deploy", "gpu-a").returncode == 0
    host.shape(THEN_SLOWLY, A_PART)

    process, begun = started_upload(desktop, file)
    wait_until(lambda: whole(host))
    host.stop_sshd(sessions=True)
    host.unshape()
    host.start_sshd()
    events = list(events_of(process))

    assert events[-1]["state"] == "succeeded", events[-1]
    again = [event for event in events if event.get("event") == "progress"]
    assert again[-1]["total"] < begun["total"]  # Data that the host has already received are not sent again.
    assert not parts(host)


def test_an_ssh_server_that_is_gone_while_code_is_sent(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    host = lab3["gpu-a"]
    file = folder_with_many(tmp_path / "work")
    assert desktop.torchyard("deploy", "gpu-a").returncode == 0
    host.shape(THEN_SLOWLY, A_PART)

    process, _ = started_upload(desktop, file)
    wait_until(lambda: whole(host))
    host.stop_sshd(sessions=True)
    stdout, stderr = process.communicate(timeout=60)

    assert process.returncode == 3, stderr
    error = json.loads(stdout.splitlines()[-1])["error"]
    assert "the connection to gpu-a was lost while the code was sent" in error["message"]
    assert "not sent again" in error["hint"]
    wait_until(lambda: not parts(host))
    arrived = len(whole(host))
    host.unshape()
    host.start_sshd()

    outcome = succeeded(run(desktop, file))

    assert outcome.of("progress")[-1]["total"] <= (MANY - (arrived - 2)) * MB + 10_000
    assert not (store(host) / "sending").exists() or not list((store(host) / "sending").iterdir())


def test_a_desktop_that_is_killed_while_it_sends(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    host = lab3["gpu-a"]
    file = folder_with(tmp_path / "work", 1, 16 * MB)
    assert desktop.torchyard("deploy", "gpu-a").returncode == 0
    host.shape(THEN_SLOWLY, A_PART)

    process, _ = started_upload(desktop, file)
    wait_until(lambda: parts(host))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    host.unshape()  # The kernel still sends the data in its buffers.

    wait_until(lambda: not parts(host) and not list((store(host) / "sending").iterdir()))
    succeeded(run(desktop, file))


def test_a_large_file_needs_a_confirmation(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = folder_with(tmp_path / "work", 1)
    with (tmp_path / "work" / "weights.bin").open("wb") as weights:
        weights.truncate(101 * MB)

    refused = run(desktop, file)

    assert refused.code == 1
    assert "holds a file over 100 MB: weights.bin (101 MB)" in refused.error["message"]
    assert "`program.exclude`" in refused.error["hint"]
    assert "-y" in refused.error["hint"]
    assert not refused.of("progress")
    assert not any(blobs(host) for host in lab3.hosts)
    succeeded(run(desktop, file, "-y"))
    succeeded(run(desktop, file))  # This file has been sent before, so no confirmation is needed.


def test_a_large_file_that_is_excluded_raises_no_question(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = folder_with(tmp_path / "work", 1)
    file.write_text(file.read_text().replace("code.txt]}", 'code.txt], exclude: ["*.bin"]}'))
    with (tmp_path / "work" / "weights.bin").open("wb") as weights:
        weights.truncate(101 * MB)

    outcome = succeeded(run(desktop, file))

    assert outcome.of("progress")[-1]["total"] < 10_000


def test_the_question_on_a_terminal(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = folder_with(tmp_path / "work", 1)
    with (tmp_path / "work" / "weights.bin").open("wb") as weights:
        weights.truncate(101 * MB)

    with terminal(desktop, "run", file) as screen:
        screen.read_until("Send it to 1 host? [y/N]: ")
        screen.type("n\n")
        assert screen.read_to_the_end() == 1
        assert "exclude" in screen.shown
    with terminal(desktop, "run", file) as screen:
        screen.read_until("Send it to 1 host? [y/N]: ")
        screen.type("y\n")
        assert screen.read_to_the_end() == 0, screen.shown


def test_a_disk_without_room_for_the_code(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    host = lab3["gpu-a"]
    host.exec(["mkdir", "-p", "/root/.torchyard"], check=True)
    host.exec(["mount", "-t", "tmpfs", "-o", "size=250m,mode=700", "none", "/root/.torchyard"], check=True)
    try:
        refused = run(desktop, folder_with(tmp_path / "work", 1, 90 * MB), "--set", "pools.workers.hosts=[gpu-a]")

        assert refused.code == 1
        assert "the disk of gpu-a has" in refused.error["message"], refused.error
        assert "exclude" in refused.error["hint"]
        assert not refused.of("progress")
    finally:
        host.exec(["umount", "-l", "/root/.torchyard"], check=True)
