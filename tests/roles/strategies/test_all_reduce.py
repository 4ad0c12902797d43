"""Tests of synchronous training with real processes over gloo on the loopback interface."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.roles.processes import (
    DEADLINE_S,
    Keeper,
    Start,
    Train,
    bare_environment,
    free_port,
    output_of,
    trainer_environment,
)
from tests.roles.strategies.reduction_server.reduction_runs import Runs, digests, runs

__all__ = ["runs"]

pytestmark = pytest.mark.train

PROGRAMS = Path(__file__).parents[1] / "programs"
SAMPLES = 24


@pytest.mark.parametrize(("workers", "dtype", "tolerance"), [(3, "float64", 1e-12), (2, "float32", 1e-5)])
def test_300_synchronous_steps_equal_one_process_on_the_whole_batch(
    runs: Runs, workers: int, dtype: str, tolerance: float
) -> None:
    """In single precision, training also uses clipping by the norm and a learning-rate schedule."""
    clips = dtype == "float32"
    chief, *others = runs.topology(workers, 0).outputs("large_batch.py", dtype, *["clip"] * clips)
    result = json.loads(chief)
    if clips:
        assert 0 < result["clipped"] < 300
        assert result["norms_differ"] < 1e-4
    assert result["world_size"] == workers
    assert result["difference"] <= tolerance
    assert not any(others)  # Only the chief prints, and no rank prints a warning.


def test_any_model_trains_alike_on_all_ranks_without_warnings_about_unused_parameters(runs: Runs) -> None:
    """The model has shared, frozen, unused and sometimes used parameters, two dtypes, and a buffer."""
    outputs = runs.topology(2, 0).outputs("reduced.py")
    for output in outputs:
        assert all(line.startswith("{") for line in output.splitlines())
        assert len(set(digests(output))) == 6
        assert digests(output) == digests(outputs[0])


def test_a_step_with_nan_is_left_out_by_all_or_ends_all(runs: Runs) -> None:
    outputs = runs.topology(2, 0, on_nan="skip").outputs("reduced.py", "nan=2")
    assert digests(outputs[0]) == digests(outputs[1])
    assert all(json.loads(output.splitlines()[-1])["statistics"]["skipped"] == 1 for output in outputs)
    for worker in runs.topology(2, 0, on_nan="fail").train("reduced.py", "nan=2"):
        output, _ = worker.communicate(timeout=DEADLINE_S)
        assert worker.returncode == 1
        assert "The gradients of step 3 are NaN or infinite in 7 of 7 parameters, the first being first." in output
        assert len(digests(output)) == 2


def check_shares(outputs: list[str], workers: int) -> None:
    seen = [json.loads(output) for output in outputs]
    assert [each["rank"] for each in seen] == list(range(workers))
    assert [each["index"] for each in seen] == list(range(workers))
    assert [each["is_chief"] for each in seen] == [True] + [False] * (workers - 1)
    assert {each["world_size"] for each in seen} == {workers}
    assert {each["backend"] for each in seen} == {"gloo"}
    for epoch in (0, 1):
        assert sorted(sample for each in seen for sample in each["epochs"][epoch]) == list(range(SAMPLES))
    assert seen[0]["epochs"][0] != seen[0]["epochs"][1]
    assert len({each["weight"] for each in seen}) == 1
    for each in seen:
        assert each["names"] == ["0.bias", "0.weight"]  # The names do not have the prefix "module." of DDP.
        assert each["layers"] == [1, "Linear", True, True]
        assert each["same_method"]
        assert not each["group_after"]


def test_workers_share_the_data_report_and_part_cleanly(train: Train, keeper: Keeper) -> None:
    outputs = train(PROGRAMS / "shares.py", 2, TORCHYARD_REPORT=keeper.address)
    check_shares(outputs, workers=2)
    reports = keeper.received()
    for replica in ("worker-0", "worker-1"):
        mine = [metrics for name, _, metrics in reports if name == replica]
        assert mine[0]["step"] == 1
        assert mine[-1]["step"] == 3  # 24 samples for 2 workers in batches of 4 are 3 steps.
        assert mine[-1]["loss"] >= 0
        assert mine[-1]["throughput"] > 0


def test_it_trains_under_plain_torchrun(tmp_path: Path) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    subprocess.run(
        [
            torchrun,
            "--nproc-per-node=2",
            "--master-addr=127.0.0.1",
            f"--master-port={free_port()}",
            f"--log-dir={tmp_path}",
            "--redirects=3",
            PROGRAMS / "shares.py",
        ],
        env={**bare_environment(), "CUDA_VISIBLE_DEVICES": ""},
        timeout=DEADLINE_S,
        check=True,
    )
    check_shares([next(tmp_path.rglob(f"{rank}/stdout.log")).read_text() for rank in range(2)], workers=2)


def test_a_plain_ddp_script_sees_the_trainers_world_and_an_evaluator_none(start: Start) -> None:
    port = free_port()
    trainers = [start(PROGRAMS / "plain_ddp.py", environment=trainer_environment(rank, 2, port)) for rank in range(2)]
    evaluator = start(PROGRAMS / "plain_ddp.py", environment={"TORCHYARD_ROLE": "evaluator"})
    seen = [json.loads(output_of(process).splitlines()[-1]) for process in trainers]
    assert [each["ranks"] for each in seen] == [[0, 1], [0, 1]]
    assert all(each["same_model"] and each["world_size"] == 2 for each in seen)
    scored = json.loads(output_of(evaluator).splitlines()[-1])
    assert scored["scored"] > 0
    assert scored["WORLD_SIZE"] is None


def test_a_worker_that_dies_of_an_exception_takes_the_others_along_at_once(start: Start, keeper: Keeper) -> None:
    port = free_port()
    chief, failing = (
        start(
            PROGRAMS / "fails.py",
            environment=trainer_environment(rank, 2, port, TORCHYARD_REPORT=keeper.address),
        )
        for rank in range(2)
    )
    output, _ = failing.communicate(timeout=DEADLINE_S)
    assert failing.returncode == 1
    assert "ValueError: the third step fails" in output
    # The chief ends because the connection is closed, not because of a timeout of many minutes.
    chief.communicate(timeout=60)
    assert chief.returncode == 1
    steps = [metrics["step"] for replica, _, metrics in keeper.received() if replica == "worker-1"]
    assert steps[-1] == 2
