"""Tests of every strategy in scripts that change torch's defaults and other process-wide settings."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.join_stores import Served, serve_in_a_process
from tests.roles.processes import Start, outputs_of
from tests.roles.strategies.hogwild.test_strategy import Groups
from tests.roles.strategies.parameter_server.test_server_process import Cluster
from tests.roles.strategies.reduction_server.reduction_runs import Runs, runs

__all__ = ["runs"]

pytestmark = pytest.mark.train

PROGRAM = Path(__file__).parents[1] / "programs" / "foreign_settings.py"
DTYPES = ["float64", "bfloat16"]


@pytest.fixture
def store() -> Iterator[Served]:
    store = serve_in_a_process()
    yield store
    store.end()


def check_learns(outputs: list[str]) -> None:
    for output in outputs:
        losses = json.loads(output.splitlines()[-1])
        assert len(losses) >= 12
        assert all(map(math.isfinite, losses))
        assert sum(losses[-6:]) < sum(losses[:6]), losses


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reducers", [0, 3])
def test_averaging(runs: Runs, reducers: int, dtype: str) -> None:
    # Each of the loader's spawned workers imports torch, so only some cases use spawned workers.
    spawn = ["spawn"] * (dtype == "float64" and not reducers)
    check_learns(runs.topology(3 if reducers else 2, reducers).outputs("foreign_settings.py", dtype, *spawn))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strategy", ["sandblaster", "downpour"])
def test_parameter_servers(start: Start, tmp_path: Path, strategy: str, dtype: str) -> None:
    groups = 2 if strategy == "downpour" else 1
    cluster = Cluster(tmp_path, strategy, workers=2, servers=1, groups=groups)
    server = start(PROGRAM, dtype, environment=cluster.server(0))
    workers = [start(PROGRAM, dtype, environment=cluster.worker(rank)) for rank in range(2)]
    check_learns(outputs_of(*workers, server)[:-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_hogwild(start: Start, store: Served, dtype: str) -> None:
    workers = Groups(start, store, 2, 1).start_all(PROGRAM, dtype)
    check_learns(outputs_of(*workers))


def test_diloco(start: Start, store: Served) -> None:
    workers = Groups(start, store, 2, 1, kind="diloco", inner_steps=3).start_all(PROGRAM, "bfloat16")
    check_learns(outputs_of(*workers))
