"""Tests of runs that Slurm interrupts: they save, continue in the same job, and lose at most a checkpoint interval."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests import REPOSITORY
from tests.end_to_end.slurm.conftest import DesktopFactory
from tests.end_to_end.slurm.jobs import COMMAND, PROGRAMS, WAITS, ClusterDesktop
from tests.fork_server import ForkServer
from tests.lab.slurm import SlurmCluster
from tests.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.train]

STEP_S = 0.1
EVERY_S = 2.0
INTERVAL_STEPS = 20
"""Steps in EVERY_S."""
STEPS_BETWEEN = 12
"""Steps that a run takes before it is interrupted."""
ENDLESS = 10_000
KILL_WAIT, GRACE_TIME = (5.0, 5.0), (50.0, 61.0)
USER_SIGNAL = {"SlurmctldParameters": "preempt_send_user_signal"}
PROOF = REPOSITORY / "docs" / "proof" / "slurm-interruptions.md"
TIMES = 20


class Training:
    """A training run on two nodes that ends only when it is stopped."""

    def __init__(self, desktop: ClusterDesktop, torch: ForkServer):
        self.desktop = desktop
        self.torch = torch
        """The fork server of the ranks, which a host that boots has to be connected to."""
        self.cluster: SlurmCluster = desktop.cluster
        folder = self.cluster.controller.home / "steps"
        folder.mkdir(exist_ok=True)
        self._log = folder / "losses.0"
        self._log.unlink(missing_ok=True)
        topology = desktop.write(
            PROGRAMS / "resuming" / "resumable.py",
            *("/root/steps", str(ENDLESS), str(STEP_S)),
            replicas=2,
            strategy={"kind": "all_reduce"},
            program={"checkpoint_every_s": EVERY_S},
        )
        self.run_id = desktop.run(topology)
        self.job = next(iter(self.cluster.jobs()))

    @property
    def steps(self) -> list[int]:
        """The steps that rank 0 has taken, including those that it has repeated."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [int(line.split()[0]) for line in lines if line.count(" ") == 3]

    @property
    def interruptions(self) -> list[dict[str, Any]]:
        return [event for event in self.desktop.journal(self.run_id) if event["event"] == "interrupted"]

    def wait(self, condition: Callable[[], Any]) -> None:
        wait_until(condition, what=lambda: f"{self.desktop.job_log(self.run_id)}\n{self.cluster.log()}")

    def interrupt(self, by: Interruption) -> Loss:
        """Interrupts the run after some steps, and waits until it trains again."""
        before = len(self.steps)
        self.wait(lambda: len(self.steps) >= before + STEPS_BETWEEN)
        known = len(self.interruptions)
        begun = time.monotonic()
        by.act(self)
        self.wait(lambda: len(self.interruptions) > known)
        taken = len(self.steps)  # All ranks have ended when the interruption is journaled.
        self.wait(lambda: len(self.steps) > taken or self._start_now())
        took = time.monotonic() - begun
        (interruption,) = self.interruptions[known:]
        steps = self.steps
        assert interruption["cause"] == by.cause, self.desktop.job_log(self.run_id)
        assert self.cluster.jobs().get(self.job) == "RUNNING"
        return Loss(steps[taken - 1] - steps[taken] + 1, took)

    def set_time_limit(self, limit: str) -> None:
        """Changes the job's time limit, which fails at times while the job is ending."""

        def is_set() -> bool:
            self.cluster.run("scontrol", "update", f"jobid={self.job}", f"timelimit={limit}")
            return f"TimeLimit={limit}" in self.cluster.run("scontrol", "show", "job", self.job).stdout

        self.wait(is_set)

    def _start_now(self) -> None:
        """Does what a connected desktop does, which has no effect before the job is in the queue again."""
        self.cluster.run("scontrol", "update", f"jobid={self.job}", "starttime=now")

    def stop(self) -> None:
        assert self.desktop.torchyard("runs", "stop", self.run_id).returncode == 0
        self.desktop.wait_for(self.run_id, "stopped")


@dataclass(frozen=True)
class Loss:
    """What a run lost by an interruption."""

    steps: int
    """The steps that it repeated."""
    pause_s: float
    """Time in seconds from the interruption to the next new step."""


@dataclass(frozen=True)
class Interruption:
    """A way to interrupt a run, and Slurm's name of the cause."""

    act: Callable[[Training], None]
    cause: str
    times: int = TIMES
    """The number of repetitions in the proof."""
    leaves_s: tuple[float, float] = (0.0, 0.0)
    """The least and the most time in seconds that Slurm leaves for saving."""


def requeue(run: Training) -> None:
    run.cluster.run("scontrol", "requeue", run.job)


def preempt(run: Training) -> None:
    """Preempts the run in a partition whose GraceTime is a minute."""
    run.cluster.run("scancel", run.desktop.occupy("-p", "urgent"))


def preempt_with_user_signal(run: Training) -> None:
    with run.cluster.configured(USER_SIGNAL):
        preempt(run)


def preempt_without_grace(run: Training) -> None:
    run.cluster.run("scontrol", "update", "partitionname=graceful", "gracetime=0")
    preempt(run)
    run.cluster.run("scontrol", "update", "partitionname=graceful", "gracetime=60")


def reach_the_time_limit(run: Training) -> None:
    """Reduces the time limit to one minute, so that Slurm sends its signal within 30 s, and restores it afterwards."""
    known = len(run.interruptions)
    run.set_time_limit("00:01:00")
    run.wait(lambda: len(run.interruptions) > known)
    run.set_time_limit("1-00:00:00")


def lose_a_node(run: Training) -> None:
    run.cluster.destroy("n2")
    run.cluster.reboot("n2", lambda host: host.fork_scripts_from(run.torch))


INTERRUPTIONS = {
    "`scontrol requeue`": Interruption(requeue, "REQUEUED", leaves_s=KILL_WAIT),
    "preemption with GraceTime": Interruption(preempt, "PREEMPTED", leaves_s=GRACE_TIME),
    "preemption with GraceTime and preempt_send_user_signal": Interruption(
        preempt_with_user_signal, "PREEMPTED", 5, leaves_s=GRACE_TIME
    ),
    "preemption without GraceTime": Interruption(preempt_without_grace, "PREEMPTED", leaves_s=KILL_WAIT),
    "time limit": Interruption(reach_the_time_limit, "TIMEOUT", leaves_s=(20.0, 61.0)),
    "loss of a node": Interruption(lose_a_node, "NODE_FAIL", 3),
}


@pytest.mark.timeout(300)
def test_a_run_that_slurm_interrupts_continues_and_names_the_cause(
    on_cluster: DesktopFactory, torch_for_hosts: ForkServer
) -> None:
    run = Training(on_cluster(partition="graceful"), torch_for_hosts)
    ways = [way for way in INTERRUPTIONS.values() if way.act is not lose_a_node]
    for way in ways:
        assert 0 <= run.interrupt(way).steps <= INTERVAL_STEPS
    shown = run.desktop.shown(run.run_id)
    assert [one["cause"] for one in shown["interruptions"]] == [way.cause for way in ways]
    batch_log = (run.desktop.run_dir(run.run_id) / "job" / "batch.log").read_text()
    for way, left_s in zip(ways, re.findall(r"time left for saving: ([\d.]+) s", batch_log), strict=True):
        least, most = way.leaves_s
        assert least <= float(left_s) <= most, (way.act, batch_log)
    printed = run.desktop.torchyard("runs", "show", run.run_id).stdout
    assert f"{len(ways)} interruptions by Slurm, the last " in printed
    run.stop()


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_interruptions_lose_at_most_a_checkpoint_interval(
    on_cluster: DesktopFactory, torch_for_hosts: ForkServer
) -> None:
    """Interrupts one run of each kind again and again. The test writes a table of the steps lost."""
    rows = []
    for name, way in INTERRUPTIONS.items():
        run = Training(on_cluster(partition="graceful"), torch_for_hosts)
        losses = [run.interrupt(way) for _ in range(way.times)]
        assert all(0 <= loss.steps <= INTERVAL_STEPS for loss in losses), (name, losses)
        run.stop()
        run.cluster.wait_until_idle()
        repeated = sum(loss.steps > 0 for loss in losses)
        pauses = [loss.pause_s for loss in losses]
        rows.append(
            f"| {name} | {way.cause} | {way.times} | {max(loss.steps for loss in losses)} | {repeated} | "
            f"{statistics.median(pauses):.1f} ({min(pauses):.1f} to {max(pauses):.1f}) |"
        )
        write_table(rows)


def write_table(rows: list[str]) -> None:
    """Writes the rows of the interruptions so far."""
    PROOF.write_text(
        "# Runs that Slurm interrupts\n\nWritten by `make proof` (`tests/end_to_end/slurm/test_continuation.py`). A "
        f"run of two ranks on a real Slurm cluster takes a step in {STEP_S} s and saves every {EVERY_S:.0f} s, which "
        f"are {INTERVAL_STEPS} steps. Each row is one run that was interrupted this often, and continued each time in "
        "the same job, which was started as soon as it was in the queue, as a connected desktop does. The pause lasts "
        "from the interruption to the next new step; it includes the time for which another job had the nodes, up to "
        "30 s until Slurm notices a time limit, and the boot of a lost node."
        "\n\n| interruption | cause shown | times | most steps lost | times that any were lost | pause, s |\n"
        "|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n",
        encoding="utf-8",
    )


def test_a_run_whose_keepers_are_killed_by_slurm_names_the_cause_when_it_waits(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    """The batch program's node is lost with it, so that only a desktop or the next start can note the interruption."""
    desktop = on_cluster()
    run_id = desktop.run(desktop.write(WAITS, replicas=1, program=COMMAND))
    desktop.wait_for(run_id, "running")
    (job,) = cluster.jobs()
    node = json.loads((desktop.run_dir(run_id) / "job" / "started.json").read_text())["nodes"]["hpc.1"]
    cluster.destroy(node)
    cluster.reboot(node)

    def noted() -> list[dict[str, Any]]:
        return [event for event in desktop.journal(run_id) if event["event"] == "interrupted"]

    (interruption,) = wait_until(noted, what=lambda: desktop.job_log(run_id))
    # This cluster has no accounting, which would name NODE_FAIL.
    assert (interruption["job"], interruption["restart"], interruption["cause"]) == (job, 0, "REQUEUED")
    (cluster.controller.home / "end").touch()
    desktop.wait_for(run_id, "succeeded")
