"""Tests of failures in training with reducers, with real processes on the loopback interface: losses, wrong keys and
NaN.
"""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path

import pytest

from tests.fork_server import ForkedProcess
from tests.roles.processes import DEADLINE_S
from tests.roles.strategies.reduction_server.reduction_runs import Runs, digests, output_of, runs

__all__ = ["runs"]

pytestmark = pytest.mark.train

STEPS = "steps=12"


def until_it_waits(process: ForkedProcess) -> str:
    """Reads a process's output until there is none for much longer than a step takes; returns the output."""
    found = b""
    while select.select([process.stdout], [], [], 0.5)[0]:
        found += os.read(process.stdout.fileno(), 65536)
    return found.decode()


@pytest.mark.parametrize("order", ["rank", "arrival"])
def test_a_reducer_that_is_killed_with_chunks_on_their_way_is_replaced_and_the_numbers_are_the_same(
    runs: Runs, tmp_path: Path, order: str
) -> None:
    topology = runs.topology(3, 3, reduction_order=order)
    stopped = tmp_path / "stopped"
    workers = topology.train("reduced.py", STEPS, f"after={stopped}")
    heads = [worker.stdout.readline() for worker in workers]  # The first line shows that all workers are connected.
    topology.reducers[1].send_signal(signal.SIGSTOP)
    stopped.touch()
    heads = [head + until_it_waits(worker) for head, worker in zip(heads, workers, strict=True)]
    assert len(digests(heads[0])) < 12  # A reducer has received chunks of the workers, which wait for its sums.
    topology.reducers[1].close()
    topology.reducer(1)
    outputs = [head + output_of(worker) for head, worker in zip(heads, workers, strict=True)]
    after = digests(outputs[0])
    assert len(set(after)) == 12
    for output in outputs:
        assert "reducer-1 on 127.0.0.1 is gone" in output
        assert "reducer-1 is back" in output
        assert digests(output) == after
    if order == "rank":
        assert after == digests(runs.topology(3, 3).outputs("reduced.py", STEPS)[0])


def test_a_reducer_with_another_key_is_refused_with_a_sentence(runs: Runs) -> None:
    topology = runs.topology(3, 3)
    topology.environment["TORCHYARD_KEY"] = os.urandom(32).hex()
    for worker in topology.train("reduced.py"):
        output, _ = worker.communicate(timeout=DEADLINE_S)
        assert worker.returncode == 1
        assert "refused this process: it has another key" in output


def test_a_step_with_nan_is_left_out_by_all_alike_and_counted(runs: Runs) -> None:
    for output in (found := runs.topology(3, 1, on_nan="skip").outputs("reduced.py", "nan=2")):
        after = digests(output)
        assert len(after) == 6
        assert after == digests(found[0])
        assert json.loads(output.splitlines()[-1])["statistics"]["skipped"] == 1


@pytest.mark.parametrize("workers", [2, 3])  # Two workers use the ring, and three workers use the reducers.
def test_a_step_with_nan_ends_all_of_them_with_its_number(runs: Runs, workers: int) -> None:
    for worker in runs.topology(workers, workers, on_nan="fail").train("reduced.py", "nan=2"):
        output, _ = worker.communicate(timeout=DEADLINE_S)
        assert worker.returncode == 1
        assert "The gradients of step 3 are NaN or infinite in 7 of 7 parameters, the first being first." in output
        assert len(digests(output)) == 2
