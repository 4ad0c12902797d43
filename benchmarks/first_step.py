"""Benchmark of `torchyard run` on three hosts with running agents, from pressing Enter to the first optimizer step.

The command is compared with a manual start of torchrun on the hosts. Both arms run the same plain DDP script. In the
manual start the code is already on the hosts, and one ssh per host starts torchrun concurrently. Promise: at
most 0.55 times the duration of the manual start.

If the hosts share few cores, as in a lab, importing torch alone takes longer than this limit. The promise is then at
most 1.15 times the duration of the script's imports, started by ssh on all hosts concurrently.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.lab import Desktop, Lab

from benchmarks.ddp_script import script_of_one_step
from benchmarks.harness import Promise, alternate, ratio, record, show

ROUNDS = 6
OURS, BY_HAND, IMPORTS_ALONE = "torchyard run", "torchrun by hand", "the script's imports alone, over ssh"
OVER_BY_HAND, OVER_IMPORTS = 0.55, 1.15
PORT = 29611

SCRIPT = script_of_one_step("""
with open(os.path.expanduser("~/first-step"), "w") as file:
    file.write(str(time.time()))
""")
IMPORTS = (
    "import os, time, torch, torch._dynamo, torch.nn.parallel; "
    'open(os.path.expanduser("~/first-step"), "w").write(str(time.time()))'
)
"""The imports of a program that creates an optimizer, which imports torch._dynamo."""
TOPOLOGY = """
version: 1
name: first-step
pools:
  - {name: chief, role: chief, replicas: 1, hosts: [gpu-a]}
  - {name: workers, role: worker, replicas: 2, hosts: [gpu-b, gpu-c], placement: spread}
program: {script: first_step.py}
"""


def first_step(lab: Lab, begin: float) -> float:
    """Returns the seconds from the time `begin` until every rank had taken its first step."""
    steps = [host.home / "first-step" for host in lab.hosts]
    seconds = max(float(step.read_text()) for step in steps) - begin
    for step in steps:
        step.unlink()
    return seconds


def ours(lab: Lab, desktop: Desktop, topology: Path) -> float:
    begin = time.time()
    done = desktop.torchyard("run", topology)
    assert done.returncode == 0, done.stderr
    return first_step(lab, begin)


def by_hand(lab: Lab, script: Path) -> float:
    torchrun = Path(sys.executable).with_name("torchrun")
    for host in lab.hosts:
        (host.home / script.name).write_text(script.read_text())
    login = ssh(lab)
    begin = time.time()
    started = []
    for node_rank, host in enumerate(lab.hosts):
        command = (
            f"GLOO_SOCKET_IFNAME=eth0 {torchrun} --nnodes={len(lab.hosts)} --node-rank={node_rank} --nproc-per-node=1 "
            f"--master-addr={lab.hosts[0].address} --master-port={PORT} {script.name}"
        )
        started.append(
            subprocess.Popen(
                [*login, f"{host.user}@{host.address}", command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )
    for process in started:
        assert process.wait(120) == 0
    return first_step(lab, begin)


def imports_alone(lab: Lab) -> float:
    """On each host, starts an interpreter that only imports the script's modules. Returns the duration in seconds."""
    begin = time.time()
    started = [
        subprocess.Popen([*ssh(lab), f"{host.user}@{host.address}", f"{sys.executable} -c '{IMPORTS}'"])
        for host in lab.hosts
    ]
    for process in started:
        assert process.wait(120) == 0
    return first_step(lab, begin)


def ssh(lab: Lab) -> list[str]:
    known_hosts = lab.directory / "known_hosts"
    known_hosts.write_text(lab.known_hosts)
    return ["ssh", "-F", "none", "-i", str(lab.identity_file), "-o", f"UserKnownHostsFile={known_hosts}"]


def main() -> list[Promise]:
    """Measures all arms in alternation, on hosts with running agents."""
    with tempfile.TemporaryDirectory() as folder, Lab(3, directory=Path(folder) / "lab") as lab:
        desktop = Desktop(Path(folder) / "desktop", lab)
        place = Path(folder) / "program"
        place.mkdir()
        script, topology = place / "first_step.py", place / "topology.yaml"
        script.write_text(SCRIPT)
        topology.write_text(TOPOLOGY)
        arms = {
            OURS: lambda: ours(lab, desktop, topology),
            BY_HAND: lambda: by_hand(lab, script),
            IMPORTS_ALONE: lambda: imports_alone(lab),
        }
        found = alternate(arms, ROUNDS)
        desktop.close()
    if ratio(found, IMPORTS_ALONE, BY_HAND) * OVER_IMPORTS <= OVER_BY_HAND:
        promises = [Promise("Enter to first step over torchrun by hand", ratio(found, OURS, BY_HAND), OVER_BY_HAND)]
    else:
        over = ratio(found, OURS, IMPORTS_ALONE)
        promises = [Promise("Enter to first step over as many imports, all at once", over, OVER_IMPORTS)]
    show("From Enter to the first optimizer step, 3 warm hosts", found)
    record("first_step", found, promises)
    return promises


if __name__ == "__main__":
    main()
