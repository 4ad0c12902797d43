"""Tests that runs interrupted by Slurm continue in the same job, and lose at most one checkpoint interval."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.end_to_end.slurm.conftest import DesktopFactory
from tests.end_to_end.slurm.jobs import PROGRAMS, ClusterDesktop
from tests.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.train]

EPOCHS, STEPS_A_EPOCH = 4, 8
STEP_S = 0.25
EVERY_S = 1.0
MOST_LOST = 8
"""Maximum number of lost steps: those of EVERY_S seconds, with a margin for the duration of saves."""


def requeue(desktop: ClusterDesktop, job: str) -> None:
    desktop.cluster.run("scontrol", "requeue", job)


def preempt(desktop: ClusterDesktop, job: str) -> None:
    desktop.cluster.run("scancel", desktop.occupy("-p", "urgent"))


def signal_of_the_time_limit(desktop: ClusterDesktop, job: str) -> None:
    desktop.cluster.run("scancel", "-b", "-s", "USR1", job)


def lose_a_node(desktop: ClusterDesktop, job: str) -> None:
    desktop.cluster.destroy("n2")
    desktop.cluster.reboot("n2")


INTERRUPTIONS = {
    "requeue": (requeue, "main"),
    "preemption": (preempt, "main"),
    "preemption with grace": (preempt, "graceful"),
    "time limit": (signal_of_the_time_limit, "main"),
    "node loss": (lose_a_node, "main"),
}


def interrupted(on_cluster: DesktopFactory, interrupt: Callable[[ClusterDesktop, str], None], partition: str) -> None:
    """Interrupts a training run after some steps, and checks that the run continues from its last checkpoint."""
    desktop = on_cluster(partition=partition)
    cluster = desktop.cluster
    steps = cluster.controller.home / "steps"
    steps.mkdir(exist_ok=True)
    for file in steps.iterdir():
        file.unlink()
    settings = {"checkpoint_every_s": EVERY_S}
    arguments = ("/root/steps", str(EPOCHS), str(STEP_S))
    topology = desktop.write(
        PROGRAMS / "resuming" / "resumable.py",
        *arguments,
        replicas=2,
        strategy={"kind": "all_reduce"},
        program=settings,
    )
    run_id = desktop.run(topology)

    def taken() -> list[int]:
        log = steps / "losses.0"
        lines = log.read_text().splitlines() if log.exists() else []
        return [int(line.split()[0]) for line in lines if line.count(" ") == 3]

    wait_until(lambda: len(taken()) > 10, what=lambda: desktop.job_log(run_id))
    before = taken()[-1]
    job = next(iter(cluster.jobs()))
    interrupt(desktop, job)
    desktop.wait_for(run_id, "succeeded")
    found = taken()
    breaks = [position for position, (one, other) in enumerate(itertools.pairwise(found)) if other != one + 1]
    assert found[0] == 1
    assert found[-1] == EPOCHS * STEPS_A_EPOCH
    assert len(breaks) <= 1, found
    for position in breaks:
        assert found[position] >= before - 1
        assert 0 <= found[position] - found[position + 1] + 1 <= MOST_LOST, found
    wait_until(lambda: not cluster.jobs())
    cluster.wait_until_idle()


def test_a_requeued_run_continues_from_its_checkpoint(on_cluster: DesktopFactory) -> None:
    interrupted(on_cluster, *INTERRUPTIONS["requeue"])


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize("interruption", list(INTERRUPTIONS))
def test_an_interrupted_run_loses_at_most_one_checkpoint_interval(
    on_cluster: DesktopFactory, interruption: str, number: int
) -> None:
    interrupted(on_cluster, *INTERRUPTIONS[interruption])
