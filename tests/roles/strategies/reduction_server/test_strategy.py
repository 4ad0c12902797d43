"""Tests of the results of training with reducers, with real processes on the loopback interface."""

from __future__ import annotations

import json

import pytest

from tests.roles.processes import Keeper
from tests.roles.strategies.reduction_server.reduction_runs import Runs, digests, output_of, runs

__all__ = ["runs"]

pytestmark = pytest.mark.train


@pytest.mark.parametrize(
    ("reducers", "ranks", "how", "dtype", "tolerance"),
    [
        (3, (1, 1, 1), "through the reducers: it takes 1.00 times", "float64", 1e-12),
        (3, (1, 2, 1), "through the reducers: it takes 1.00 times", "float64", 1e-12),
        (1, (1, 1, 1), "through the reducers and the workers, which all sum a share: it takes 1.20", "float32", 1e-5),
    ],
    ids=["reducers", "a worker of two ranks", "mixed"],
)
def test_300_steps_equal_one_process_on_the_whole_batch_and_nothing_else_is_printed(
    runs: Runs, keeper: Keeper, reducers: int, ranks: tuple[int, ...], how: str, dtype: str, tolerance: float
) -> None:
    """In single precision, training also uses clipping by the norm and a learning-rate schedule.

    Two ranks of a worker first reduce locally. The reducers send reports, and exit when the trainers have finished.
    """
    clips = dtype == "float32"
    topology = runs.topology(3, reducers, ranks=ranks, report=keeper.listen().address)
    chief, *others = topology.outputs("large_batch.py", dtype, *["clip"] * clips)
    sentence, result = chief.splitlines()
    if clips:
        assert 0 < json.loads(result)["clipped"] < 300
        assert json.loads(result)["norms_differ"] < 1e-4
    assert f"reducer{'s' * (reducers > 1)} the exchange goes {how}" in sentence
    assert json.loads(result)["world_size"] == sum(ranks)
    assert json.loads(result)["difference"] <= tolerance
    assert not any(others)
    assert [output_of(reducer) for reducer in topology.reducers] == [""] * reducers
    reports = [(name, metrics) for name, _, metrics in keeper.received() if name.startswith("reducer")]
    assert {name for name, _ in reports} == {f"reducer-{number}" for number in range(reducers)}
    # A reducer reports no waiting time before the first rank has connected.
    assert all({"clients", "bytes_s"} <= metrics.keys() <= {"clients", "wait_s", "bytes_s"} for _, metrics in reports)
    # The last report of each reducer contains a waiting time.
    assert all("wait_s" in metrics for metrics in dict(reports).values())
    assert {name for name, metrics in reports if metrics["bytes_s"] > 0} == {name for name, _ in reports}
    assert max(metrics.get("wait_s", 0) for _, metrics in reports) > 0


def test_every_kind_of_parameter_is_the_same_on_all_ranks_in_every_run_and_plan(runs: Runs) -> None:
    """After each step, the parameters are equal bit for bit, for pure and mixed plans.

    Unused parameters cause no warnings. Forward passes use autocast.
    """
    pure = runs.topology(3, 3).outputs("reduced.py", "amp=1")
    expected = digests(pure[0])
    assert len(set(expected)) == 6
    assert all(digests(output) == expected for output in pure)
    mixed = runs.topology(3, 1).outputs("reduced.py", "amp=1")
    assert all(digests(output) == expected for output in mixed)
    for output in (*pure, *mixed):
        others = [line for line in output.splitlines() if not line.startswith("{")]
        assert all("the exchange goes" in line for line in others)
        assert len(others) == (output in (pure[0], mixed[0]))
