"""Benchmarks of runs on a Slurm cluster: the start of a job, and the load on Slurm's controller.

A job's start is compared with that of a script that calls `srun torchrun`. Both run the same plain DDP script on the
same three idle nodes, in alternation. The time is measured from the job's start on its first node, where slurmd runs
its Prolog, to the last rank's first optimizer step. Promise: at most as long as `srun torchrun`.

The load is the number of queries of the job queue that the controller has counted, while one user's desktops follow
several runs, of which one runs and the others wait. Promise: at most two a minute, whatever the number of runs.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from pathlib import Path

from tests.end_to_end.slurm.jobs import COMMAND, WAITS, ClusterDesktop
from tests.lab.slurm import FOLDER, SlurmCluster
from tests.waiting import wait_until

from benchmarks.ddp_script import script_of_one_step
from benchmarks.harness import Promise, alternate, ratio, record, show

ROUNDS = 6
OURS, SRUN = "torchyard run --on", "srun torchrun"
NODES = 3
PORT = 29611
RUNS = 4
"""Number of runs whose desktops query the job queue. Each takes all nodes, so that all but one wait."""
COUNTED_S = 180.0
QUERIES = "squeue calls a minute, one user with {runs} runs"
WITHIN_S = 120.0

SCRIPT = script_of_one_step("""
mark = pathlib.Path.home() / f"first-step-{dist.get_rank()}"
mark.with_suffix(".new").write_text(str(time.time()))
mark.with_suffix(".new").rename(mark)
""")
PROLOG = """#!/bin/sh
set -C
date +%s.%N > /root/started-$SLURM_JOB_ID
exit 0
"""
"""The first node of a job to start it writes the time. The others find the file, and leave it."""
TORCHRUN = """#!/bin/sh
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --output=/dev/null
export GLOO_SOCKET_IFNAME=eth0
exec srun --mpi=none sh -c 'exec {torchrun} --nnodes={nodes} --node-rank=$SLURM_NODEID --nproc-per-node=1 \
--master-addr=$SLURM_LAUNCH_NODE_IPADDR --master-port={port} $HOME/first_step.py'
"""


def first_step(cluster: SlurmCluster, job: str) -> float:
    """Returns the seconds from the job's start to the last rank's first step, once the job has ended."""
    home = cluster.controller.home
    marks = [home / f"first-step-{rank}" for rank in range(NODES)]
    wait_until(lambda: all(mark.exists() for mark in marks), WITHIN_S, what=cluster.log)
    wait_until(lambda: not cluster.jobs(), WITHIN_S, what=cluster.log)
    started = home / f"started-{job}"
    seconds = max(float(mark.read_text()) for mark in marks) - float(started.read_text())
    for file in (started, *marks):
        file.unlink()
    cluster.wait_until_idle()
    return seconds


def ours(cluster: SlurmCluster, desktop: ClusterDesktop) -> float:
    desktop.run(desktop.write(SCRIPT, replicas=NODES))
    # The job may have ended by now, in which case the queue does not list it.
    (started,) = wait_until(lambda: list(cluster.controller.home.glob("started-*")), WITHIN_S, what=cluster.log)
    return first_step(cluster, started.name.removeprefix("started-"))


def by_srun(cluster: SlurmCluster) -> float:
    home = cluster.controller.home
    (home / "first_step.py").write_text(SCRIPT)
    torchrun = Path(sys.executable).with_name("torchrun")
    (home / "torchrun.sh").write_text(TORCHRUN.format(nodes=NODES, torchrun=torchrun, port=PORT))
    done = cluster.run("sbatch", "--parsable", "/root/torchrun.sh")
    assert done.returncode == 0, done.stderr
    return first_step(cluster, done.stdout.strip())


def queries(cluster: SlurmCluster) -> int:
    """Returns the number of queries of the job queue that the controller has answered since its start."""
    text = cluster.run("sdiag").stdout
    by_type = text.partition("statistics by message type")[2].partition("statistics by user")[0]
    # squeue sends one of these. `scontrol show job ID` sends REQUEST_JOB_INFO_SINGLE.
    found = re.findall(r"REQUEST_JOB_(?:USER_)?INFO +\([^)]*\) count:(\d+)", by_type)
    return sum(map(int, found))


def queries_a_minute(cluster: SlurmCluster, folder: Path, runs: int) -> float:
    """Follows several runs, each with a desktop of its own, and returns the queries of the job queue per minute."""
    desktops = []
    pool = {"name": "workers", "role": "worker", "replicas": NODES, "placement": "spread", "cpus": 8}
    for number in range(runs):
        desktop = ClusterDesktop(folder / f"desktop-{number}", cluster, python=sys.executable)
        desktops.append(desktop)
        file = desktop.write(WAITS, pools=[pool], program=COMMAND)
        desktop.start("run", file, "--on", "hpc", "-y")
    wait_until(lambda: len(cluster.jobs()) == runs, WITHIN_S, what=cluster.log)
    before, begin = queries(cluster), time.monotonic()
    time.sleep(COUNTED_S)  # The number of calls in this time is what is measured.
    found = (queries(cluster) - before) / (time.monotonic() - begin) * 60
    (cluster.controller.home / "end").touch()
    wait_until(lambda: not cluster.jobs(), WITHIN_S, what=cluster.log)
    for desktop in desktops:
        desktop.close()
    return found


def main() -> list[Promise]:
    """Measures both arms in alternation on one cluster, then counts the queries."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with SlurmCluster(folder / "cluster", nodes=NODES, settings={"Prolog": f"{FOLDER}/prolog"}) as cluster:
            for host in cluster.lab.hosts:
                (host.folder / "slurm" / "prolog").write_text(PROLOG)
                (host.folder / "slurm" / "prolog").chmod(0o755)
            desktop = ClusterDesktop(folder / "desktop", cluster, python=sys.executable)
            found = alternate({OURS: lambda: ours(cluster, desktop), SRUN: lambda: by_srun(cluster)}, ROUNDS)
            desktop.close()
            counted = queries_a_minute(cluster, folder, RUNS)
    show("From the job's start to the first optimizer step, 3 idle nodes", found)
    title = QUERIES.format(runs=RUNS)
    print(f"  {title:44} {counted:8.2f}")
    promises = [
        Promise("job's start to first step over srun torchrun", ratio(found, OURS, SRUN), 1.0),
        Promise(title, counted, 2.0, "calls"),
    ]
    record("slurm", {**found, title: [counted]}, promises)
    return promises


if __name__ == "__main__":
    main()
