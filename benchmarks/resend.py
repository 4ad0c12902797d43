"""Benchmark of sending an unchanged folder of 10,000 files again, to one host and to four.

Each round creates the snapshot again, which examines every file, and offers the snapshot over open links, so the SSH
handshake is not included. The other arms are the same procedure without cached hashes on this computer, and rsync over
the system's ssh including its handshake. Promise: at most 1 s per host.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

from tests.lab import Desktop, Lab, LabHost

from benchmarks.harness import Promise, alternate, record, show, timed
from torchyard_core.errors import HostError
from torchyard_core.fleet.fleet import Fleet
from torchyard_core.fleet.inventory import Host
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.progress import LaunchProgress
from torchyard_core.launch.snapshots.file_hash_cache import RACY_NS
from torchyard_core.launch.snapshots.snapshot import take_snapshot
from torchyard_core.launch.snapshots.snapshot_upload import upload_to_all

FILES, IN_A_FOLDER = 10_000, 100
HOSTS = 4
ROUNDS = 8
COMMAND_ROUNDS = 4
ADDED_S = 2.0
TOPOLOGY = """
version: 1
name: resend
pools:
  - {{name: workers, role: worker, replicas: {replicas}, hosts: [{hosts}], placement: spread}}
program: {{launcher: command, command: ["true"]}}
"""
RSYNC_ROUNDS = 3


def make_folder(folder: Path) -> None:
    """Writes 10,000 files of 0.7 to 6.4 kB, and waits until they are old enough for cached hashes."""
    for number in range(FILES):
        file = folder / f"package{number // IN_A_FOLDER:03}" / f"module{number:05}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# module {number}\n" * (60 + number % 400))
    (folder / ".gitignore").write_text("*.log\n/data/\nbuild/\n")
    time.sleep(RACY_NS / 1e9 + 0.5)


def links_to(fleet: Fleet) -> dict[str, AgentLink]:
    found = fleet.links()
    refused = [answer for answer in found.values() if isinstance(answer, HostError)]
    assert not refused, refused
    return {name: link for name, link in found.items() if not isinstance(link, HostError)}


def send(folder: Path, links: dict[str, AgentLink], fleet: Fleet, caches: Path | None) -> int:
    """Sends a snapshot of the folder. Returns the number of bytes sent."""
    sent = [0]
    telling = LaunchProgress(lambda event: None, on_progress=lambda step, done, total: sent.append(total))
    snapshot = take_snapshot(folder, (), Event(), caches)
    assert len(snapshot.manifest) == FILES + 1
    upload_to_all(snapshot, links, fleet, telling)
    return max(sent)


def again(folder: Path, links: dict[str, AgentLink], fleet: Fleet, caches: Path | None) -> Callable[[], float]:
    def measure() -> float:
        sent: list[int] = []
        seconds = timed(lambda: sent.append(send(folder, links, fleet, caches)))
        assert sent == [0], "something was sent again"
        return seconds

    return measure


def rsync(lab: Lab, host: LabHost, folder: Path) -> float:
    known_hosts = lab.directory / "known_hosts"
    known_hosts.write_text(lab.known_hosts)
    ssh = f"ssh -F none -i {lab.identity_file} -o UserKnownHostsFile={known_hosts}"
    command = ["rsync", "-a", "--delete", "-e", ssh, f"{folder}/", f"{host.user}@{host.address}:rsynced/"]
    return timed(lambda: subprocess.run(command, check=True, stdin=subprocess.DEVNULL))


def prepared(links: Sequence[AgentLink], root: str) -> float:
    """Returns the seconds until every host has copied the snapshot into the run's folder, as part of a launch."""
    begin = time.perf_counter()
    run_id = f"bench-{time.monotonic_ns()}"
    share = {
        "run_id": run_id,
        "name": "bench",
        "secret": os.urandom(32).hex(),
        "snapshot": root,
        "gpus": [],
        "ports": 1,
        "port_range": None,
        "interface": None,
        "towards": None,
        "record": {},
    }
    asked = [
        link.submit(
            "run.prepare", {**share, "host": link.host, "archive": link.archive, "data_address": link.ssh_address}
        )
        for link in links
    ]
    for future in asked:
        future.result(60)
    seconds = time.perf_counter() - begin
    for future in [link.submit("run.abort", {"run_id": run_id}) for link in links]:
        future.result(60)
    return seconds


def command_of(desktop: Desktop, folder: Path, hosts: Sequence[str]) -> Callable[[], float]:
    """Returns an arm that measures the duration in seconds of `torchyard run` with a program that does nothing."""
    topology = folder / "topology.yaml"
    topology.write_text(TOPOLOGY.format(hosts=", ".join(hosts), replicas=len(hosts)))

    def measure() -> float:
        done: list[subprocess.CompletedProcess[str]] = []
        seconds = timed(lambda: done.append(desktop.torchyard("run", topology)))
        assert done[0].returncode == 0, done[0].stderr
        return seconds

    return measure


def by_command(lab: Lab, place: Path, folder: Path) -> tuple[dict[str, list[float]], list[Promise]]:
    """Measures how much longer `torchyard run` takes with 10,000 unchanged files than with two files."""
    desktop = Desktop(place / "desktop", lab)
    few = place / "few"
    few.mkdir()
    found: dict[str, list[float]] = {}
    promises = []
    for count in (1, HOSTS):
        hosts = [host.name for host in lab.hosts[:count]]
        where = "1 host" if count == 1 else f"{count} hosts"
        many, without = f"torchyard run, 10,000 unchanged files, {where}", f"torchyard run, 2 files, {where}"
        found |= alternate(
            {many: command_of(desktop, folder, hosts), without: command_of(desktop, few, hosts)}, COMMAND_ROUNDS
        )
        added = statistics.median(a - b for a, b in zip(found[many], found[without], strict=True))
        promises.append(Promise(f"10,000 unchanged files add to `torchyard run` on {where}", added, ADDED_S, "s"))
    desktop.close()
    return found, promises


def main() -> list[Promise]:
    """Measures all arms in one run, with the same hosts."""
    with tempfile.TemporaryDirectory() as place, Lab(HOSTS, directory=Path(place) / "lab") as lab:
        folder, caches, known_hosts = Path(place) / "work", Path(place) / "caches", Path(place) / "known_hosts"
        make_folder(folder)
        known_hosts.write_text(lab.known_hosts)
        hosts = [
            Host(name=host.name, address=host.address, user=host.user, identity_file=str(lab.identity_file))
            for host in lab.hosts
        ]
        with Fleet(hosts, known_hosts, Path(place) / "facts.json") as fleet:
            links = links_to(fleet)
            first = timed(lambda: send(folder, links, fleet, caches))
            one = {hosts[0].name: links[hosts[0].name]}
            found = alternate(
                {
                    "to 1 host": again(folder, one, fleet, caches),
                    f"to {HOSTS} hosts": again(folder, links, fleet, caches),
                    "to 1 host, hashes not kept": again(folder, one, fleet, None),
                },
                ROUNDS,
            )
            root = take_snapshot(folder, (), None, caches).root
            found["then a run's own copy on 1 host"] = [prepared(list(one.values()), root) for _ in range(2)]
            copying = ["sh", "-c", "cd && cp -r .torchyard/store/files copied && rm -rf copied"]
            found["cp -r of as many files there, and rm"] = [
                timed(lambda: lab.hosts[0].exec(copying, check=True)) for _ in range(2)
            ]
        found[f"the first time, to {HOSTS} hosts"] = [first]
        if shutil.which("rsync"):
            rsync(lab, lab.hosts[0], folder)
            found["rsync to 1 host, its handshake included"] = [
                rsync(lab, lab.hosts[0], folder) for _ in range(RSYNC_ROUNDS)
            ]
        commands, command_promises = by_command(lab, Path(place), folder)
    found |= commands
    promises = [
        Promise(f"an unchanged folder of 10,000 files sent again {arm}", statistics.median(found[arm]), 1.0, "s")
        for arm in ("to 1 host", f"to {HOSTS} hosts")
    ]
    promises += command_promises
    show("An unchanged folder of 10,000 files, sent again over open links", found)
    record("resend", found, promises)
    return promises


if __name__ == "__main__":
    main()
