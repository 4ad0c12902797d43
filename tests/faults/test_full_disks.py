"""Tests of hosts whose disks are full: the user sees the cause, and the journals of runs remain intact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.running import Event
from tests.faults.runs import FOREVER, Team, kill, outside_pids, pids_of
from tests.lab import Desktop, Lab, LabHost
from tests.waiting import wait_until
from torchyard_core.errors import AgentRefused, RunFailed

pytestmark = pytest.mark.lab

WRITING = """
    import time
    number = 0
    while True:
        print("a line that takes some room on the disk", number, flush=True)
        number += 1
        time.sleep(0.005)
"""
PATIENT = """
    import os, pathlib, time
    number = 0
    while not pathlib.Path(os.path.expanduser("~/enough")).exists():
        try:
            print("line", number, flush=True)
        except OSError:
            pass
        number += 1
        time.sleep(0.02)
"""
AGENT_DIR = "/tmp/small"


@pytest.fixture
def on_a_small_disk(lab3: Lab, make_desktop: Callable[..., Desktop], tmp_path: Path) -> Iterator[Team]:
    """Puts the agent's folder of every host on a separate disk of 230 MB."""
    for host in lab3.hosts:
        host.exec(["mkdir", AGENT_DIR], check=True)
        host.exec(["mount", "-t", "tmpfs", "-o", "size=230m,mode=755", "small", AGENT_DIR], check=True)
    team = Team(lab3, make_desktop(lab3, agent_dir=AGENT_DIR), tmp_path, small_disk)
    yield team
    try:
        team.nothing_is_left()
    finally:
        team.close()


def fill(host: LabHost) -> None:
    """Fills the host's small disk completely, even if other programs free space in the meantime."""

    def is_full() -> bool:
        host.exec(["sh", "-c", f"cat /dev/zero >>{AGENT_DIR}/filler"])
        return not free(host)

    wait_until(is_full)


def make_room(host: LabHost) -> None:
    host.exec(["rm", f"{AGENT_DIR}/filler"], check=True)


def free(host: LabHost) -> int:
    return int(host.exec(["stat", "-f", "-c", "%a", AGENT_DIR], check=True).stdout)


def small_disk(host: LabHost) -> Path:
    """Returns the path of the host's small disk on this machine, through /proc/PID/root of a process on the host."""
    return Path(f"/proc/{pids_of(host)[0]}/root{AGENT_DIR}")


def left(team: Team) -> list[Path]:
    """Returns the folders of runs and the partial files on the small disks."""
    disks = [small_disk(host) for host in team.lab.hosts]
    return [path for disk in disks for path in (*disk.glob("hosts/*/runs/*"), *disk.rglob("*.part"))]


def ranks(team: Team) -> set[int]:
    return {pid for host in team.lab.hosts for pid in outside_pids(host, "script.py")}


def test_a_disk_without_room_for_the_code_is_found_before_anything_is_sent(on_a_small_disk: Team) -> None:
    team = on_a_small_disk
    file = team.topology(FOREVER)
    with (file.parent / "data").open("wb") as data:
        data.truncate(80_000_000)

    with pytest.raises(RunFailed, match=r"the disk of gpu-. has .* free for the agent's folder, and this run needs"):
        team.launch(file)

    team.nothing_is_left()
    assert left(team) == []


def test_a_disk_that_fills_while_code_is_sent_cancels_the_launch(on_a_small_disk: Team) -> None:
    team = on_a_small_disk
    file = team.topology(FOREVER)
    for number in range(10):
        (file.parent / f"data-{number}").write_bytes(bytes([number]) * 1_000_000)
    host = team.lab["gpu-b"]
    team.fleet.links()
    host.shape("20mbit")

    def fill_once(event: Event) -> None:
        if event["event"] == "progress" and not (small_disk(host) / "filler").exists():
            fill(host)

    with pytest.raises((AgentRefused, RunFailed)) as refused:
        team.launch(file, fill_once)

    assert "gpu-b" in str(refused.value)
    assert "the disk of /tmp/small is full" in str(refused.value)
    team.nothing_is_left()
    wait_until(lambda: left(team) == [])
    make_room(host)
    host.unshape()
    assert team.launch(file).stop()["state"] == "stopped"


def test_a_run_survives_a_full_disk_with_its_record_intact(on_a_small_disk: Team) -> None:
    team = on_a_small_disk
    run = team.launch(team.topology(PATIENT, "max_restarts: 1\nfailure_grace_s: 0.3"))
    run.wait_for_output("line 5\n")
    for name in ("gpu-a", "gpu-b"):
        fill(team.lab[name])
    # The gang restarts while the disks of gpu-a and gpu-b are full, so their journals cannot record the restart.
    before = ranks(team)
    kill(team.lab["gpu-c"], "script.py")
    wait_until(lambda: len(ranks(team)) == 3 and not ranks(team) & before)
    written = [len(run.journal(host.name)) for host in team.lab.hosts]
    for name in ("gpu-a", "gpu-b"):
        make_room(team.lab[name])
    for host in team.lab.hosts:
        (host.home / "enough").touch()

    assert run.ended()["state"] == "succeeded"
    for host in team.lab.hosts:
        entries = run.journal(host.name)
        assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
        assert len(entries) > written.pop(0)
    assert [one["generation"] for one in run.of("gang_restart")] == [1]


def test_a_rank_that_a_full_disk_ends_reports_it(on_a_small_disk: Team) -> None:
    team = on_a_small_disk
    run = team.launch(team.topology(WRITING, "max_restarts: 0\nfailure_grace_s: 0.3"))
    run.wait_for_output(" 5\n")

    fill(team.lab["gpu-b"])

    wait_until(lambda: not outside_pids(team.lab["gpu-b"], "script.py"))
    make_room(team.lab["gpu-b"])
    ended = run.ended()
    assert ended["state"] == "failed"
    assert ended["reason"].startswith("worker-1 on gpu-b: exited with ")
    assert "disk" in ended["reason"]
    assert "full" in ended["reason"]


def end_daemon(host: LabHost) -> None:
    host.exec(["sh", "-c", "pkill -9 -x torchyard-agent; while pgrep -x torchyard-agent; do sleep 0.05; done"])


def test_a_daemon_that_cannot_be_unpacked_or_started_is_reported_without_losing_a_connection(
    lab3: Lab, make_desktop: Callable[..., Desktop]
) -> None:
    host = lab3["gpu-a"]
    host.exec(["mkdir", "-p", AGENT_DIR], check=True)
    host.exec(["mount", "-t", "tmpfs", "-o", "size=230m,mode=755", "small", AGENT_DIR], check=True)
    desktop = make_desktop(lab3, agent_dir=AGENT_DIR)

    fill(host)
    # The disk has enough space for the agent's archive, but not for the unpacked agent.
    host.exec(["truncate", "-s", "-1000000", f"{AGENT_DIR}/filler"], check=True)
    told = desktop.torchyard("hosts", "check", "gpu-a").stdout
    assert f"the agent on gpu-a has ended: No space left on device. Is there room in {AGENT_DIR} there" in told

    make_room(host)
    assert "connection" not in desktop.torchyard("hosts", "check", "gpu-a").stdout
    wait_until(lambda: host.exec(["sh", "-c", f"ls -d {AGENT_DIR}/store/*/torchyard_agent"]).returncode == 0)
    end_daemon(host)
    host.exec(["mount", "-o", "remount,ro", AGENT_DIR], check=True)
    try:
        told = desktop.torchyard("hosts", "check", "gpu-a").stdout
        assert f"the agent on gpu-a has ended: Read-only file system: {AGENT_DIR}/" in told
    finally:
        host.exec(["mount", "-o", "remount,rw", AGENT_DIR], check=True)
        host.exec(["umount", "-l", AGENT_DIR], check=True)
