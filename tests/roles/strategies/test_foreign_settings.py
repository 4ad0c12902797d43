"""Tests of every strategy with scripts that change torch's defaults and other process-wide settings.

Either the script trains, or it exits with a message that says what the strategy does not support.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.roles.join_stores import Served, serve_in_a_process
from tests.roles.processes import DEADLINE_S, Start, outputs_of
from tests.roles.strategies.diloco.test_served_strategy import ServedGroups
from tests.roles.strategies.hogwild.test_strategy import Groups
from tests.roles.strategies.parameter_server.test_server_process import Cluster
from tests.roles.strategies.reduction_server.reduction_runs import Runs, runs
from tests.roles.strategies.sharded.test_strategy import environments

__all__ = ["runs"]

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parents[1] / "programs" / "foreign_settings.py"
DTYPES = ["float64", "bfloat16"]


@dataclass
class Starting:
    """The fixtures that a run needs."""

    start: Start
    runs: Runs
    store: Served
    folder: Path


@pytest.fixture
def starting(start: Start, runs: Runs, tmp_path: Path) -> Iterator[Starting]:
    store = serve_in_a_process()
    yield Starting(start, runs, store, tmp_path)
    store.end()


Processes = tuple[list["subprocess.Popen[str]"], list["subprocess.Popen[str]"]]
"""The workers of a run, and its servers and reducers."""
Launch = Callable[[Starting, tuple[str, ...]], Processes]


def alone() -> Launch:
    def launch(starting: Starting, words: tuple[str, ...]) -> Processes:
        return [starting.start(PROGRAM, *words, environment={"CUDA_VISIBLE_DEVICES": ""})], []

    return launch


def averaging(workers: int, reducers: int) -> Launch:
    def launch(starting: Starting, words: tuple[str, ...]) -> Processes:
        topology = starting.runs.topology(workers, reducers)
        return [*topology.train(PROGRAM.name, *words)], [*topology.reducers]  # type: ignore[list-item]

    return launch


def with_servers(strategy: str, groups: int, **options: object) -> Launch:
    def launch(starting: Starting, words: tuple[str, ...]) -> Processes:
        cluster = Cluster(starting.folder, strategy, workers=2, servers=1, groups=groups, **options)
        server = starting.start(PROGRAM, *words, environment=cluster.server(0))
        workers = [starting.start(PROGRAM, *words, environment=cluster.worker(rank)) for rank in range(2)]
        return workers, [server]

    return launch


def grouped(*sizes: int, **options: object) -> Launch:
    def launch(starting: Starting, words: tuple[str, ...]) -> Processes:
        return Groups(starting.start, starting.store, *sizes, **options).start_all(PROGRAM, *words), []

    return launch


def grouped_with_servers(*sizes: int, **options: object) -> Launch:
    def launch(starting: Starting, words: tuple[str, ...]) -> Processes:
        groups = ServedGroups(starting.start, starting.store, 1, *sizes, **options)
        return groups.start_all(PROGRAM, *words), groups.start_servers()

    return launch


def sharded() -> Launch:
    def launch(starting: Starting, words: tuple[str, ...]) -> Processes:
        found = environments(2, "all", shard_modules=["Core"])
        return [starting.start(PROGRAM, *words, environment=environment) for environment in found], []

    return launch


ROUNDS: dict[str, object] = {"kind": "diloco", "inner_steps": 3}
STREAMING: dict[str, object] = {"fragments": 2, "overlap_steps": 1, "mixing": 0.5, "wire": "int8"}
SHARD: dict[str, object] = {"shard": "all", "shard_modules": ["Core"]}
STRATEGIES = {
    "none": alone(),
    "all_reduce": averaging(2, 0),
    "sharded": sharded(),
    "continue": grouped(3, kind="all_reduce", on_worker_loss="continue"),
    "reduction_server": averaging(3, 3),
    "sandblaster": with_servers("sandblaster", 1),
    "downpour": with_servers("downpour", 2),
    "hogwild": grouped(2, 1),
    "diloco": grouped(2, 1, **ROUNDS),
    "diloco streaming": grouped(1, 1, **ROUNDS, **STREAMING),
    "diloco with servers": grouped_with_servers(1, 1, **ROUNDS),
    "diloco sharded": grouped(2, 2, **ROUNDS, **SHARD),
}
NEEDS = {"diloco sharded": ("all-trained",)}
"""Additional words that the program needs, by strategy. Sharded DiLoCo is tested without frozen parameters."""
WORDS = ["compile", "reentrant", "checkpoint", "accumulate", "sparse", "dataclass", "lbfgs", "optimizers", "device"]
COMBINED = ("accumulate", "checkpoint", "dataclass", "optimizers")
"""Words that a strategy supports in combination."""
SPARSE_ON_SERVERS = "is sparse, and parameter servers take dense ones only."
REFUSED = {
    ("sandblaster", "lbfgs"): "Parameter servers cannot run torch.optim.LBFGS",
    ("downpour", "lbfgs"): "Parameter servers cannot run torch.optim.LBFGS",
    ("sharded", "lbfgs"): "LBFGS computes with all parameters in one vector",
    ("diloco sharded", "lbfgs"): "LBFGS computes with all parameters in one vector",
    ("sandblaster", "sparse"): SPARSE_ON_SERVERS,
    ("downpour", "sparse"): SPARSE_ON_SERVERS,
    ("continue", "sparse"): "a sparse gradient, which strategy.on_worker_loss: continue does not support",
    ("sharded", "sparse"): "The gradients of `table` are sparse, so they cannot be sharded.",
    ("diloco sharded", "sparse"): "The gradients of `table` are sparse, so they cannot be sharded.",
}
"""A part of the message with which the script exits, by strategy and word."""


def check_learns(starting: Starting, strategy: str, *words: str) -> None:
    workers, others = STRATEGIES[strategy](starting, (*words, *NEEDS.get(strategy, ())))
    for output in outputs_of(*workers, *others)[: len(workers)]:
        losses = json.loads(output.splitlines()[-1])
        assert len(losses) >= 10
        assert all(map(math.isfinite, losses))
        assert sum(losses[-5:]) < sum(losses[:5]), losses


def check_is_refused(starting: Starting, strategy: str, message: str, *words: str) -> None:
    workers, _ = STRATEGIES[strategy](starting, (*words, *NEEDS.get(strategy, ())))
    outputs = [worker.communicate(timeout=DEADLINE_S)[0] for worker in workers]
    assert all(worker.returncode for worker in workers), outputs
    assert any(message in output and "UsageProblem" in output for output in outputs), outputs


@pytest.mark.parametrize(
    ("strategy", "dtype"),
    [
        *(pytest.param(strategy, "float64", marks=pytest.mark.proof) for strategy in STRATEGIES),
        *((strategy, "bfloat16") for strategy in STRATEGIES if strategy not in ("none", "diloco streaming")),
        pytest.param("none", "bfloat16", marks=pytest.mark.proof),
        pytest.param("diloco streaming", "bfloat16", marks=pytest.mark.proof),
    ],
)
def test_a_script_with_other_defaults_learns(starting: Starting, strategy: str, dtype: str) -> None:
    check_learns(starting, strategy, dtype, "device")


def test_a_loader_with_spawned_workers(starting: Starting) -> None:
    """Each spawned worker of the loader imports torch, so only this test uses spawned workers."""
    check_learns(starting, "all_reduce", "float64", "spawn")


@pytest.mark.parametrize("strategy", ["continue", "diloco streaming"])
def test_several_ways_of_training_together(starting: Starting, strategy: str) -> None:
    check_learns(starting, strategy, "float64", *COMBINED)


@pytest.mark.proof
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("word", [*WORDS, "spawn"])
def test_each_way_of_training_learns_or_is_refused(starting: Starting, strategy: str, word: str) -> None:
    refusal = REFUSED.get((strategy, word))
    if refusal is None:
        check_learns(starting, strategy, "float64", word)
    else:
        check_is_refused(starting, strategy, refusal, "float64", word)
