"""Tests of the host's counters and limits, by comparison with other system tools."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agent.telemetry.sample_programs import AGENT, program
from torchyard_agent.telemetry import cgroup_limits
from torchyard_agent.telemetry.host_metrics import HostMeter, data_interfaces, disk_statistics_file, free_space_gb

BUSY = "print('ready', flush=True)\nwhile True: pass"


def test_a_sample_has_the_metrics_of_the_host(tmp_path: Path) -> None:
    meter = HostMeter(str(tmp_path), time.monotonic())
    with program(BUSY):
        time.sleep(0.3)  # Rates need an interval between two measurements.
        host = meter.sample(time.monotonic())
    assert host["interval_s"] >= 0.3
    assert 0 < host["cpu"] <= 100
    assert host["load"] >= 0
    assert 0 < host["memory_used_mb"] < host["memory_mb"]
    assert host["memory_mb"] == pytest.approx(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20, abs=1)
    assert host["disk_total_gb"] == pytest.approx(shutil.disk_usage(tmp_path).total / 2**30, abs=0.1)
    assert 0 <= host["disk_free_gb"] <= host["disk_total_gb"]


def test_bytes_on_an_interface_are_counted_per_second(tmp_path: Path) -> None:
    meter = HostMeter(str(tmp_path), 100.0)
    meter._interfaces = ["lo"]  # The loopback interface is the only one over which tests may send data.
    before = meter._bytes = meter._network(100.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        server.accept()[0] as receiver,
    ):
        sender.sendall(bytes(100_000))
        received = 0
        while received < 100_000:
            received += len(receiver.recv(65536))
    host = meter.sample(102.0)
    assert before["lo"][0] > 0
    assert host["network"]["lo"]["received_bytes_s"] >= 50_000
    assert host["network"]["lo"]["sent_bytes_s"] == host["network"]["lo"]["received_bytes_s"]


def test_the_loopback_is_no_data_interface() -> None:
    assert data_interfaces(["lo", "none-such"]) == ["none-such"]
    assert "lo" not in data_interfaces([path.name for path in Path("/sys/class/net").iterdir()])


def test_bytes_written_to_the_disk_of_the_folder_are_counted() -> None:
    folder = Path(__file__).parent
    if disk_statistics_file(str(folder)) is None:
        pytest.skip("these tests lie on no block device")
    meter = HostMeter(str(folder), 100.0)
    file = folder / f"written-{os.getpid()}.tmp"
    try:
        with file.open("wb") as written:
            written.write(os.urandom(4 << 20))
            written.flush()
            os.fsync(written.fileno())
        assert meter.sample(102.0)["disk_written_bytes_s"] >= 2 << 20
    finally:
        file.unlink()


def test_memory_file_systems_have_no_disk() -> None:
    if not Path("/dev/shm").is_mount():
        pytest.skip("no file system in memory here")
    assert disk_statistics_file("/dev/shm") is None
    assert HostMeter("/dev/shm", 1.0).sample(2.0)["disk_written_bytes_s"] is None


def test_free_space_of_a_missing_folder_is_that_of_its_parent(tmp_path: Path) -> None:
    there, absent = free_space_gb(str(tmp_path)), free_space_gb(str(tmp_path / "a" / "b"))
    assert there is not None
    assert absent is not None
    assert absent[1] == there[1]


def test_cpus_are_those_of_the_affinity() -> None:
    source = (
        f"import os, sys; sys.path.insert(0, {str(AGENT)!r})\n"
        "from torchyard_agent.telemetry.cgroup_limits import cpu_count\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "print(cpu_count())"
    )
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, check=True).stdout == b"1\n"


def lay(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    membership = root / "membership"
    return str(membership)


def test_limits_of_version_2_include_those_of_parent_groups(tmp_path: Path) -> None:
    membership = lay(
        tmp_path,
        {
            "membership": "0::/user.slice/session-1.scope\n",
            "user.slice/cpu.max": "100000 100000\n",
            "user.slice/memory.max": "1073741824\n",
            "user.slice/session-1.scope/cpu.max": "max 100000\n",
            "user.slice/session-1.scope/memory.max": "max\n",
        },
    )
    assert cgroup_limits.cpu_count(str(tmp_path), membership) == 1
    assert cgroup_limits.memory_bytes(str(tmp_path), membership) == 1 << 30


def test_limits_of_version_1_count_and_no_limit_is_none(tmp_path: Path) -> None:
    membership = lay(
        tmp_path,
        {
            "membership": "5:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/x\n0::/\n",
            "cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "memory/job/memory.limit_in_bytes": "536870912\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cgroup_limits.cpu_count(str(tmp_path), membership) == min(2, len(os.sched_getaffinity(0)))
    assert cgroup_limits.memory_bytes(str(tmp_path), membership) == 1 << 29


@pytest.mark.skipif(
    os.getuid() != 0 or not Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists() or (os.cpu_count() or 1) < 2,
    reason="needs root, control groups of version 1 and two CPUs",
)
def test_a_real_control_group_of_version_1_limits_the_cpus() -> None:
    group = Path(f"/sys/fs/cgroup/cpu/torchyard-test-{os.getpid()}")
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text("100000")
        source = (
            f"import os, sys; sys.path.insert(0, {str(AGENT)!r})\n"
            f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
            "from torchyard_agent.telemetry.cgroup_limits import cpu_count\n"
            "print(cpu_count())"
        )
        assert subprocess.run([sys.executable, "-c", source], capture_output=True, check=True).stdout == b"1\n"
    finally:
        group.rmdir()
