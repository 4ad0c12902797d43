"""Benchmark of an idle daemon on a host: memory, and CPU time over half a minute, with and without a watching desktop.

Promises: at most 25 MB of resident memory and at most 0.5% of a core.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Promise, record, show
from torchyard_core.fleet.fleet import Fleet
from torchyard_core.fleet.inventory import Host

WATCH_S = 30.0


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> list[Promise]:
    """Measures a daemon on this computer, installed in a separate folder."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        host = Host(name="here", local=True, agent_dir=str(place / "agent"))
        with Fleet([host], place / "known_hosts", place / "facts.json") as fleet:
            link = fleet.link("here")
            pid = int(link.hello["pid"])
            link.call("run.list")  # The daemon imports most of its modules only once a desktop connects.
            time.sleep(6)  # The daemon compiles its bytecode once, in the background.
            begin = cpu_s(pid)
            time.sleep(WATCH_S)
            idle = (cpu_s(pid) - begin) / WATCH_S * 100
            link.call("telemetry.subscribe", {"interval_s": 1.0})
            begin = cpu_s(pid)
            time.sleep(WATCH_S)
            watched = (cpu_s(pid) - begin) / WATCH_S * 100
            memory = resident_mb(pid)
            link.call("retire")
    found = {"idle, % of a core": [idle], "watched at 1 Hz, % of a core": [watched], "resident, MB": [memory]}
    promises = [
        Promise("idle daemon, resident", memory, 25.0, "MB"),
        Promise("idle daemon, CPU", idle, 0.5, "% of a core"),
        Promise("daemon watched at 1 Hz, CPU", watched, 0.5, "% of a core"),
    ]
    show("A daemon with nothing to do", found, "")
    record("idle_daemon", found, promises)
    return promises


if __name__ == "__main__":
    main()
