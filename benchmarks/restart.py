"""Benchmark of a trainer's failure on three hosts: the time until all other ranks have exited and training resumes.

Promises: all other ranks have exited within 5 s, and the restart of the gang takes at most 0.5 times a first start.
Both use a real DDP script. A first start is measured from the time at which the primary received the run, so the
desktop's work is not included; a restart is measured from the death of the trainer. Both measurements end once every
rank has taken its first step. A restart uses spares. The first start does not use interpreters started early, because
its run has a setup line. The hardest case for ending the other ranks is also measured: ranks that are not in a
collective call and ignore SIGTERM.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tests.faults.runs import LaunchedRun, Team, outside_pids
from tests.lab import Desktop, Lab
from tests.waiting import wait_until

from benchmarks.harness import Promise, ratio, record, show
from torchyard_agent.keeper.processes.rank_supervisor import SPARES_READY

ROUNDS = 6
FIRST, RESTART = "first start", "restart"
GONE, GONE_DEAF = "all others gone (DDP)", "all others gone (deaf to SIGTERM)"

TRAINING = """
import os, pathlib, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

home = pathlib.Path.home()
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()

step()
# All hosts of the lab share this machine's clock.
mark = home / ("first-step-" + os.environ["TORCHELASTIC_RESTART_COUNT"])
mark.with_suffix(".new").write_text(str(time.time()))
mark.with_suffix(".new").rename(mark)
while True:
    step()
    time.sleep(0.01)
"""
IGNORES_SIGTERM = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
time.sleep(600)
"""


def until_gone(team: Team) -> tuple[float, float]:
    """Kills a trainer and waits until all others have exited.

    Returns:
        The time of the failure in seconds since 1970, and the seconds until all others had exited.
    """
    # On each host, the rank is the script's oldest process; its spares have started later.
    *others, victim = [min(outside_pids(host, "script.py")) for host in team.lab.hosts]
    failed = time.time()
    os.kill(victim, signal.SIGKILL)
    while any(Path(f"/proc/{pid}").exists() for pid in others):
        time.sleep(0.005)
    return failed, time.time() - failed


def last_first_step(team: Team, generation: int) -> float:
    """Returns the time at which the last rank of a generation took its first step."""
    marks = [host.home / f"first-step-{generation}" for host in team.lab.hosts]
    wait_until(lambda: all(mark.exists() for mark in marks), within_s=90)
    when = max(float(mark.read_text()) for mark in marks)
    for mark in marks:
        mark.unlink()
    return when


def started(run: LaunchedRun) -> float:
    """Returns the time at which the primary received the run."""
    first = next(state for state in run.of("run_state") if state["state"] == "starting")
    return datetime.fromisoformat(first["time"]).timestamp()


def start(team: Team, topology: Path, found: dict[str, list[float]]) -> None:
    run = team.launch(topology)
    found[FIRST].append(last_first_step(team, 0) - started(run))
    run.stop()


def train(team: Team, topology: Path, found: dict[str, list[float]]) -> None:
    run = team.launch(topology)
    last_first_step(team, 0)
    logs = [run.folder(host.name) / "keeper.log" for host in team.lab.hosts]
    wait_until(lambda: all(SPARES_READY in log.read_text() for log in logs), within_s=120)
    failed, gone_s = until_gone(team)
    found[GONE].append(gone_s)
    found[RESTART].append(last_first_step(team, 1) - failed)
    run.stop()


def measure_resisting(team: Team, topology: Path, found: dict[str, list[float]]) -> None:
    run = team.launch(topology)
    run.wait_for_output("up 0")
    found[GONE_DEAF].append(until_gone(team)[1])
    run.stop()


def main() -> list[Promise]:
    """Measures all cases on the same hosts, with running agents."""
    found: dict[str, list[float]] = {name: [] for name in (FIRST, RESTART, GONE, GONE_DEAF)}
    with tempfile.TemporaryDirectory() as folder, Lab(3, directory=Path(folder) / "lab") as lab:
        desktop = Desktop(Path(folder) / "desktop", lab)
        team = Team(lab, desktop, Path(folder))
        team.impatient(spares_after_s=1.0)
        training, deaf = (team.topology(script, "max_restarts: 1") for script in (TRAINING, IGNORES_SIGTERM))
        cold = team.topology(TRAINING, 'setup: ["true"]')
        plays: tuple[Callable[[dict[str, list[float]]], None], ...] = (
            lambda into: start(team, cold, into),
            lambda into: train(team, training, into),
            lambda into: measure_resisting(team, deaf, into),
        )
        for play in plays:
            play({name: [] for name in found})  # The first pass is discarded, because the caches of the hosts are cold.
        for _ in range(ROUNDS):
            for play in plays:
                play(found)
        team.close()
        desktop.close()
    promises = [
        Promise("failure of a trainer to all others gone, slowest", max(found[GONE] + found[GONE_DEAF]), 5.0, "s"),
        Promise("gang restart over a first start without spares", ratio(found, RESTART, FIRST), 0.5),
    ]
    show("A trainer fails, 3 warm hosts", found)
    record("restart", found, promises)
    return promises


if __name__ == "__main__":
    main()
