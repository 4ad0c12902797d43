"""Metrics of the host: CPU, memory, load, network and disk. Rates are averages over the time between two samples.

The fields of the files are described in https://docs.kernel.org/filesystems/proc.html and Documentation/block/stat.
"""

from __future__ import annotations

import os
from typing import Any

from torchyard_agent.telemetry import cgroup_limits
from torchyard_agent.telemetry.procfs import read, read_all, read_or

_SECTOR = 512
"""Size in bytes of a sector in /sys, which is the same for all devices."""
_LIST_EVERY_S = 60.0
"""Interval in seconds at which the network interfaces are listed again."""
_FREE_SPACE_S = 10.0
"""Interval in seconds at which free space is read. On a network file system, each read takes a round trip."""


class HostMeter:
    """The meter of this host's metrics. It keeps the counters of the last sample, from which rates are computed."""

    def __init__(self, agent_dir: str, now: float):
        self._agent_dir = agent_dir
        self._cpus = cgroup_limits.cpu_count()
        self._disk = disk_statistics_file(agent_dir)
        self._interfaces: list[str] = []
        self._listed = self._space_asked = float("-inf")
        self._space: tuple[float, float] | None = None
        self._time = now
        self._busy = _cpu_ticks()
        self._bytes = self._network(now)
        self._sectors = self._disk_sectors()

    def sample(self, now: float) -> dict[str, Any]:
        """Measures the host at monotonic time `now`. Names and units are as in `Sampler.sample`."""
        elapsed = max(now - self._time, 1e-3)
        busy, transferred, sectors = _cpu_ticks(), self._network(now), self._disk_sectors()
        total = busy[1] - self._busy[1]
        network = {
            name: {
                "received_bytes_s": _rate(received - self._bytes[name][0], elapsed),
                "sent_bytes_s": _rate(sent - self._bytes[name][1], elapsed),
            }
            for name, (received, sent) in transferred.items()
            if name in self._bytes
        }
        disk: tuple[float | None, float | None] = (None, None)
        if sectors is not None and self._sectors is not None:
            disk = (
                _rate((sectors[0] - self._sectors[0]) * _SECTOR, elapsed),
                _rate((sectors[1] - self._sectors[1]) * _SECTOR, elapsed),
            )
        memory, used = _memory()
        free, size = self._free_space(now)
        cpu = 100.0 * (busy[0] - self._busy[0]) / total if total > 0 else None
        self._time, self._busy, self._bytes, self._sectors = now, busy, transferred, sectors
        return {
            "interval_s": round(elapsed, 3),
            "cpus": self._cpus,
            "cpu": None if cpu is None else round(min(max(cpu, 0.0), 100.0), 1),
            "load": _load(),
            "memory_mb": memory,
            "memory_used_mb": used,
            "network": network,
            "disk_read_bytes_s": disk[0],
            "disk_written_bytes_s": disk[1],
            "disk_free_gb": free,
            "disk_total_gb": size,
        }

    def _network(self, now: float) -> dict[str, tuple[int, int]]:
        """Returns the bytes (received, sent) of each data interface since the interface was created."""
        try:
            lines = read_all("/proc/net/dev").splitlines()[2:]
        except OSError:
            return {}
        if now - self._listed >= _LIST_EVERY_S:
            self._listed = now
            self._interfaces = data_interfaces([line.split(b":", 1)[0].strip().decode() for line in lines])
        counters = {}
        for line in lines:
            name, _, rest = line.partition(b":")
            if name.strip().decode() in self._interfaces:
                fields = rest.split(None, 9)
                counters[name.strip().decode()] = (int(fields[0]), int(fields[8]))
        return counters

    def _disk_sectors(self) -> tuple[int, int] | None:
        """Returns the numbers of sectors read and written on the disk of the agent's folder, or None if unknown."""
        if self._disk is None:
            return None
        fields = read_or(self._disk).split()
        return (int(fields[2]), int(fields[6])) if len(fields) > 6 else None

    def _free_space(self, now: float) -> tuple[float | None, float | None]:
        """Returns the free space for this user and the size of the agent's file system, in GiB, or None if unknown."""
        if now - self._space_asked >= _FREE_SPACE_S:
            self._space_asked = now
            self._space = free_space_gb(self._agent_dir)
        return self._space or (None, None)


def data_interfaces(names: list[str]) -> list[str]:
    """Returns the network interfaces for traffic between hosts.

    These are all hardware interfaces. If there are none, as in a container, all interfaces except the loopback are
    returned.
    """
    others = [name for name in names if name != "lo"]
    real = [name for name in others if os.path.exists(f"/sys/class/net/{name}/device")]
    return real or others


def disk_statistics_file(folder: str) -> str | None:
    """Returns the file with the counters of the block device that contains `folder`.

    Returns None if there is none, for example on a network file system.
    """
    try:
        device = os.stat(folder).st_dev
        if os.major(device) == 0:
            # A file system such as btrfs has no block device number. The number of the mounted device is used instead.
            device = os.stat(_mount_source(device)).st_rdev
    except OSError:
        return None
    path = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat"
    return path if os.path.exists(path) else None


def _mount_source(device: int) -> str:
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in read_all("/proc/self/mountinfo").decode(errors="replace").splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == wanted and source.split()[1].startswith("/dev/"):
            return source.split()[1]
    raise FileNotFoundError(wanted)


def free_space_gb(folder: str) -> tuple[float, float] | None:
    """Returns the free space for this user and the size of the file system with `folder`, in GiB, or None if unknown.

    If the folder does not exist yet, its nearest existing parent is used.
    """
    while True:
        try:
            about = os.statvfs(folder)
        except FileNotFoundError:
            folder = os.path.dirname(folder) or "/"
            continue
        except OSError:
            return None
        block = about.f_frsize / 2**30
        return round(about.f_bavail * block, 2), round(about.f_blocks * block, 2)


def _cpu_ticks() -> tuple[int, int]:
    """Returns the busy and the total clock ticks of all CPUs since the host booted."""
    fields = [int(field) for field in read("/proc/stat", 256).split(b"\n", 1)[0].split()[1:9]]
    total = sum(fields)
    return total - fields[3] - fields[4], total


def _memory() -> tuple[int, int]:
    """Returns the total and the used memory in MiB. Reclaimable caches count as free."""
    values = {}
    for line in read("/proc/meminfo", 512).split(b"\n")[:5]:
        name, _, rest = line.partition(b":")
        if rest:
            values[name] = int(rest.split()[0])
    total = values.get(b"MemTotal", 0)
    return total // 1024, (total - values.get(b"MemAvailable", values.get(b"MemFree", 0))) // 1024


def _load() -> float:
    return float(read("/proc/loadavg", 64).split()[0])


def _rate(difference: int, elapsed: float) -> int:
    """Returns the rate per second, or 0 if the counter has decreased, for example after the driver was reloaded."""
    return round(max(difference, 0) / elapsed)
