"""Benchmark of the agent while a replica writes 50,000 lines per second and a desktop follows the log.

Promises: the keeper and the daemon together use at most 15% of a core, and no line is lost.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from tests.faults.runs import Team, daemon_of, keeper_of, outside_pids
from tests.lab import Desktop, Lab
from tests.waiting import wait_until

from benchmarks.harness import Promise, record, show

LINES_PER_S = 50_000
SECONDS = 20
ROUNDS = 3
FLOOD = f"""
import pathlib, sys, time
while not (pathlib.Path.home() / "go").exists():
    time.sleep(0.01)
out = sys.stdout.buffer
begin = time.monotonic()
for tick in range({SECONDS} * 100):
    numbers = range(tick * {LINES_PER_S // 100}, (tick + 1) * {LINES_PER_S // 100})
    out.write(b"".join(b"step %8d loss 0.123456 throughput 1234.5\\n" % number for number in numbers))
    out.flush()
    time.sleep(max(0.0, begin + (tick + 1) / 100 - time.monotonic()))
pathlib.Path.home().joinpath("took").write_text(str(time.monotonic() - begin))
time.sleep(600)
"""


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def flood(team: Team, topology: Path, followed_to: Path, found: dict[str, list[float]]) -> None:
    host = team.lab["gpu-a"]
    run = team.launch(topology)
    run.wait_for("running")
    with followed_to.open("wb") as output:
        following = subprocess.Popen(
            team.desktop.command("runs", "logs", run.run_id, "-f", "--replica", "worker-0"),
            stdout=output,
            env=team.desktop.environment(),
        )
        sides = {"keeper": keeper_of(host), "daemon": daemon_of(host)}
        wait_until(lambda: len(outside_pids(host, "torchyard")) > 0)
        before = {name: cpu_s(pid) for name, pid in sides.items()}
        begin = time.monotonic()
        (host.home / "go").touch()
        wanted = LINES_PER_S * SECONDS
        size = len(b"step %8d loss 0.123456 throughput 1234.5\n" % 0) * wanted
        wait_until(lambda: followed_to.stat().st_size >= size, within_s=SECONDS * 6)
        took_s = time.monotonic() - begin
        for name, pid in sides.items():
            found[f"{name}, % of a core"].append((cpu_s(pid) - before[name]) / SECONDS * 100)
        found["lines written, 1000/s"].append(wanted / float((host.home / "took").read_text()) / 1000)
        found["until the desktop had them all, s"].append(took_s)
        run.stop()
        assert following.wait(30) == 0
    lines = followed_to.read_bytes().splitlines()
    expected = (b"step %8d loss 0.123456 throughput 1234.5" % number for number in range(wanted))
    found["lines lost"].append(abs(len(lines) - wanted) + sum(a != b for a, b in zip(lines, expected, strict=False)))
    for name in ("go", "took"):
        (host.home / name).unlink()


def main() -> list[Promise]:
    """Measures in a lab with one host, while `torchyard runs logs -f` follows the log, as in normal use."""
    names = ("keeper, % of a core", "daemon, % of a core", "lines written, 1000/s")
    found: dict[str, list[float]] = {name: [] for name in (*names, "until the desktop had them all, s", "lines lost")}
    with tempfile.TemporaryDirectory() as folder, Lab(1, directory=Path(folder) / "lab") as lab:
        desktop = Desktop(Path(folder) / "desktop", lab)
        team = Team(lab, desktop, Path(folder))
        topology = team.topology(FLOOD, "stop_grace_s: 1", replicas=1)
        for _ in range(ROUNDS):
            flood(team, topology, Path(folder) / "followed", found)
        team.close()
        desktop.close()
    pairs = zip(found["keeper, % of a core"], found["daemon, % of a core"], strict=True)
    promises = [
        Promise("keeper and daemon under 50,000 lines/s, CPU", max(map(sum, pairs)), 15.0, "% of a core"),
        Promise("lines lost", sum(found["lines lost"]), 0.0, "lines"),
    ]
    show(f"{LINES_PER_S} lines a second for {SECONDS} s, followed by a desktop", found, "")
    record("log_flood", found, promises)
    return promises


if __name__ == "__main__":
    main()
