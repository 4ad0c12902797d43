"""Tests of the parts into which each strategy divides a step's time: computing, exchange, and waiting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.roles.join_stores import Served, serve_in_a_process
from tests.roles.processes import Start, free_port, output_of, trainer_environment
from tests.roles.strategies.hogwild.test_strategy import Groups
from tests.roles.strategies.parameter_server.test_server_process import Cluster
from tests.roles.strategies.reduction_server.reduction_runs import Runs, runs
from torchyard_roles.environment import read
from torchyard_roles.strategies.all_reduce import AllReduce

__all__ = ["runs"]

pytestmark = pytest.mark.train

PROGRAM = Path(__file__).parents[1] / "programs" / "timed.py"
SLOW = 1
LONGER_S = 0.5
"""A delay in seconds that is much longer than a rank may have to wait for a CPU on a busy machine."""
STEPS = 10
"""The number of steps; the last two take longer."""
LATE_S = 0.05
"""Seconds by which the script's reading of its clock after the first or last step may be late on a busy machine."""


@pytest.fixture
def start(start_forked: Start) -> Start:
    return start_forked


@pytest.fixture
def store() -> Iterator[Served]:
    store = serve_in_a_process()
    yield store
    store.end()


def arguments() -> tuple[str, str, str]:
    return str(STEPS), str(SLOW), str(LONGER_S)


def check_sums(ranks: list[list[dict[str, Any]]]) -> None:
    for steps in ranks:
        assert "compute_s" not in steps[0] or steps[0]["compute_s"] > 0  # The first step includes the warm-up.
        parts = [[metrics[name] for name in ("compute_s", "exchange_s", "wait_s")] for metrics in steps[1:]]
        assert min(map(min, parts)) >= 0
        assert sum(map(sum, parts)) == pytest.approx(took(steps), rel=0.1, abs=LATE_S)


def took(steps: list[dict[str, Any]]) -> float:
    """Returns the total time of the steps according to the script's own clock.

    Only the sum is exact: on a busy machine, a late reading of the clock makes one step longer and the next one
    shorter.
    """
    return sum(metrics["took_s"] for metrics in steps[1:])


def check_in_step(ranks: list[list[dict[str, Any]]]) -> None:
    """Asserts that the other ranks wait for the slow rank, but the slow rank does not wait."""
    check_sums(ranks)
    last = [steps[-1] for steps in ranks]
    for rank, metrics in enumerate(last):
        if rank == SLOW:
            assert metrics["compute_s"] > LONGER_S
            assert metrics["wait_s"] < LONGER_S / 2
        else:
            assert metrics["wait_s"] > LONGER_S / 2


@pytest.mark.parametrize(("workers", "reducers"), [(2, 0), (3, 3), (3, 1)], ids=["ring", "reducers", "mixed"])
def test_ranks_of_an_all_reduce_wait_for_the_slowest(runs: Runs, workers: int, reducers: int) -> None:
    outputs = runs.topology(workers, reducers).outputs("timed.py", *arguments())
    check_in_step([json.loads(output.splitlines()[-1]) for output in outputs])


@pytest.mark.parametrize("strategy", ["sandblaster", "downpour"])
def test_servers_say_how_long_they_waited_for_the_last_of_a_group(start: Start, tmp_path: Path, strategy: str) -> None:
    groups = 2 if strategy == "downpour" else 1
    cluster = Cluster(tmp_path, strategy, workers=2, servers=1, groups=groups)
    server = start(PROGRAM, *arguments(), environment=cluster.server(0))
    workers = [start(PROGRAM, *arguments(), environment=cluster.worker(rank)) for rank in range(2)]
    ranks = [json.loads(output_of(worker).splitlines()[-1]) for worker in workers]
    output_of(server)
    if groups == 1:
        check_in_step(ranks)
    else:  # Under downpour, groups do not wait for each other.
        check_sums(ranks)
        assert all(steps[-1]["wait_s"] < LONGER_S / 2 for steps in ranks)


def test_groups_of_hogwild_do_not_wait_but_the_ranks_of_one_group_do(start: Start, store: Served) -> None:
    workers = Groups(start, store, 2, 1).start_all(PROGRAM, *arguments())
    ranks = [json.loads(output_of(worker).splitlines()[-1]) for worker in workers]
    check_in_step(ranks[:2])
    check_sums(ranks[2:])
    assert ranks[2][-1]["wait_s"] < LONGER_S / 2


def test_alone_all_of_a_step_is_computing(start: Start) -> None:
    (steps,) = [json.loads(output_of(start(PROGRAM, "4", "0", "0.02")))]
    assert sum(metrics["compute_s"] for metrics in steps[1:]) == pytest.approx(took(steps), rel=0.1)
    assert not any("exchange_s" in metrics for metrics in steps)


def test_the_example_of_a_strategy_of_ones_own_reports_its_exchange(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = Path(__file__).parents[3] / "examples" / "local_sgd"
    code = f"""
import sys, json
sys.path.insert(0, {str(example)!r})
import torch, torchyard_roles as ty
from local_sgd import LocalSgd
cluster = ty.join(strategy=LocalSgd)
model = torch.nn.Linear(64, 64)
model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
metrics = []
for step in range(18):
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    metrics.append(cluster._progress.take(cluster._strategy.statistics()))
print(json.dumps(metrics))
"""
    port = free_port()
    workers = [start("-c", code, environment=trainer_environment(rank, 2, port)) for rank in range(2)]
    for worker in workers:
        steps = json.loads(output_of(worker).splitlines()[-1])
        assert [number for number, metrics in enumerate(steps) if metrics["exchange_s"] > 0] == [8, 16]
        assert all(metrics["compute_s"] > 0 for metrics in steps[1:])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_the_exchange_is_measured_there() -> None:
    torch.distributed.init_process_group(
        "cpu:gloo,cuda:nccl", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1
    )
    try:
        device = torch.device("cuda", 0)
        strategy = AllReduce(read({"RANK": "0", "WORLD_SIZE": "1"}))
        model = torch.nn.Linear(2048, 2048).to(device)
        strategy.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), device)
        for _ in range(3):
            model(torch.ones(8, 2048, device=device)).sum().backward()
        torch.cuda.synchronize()
        assert len(strategy._averager._events) == 3
        found = strategy.statistics()
        assert 0 < found["exchange_s"] + found["wait_s"] < 10
        assert strategy._averager._events == []
        strategy.leave()
    finally:
        torch.distributed.destroy_process_group()
