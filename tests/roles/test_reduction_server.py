"""Training through reducers by real processes on the loopback interface."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.roles.processes import DEADLINE_S, Start, free_port, output_of, trainer_environment

pytestmark = pytest.mark.train

PROGRAMS = Path(__file__).parent / "programs"


class Topology:
    """Workers and reducers, each a process."""

    def __init__(self, start: Start, workers: int, reducers: int, **options: Any) -> None:
        self.workers = workers
        self._start = start
        self._master = free_port()
        peers = {
            "reducer": [[f"reducer-{n}", "127.0.0.1", free_port()] for n in range(reducers)],
            "trainers": [[f"worker-{n}", "127.0.0.1", free_port(), 1, 0] for n in range(workers)],
        }
        self._common = {
            "TORCHYARD_STRATEGY": "reduction_server",
            "TORCHYARD_OPTIONS": json.dumps({"kind": "reduction_server", **options}),
            "TORCHYARD_PEERS": json.dumps(peers),
            "TORCHYARD_KEY": os.urandom(32).hex(),
        }
        self.reducers = [self.reducer(number) for number in range(reducers)]

    def reducer(self, number: int) -> subprocess.Popen[str]:
        role = {"TORCHYARD_ROLE": "reducer", "TORCHYARD_REPLICA": f"reducer-{number}"}
        return self._start(PROGRAMS / "reduces.py", environment={**self._common, **role})

    def train(self, program: str, *arguments: str) -> list[subprocess.Popen[str]]:
        return [
            self._start(
                PROGRAMS / program,
                *arguments,
                environment=trainer_environment(rank, self.workers, self._master, **self._common),
            )
            for rank in range(self.workers)
        ]


def digests(output: str) -> list[str]:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [line["digest"] for line in lines if "digest" in line]


@pytest.mark.parametrize(("reducers", "how", "dtype", "tolerance"), [(3, "through the reducers:", "float64", 1e-12)])
def test_300_steps_through_reducers_equal_one_process_on_the_whole_batch(
    start: Start, reducers: int, how: str, dtype: str, tolerance: float
) -> None:
    chief, *others = [output_of(each) for each in Topology(start, 3, reducers).train("large_batch.py", dtype)]
    assert f"With 3 workers and {reducers} reducers the exchange goes {how}" in chief
    assert not any("With 3 workers" in other for other in others)
    result = json.loads(chief.splitlines()[-1])
    assert result["world_size"] == 3
    assert result["difference"] <= tolerance


def test_mixed_300_steps_in_single_precision_equal_one_process_too(start: Start) -> None:
    chief, *_ = [output_of(each) for each in Topology(start, 3, 1).train("large_batch.py", "float32")]
    assert "With 3 workers and 1 reducer the exchange goes through the reducers and the workers" in chief
    assert json.loads(chief.splitlines()[-1])["difference"] <= 1e-5


def test_every_kind_of_model_is_the_same_on_all_ranks_in_every_run_and_after_a_reducers_death(start: Start) -> None:
    """Pure, mixed, and pure with a reducer that is killed between two steps: the same bits after each step."""
    pure = [output_of(each) for each in Topology(start, 3, 3).train("reduced.py")]
    expected = digests(pure[0])
    assert len(expected) == 6
    assert all(digests(output) == expected for output in pure)
    mixed = [output_of(each) for each in Topology(start, 3, 1).train("reduced.py")]
    assert all(digests(output) == expected for output in mixed)

    broken = Topology(start, 3, 3)
    workers = broken.train("reduced.py", "pause=0.1")
    assert workers[0].stdout is not None
    head = [workers[0].stdout.readline() for _ in range(3)]  # the plan's sentence and two steps
    broken.reducers[1].send_signal(signal.SIGKILL)
    broken.reducers[1].wait()
    broken.reducer(1)
    outputs = [output_of(each) for each in workers]
    assert "reducer-1 on 127.0.0.1 is gone" in outputs[0]
    assert digests("".join(head) + outputs[0]) == expected
    assert all(digests(output) == expected for output in outputs[1:])


def test_a_reducer_with_another_key_is_refused_with_a_sentence(start: Start) -> None:
    topology = Topology(start, 3, 3)
    topology._common["TORCHYARD_KEY"] = os.urandom(32).hex()
    workers = topology.train("reduced.py")
    for worker in workers:
        output, _ = worker.communicate(timeout=DEADLINE_S)
        assert worker.returncode == 1
    assert "refused this process: it has another key" in output


@pytest.mark.parametrize("reducers", [0, 1])
def test_a_step_with_nan_is_left_out_by_all_alike_and_counted(start: Start, reducers: int) -> None:
    """Two workers: the ring, with the reducer idle; three with one: mixed."""
    outputs = [
        output_of(each) for each in Topology(start, 2 + reducers, reducers, on_nan="skip").train("reduced.py", "nan=2")
    ]
    for output in outputs:
        after = digests(output)
        assert len(after) == 6
        assert after == digests(outputs[0])
        assert json.loads(output.splitlines()[-1])["statistics"]["skipped"] == 1


def test_a_step_with_nan_ends_all_of_them_with_its_number(start: Start) -> None:
    for worker in Topology(start, 2, 0, on_nan="fail").train("reduced.py", "nan=2"):
        output, _ = worker.communicate(timeout=DEADLINE_S)
        assert worker.returncode == 1
        assert "The gradients of step 3 are NaN or infinite in 6 of 6 parameters, the first being first." in output
        assert len(digests(output)) == 2
