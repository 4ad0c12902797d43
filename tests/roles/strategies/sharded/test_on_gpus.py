"""Tests of sharded models on GPUs: ranks exchange shards over NCCL, and save checkpoints over gloo."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.on_gpus import GPU_MARKS, interpreters
from tests.roles.processes import Start
from tests.roles.strategies.sharded.test_strategy import (
    check_equal,
    check_equal_states,
    check_save_in_the_middle,
    errors_of,
    run,
)

pytestmark = GPU_MARKS


@pytest.fixture
def start() -> Iterator[Start]:
    with interpreters() as found:
        yield found.start


@pytest.mark.parametrize("offload", [False, True])
def test_sharding_equals_the_unsharded_run(start: Start, offload: bool) -> None:
    plain = run(start, 2, "none", 8, "clip", "buffers")
    check_equal(run(start, 2, "all", 8, "clip", "buffers", shard_offload=offload), plain)


def test_a_run_resumes_with_and_without_shards(start: Start, tmp_path: Path) -> None:
    whole = run(start, 2, "none", 6)
    run(start, 2, "all", 2, "meta", "save=1", checkpoints=tmp_path)
    run(start, 1, "all", 4, checkpoints=tmp_path)
    check_equal_states(run(start, 2, "all", 6, checkpoints=tmp_path), whole)


def test_a_step_with_nan_ends_all_ranks_one_step_later(start: Start) -> None:
    for output in errors_of(start, 2, "all", 4, "nan=2"):
        assert "The gradients of step 2 are NaN or infinite" in output


@pytest.mark.parametrize("offload", [False, True])
def test_a_save_in_the_background_has_the_values_of_its_step(start: Start, tmp_path: Path, offload: bool) -> None:
    check_save_in_the_middle(start, tmp_path, shard_offload=offload)
