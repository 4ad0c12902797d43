"""Tests of downpour with worker groups that shard their model, by comparison with groups that do not.

Tests with a single rank are in `test_sharded_pair`.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.roles.join_stores import serve_in_a_process
from tests.roles.processes import DEADLINE_S, Start, outputs_of, wait_for
from tests.roles.strategies.diloco.test_served_strategy import ServedGroups
from tests.roles.strategies.diloco.test_sharded_groups import PROGRAM, check_equal_to_whole_models, whole
from tests.roles.strategies.diloco.test_strategy import done, results
from torchyard_roles.checkpoints.export import export_model

pytestmark = pytest.mark.train

COUNTS = PROGRAM.with_name("counts_sharded.py")
STEPS = 11


class ShardedGroups(ServedGroups):
    """Worker groups with two ranks per host, and servers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        peers = json.loads(self._peers)
        for number, trainer in enumerate(peers["trainers"]):
            trainer[1] = f"127.0.0.{1 + number // 2}"
        self._peers = json.dumps(peers)


@contextmanager
def served(start: Start, *sizes: int, **options: object) -> Iterator[ServedGroups]:
    """Provides groups of the given sizes with two servers, and a join store."""
    store = serve_in_a_process()
    try:
        yield ShardedGroups(start, store, 2, *sizes, **{"kind": "downpour", "shard": "all", **options})
    finally:
        store.end()


def run(start: Start, folder: Path, *sizes: int, steps: int = STEPS, **options: object) -> list[dict[str, Any]]:
    """Trains groups of the given sizes to the end; returns the result of each rank."""
    folder.mkdir(exist_ok=True)
    with served(start, *sizes, **options) as groups:
        servers = groups.start_servers()
        found = results(folder, *groups.start_all(PROGRAM, folder, steps, 0))
        outputs_of(*servers)
    return found


def test_a_sharded_group_equals_a_group_with_whole_models(start: Start, tmp_path: Path) -> None:
    plain = run(start, tmp_path / "plain", 2, shard="none")
    sharded = run(start, tmp_path / "sharded", 2)
    check_equal_to_whole_models(sharded, plain)
    assert len(sharded[0]["parts"]["blocks.0.0.weight"]) == 3
    assert len(sharded[1]["parts"]["blocks.0.0.weight"]) == 2


@pytest.mark.proof
def test_a_model_that_is_sharded_within_each_host_equals_one_that_is_sharded_over_all(
    start: Start, tmp_path: Path
) -> None:
    of_all = run(start, tmp_path / "all", 4)
    of_hosts = run(start, tmp_path / "host", 4, shard="host")
    for one, other in zip(of_hosts, of_all, strict=True):
        assert one["fed"] == other["fed"]
        torch.testing.assert_close(one["losses"], other["losses"], rtol=0, atol=1e-12)
    torch.testing.assert_close(whole(of_hosts[:2]), whole(of_all), rtol=0, atol=1e-12)
    assert [rank["parts"] for rank in of_hosts[:2]] == [rank["parts"] for rank in of_hosts[2:]]


@pytest.mark.proof
def test_exchanges_that_overlap_steps_equal_those_of_whole_models(start: Start, tmp_path: Path) -> None:
    """Group 1 makes no steps, because the result would otherwise depend on timing."""
    found = []
    for shard in ("none", "all"):
        folder = tmp_path / shard
        folder.mkdir()
        with served(start, 2, 2, shard=shard) as groups:
            servers = groups.start_servers()
            processes = [groups.start(rank, PROGRAM, folder, STEPS if rank < 2 else 0, 0) for rank in range(4)]
            found.append(results(folder, *processes)[:2])
            outputs_of(*servers)
    plain, sharded = found
    check_equal_to_whole_models(sharded, plain)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        pytest.param((2, 2), {}, id="groups of two"),
        pytest.param((2, 1), {"push_every": 2, "pull_every": 3}, id="a group of one rank, whose model is whole"),
        pytest.param((2, 2), {"warm_start_steps": 6}, id="warm start"),
    ],
)
def test_every_update_of_every_group_counts_once(
    start: Start, tmp_path: Path, sizes: tuple[int, ...], options: dict[str, object]
) -> None:
    with served(start, *sizes, max_staleness=10_000, **options) as groups:
        servers = groups.start_servers()
        found = results(tmp_path, *groups.start_all(COUNTS, tmp_path, 20, 0.01, "meta" if min(sizes) > 1 else ""))
        outputs_of(*servers)
    assert found[:2] == [{"least": -40.0, "most": -40.0}] * 2, "the chief's group, which ends last"


def stop_and_resume(
    start: Start, folder: Path, checkpoints: Path, program: Path, steps: int, *sizes: int, **options: object
) -> list[dict[str, Any]]:
    """Stops a run in the middle and resumes it with new servers; returns the result of each rank."""
    folder.mkdir(exist_ok=True)
    more = {"TORCHYARD_CHECKPOINTS": str(checkpoints), "TORCHYARD_RUN_DIR": str(folder)}
    with served(start, *sizes, **options) as groups:
        servers = groups.start_servers(**more)
        processes = groups.start_all(program, folder, steps, 0.05, **more)
        wait_for(lambda: min(done(folder, rank) for rank in range(sum(sizes))) >= 9, "the groups train", *processes)
        for process in processes:
            os.kill(process.pid, signal.SIGTERM)
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes), outputs
        outputs_of(*servers)
    assert max(done(folder, rank) for rank in range(sum(sizes))) < steps
    with served(start, *sizes, **options) as groups:
        servers = groups.start_servers(**more)
        found = results(folder, *groups.start_all(program, folder, steps, 0, **more))
        outputs_of(*servers)
    return found


@pytest.mark.proof
def test_a_stopped_run_of_one_sharded_group_resumes_exactly(start: Start, tmp_path: Path) -> None:
    steps, checkpoints = 26, tmp_path / "checkpoints"
    expected = run(start, tmp_path / "whole", 2, steps=steps)
    resumed = stop_and_resume(start, tmp_path / "stopped", checkpoints, PROGRAM, steps, 2)
    assert next(checkpoints.glob("step-*/.metadata")).exists()
    for one, other in zip(resumed, expected, strict=True):
        assert 0 < len(one["fed"]) < steps
        assert one["fed"] == other["fed"][-len(one["fed"]) :]
        assert one["losses"] == other["losses"][-len(one["losses"]) :]
        assert one["parts"] == other["parts"]
    assert export_model(checkpoints, tmp_path / "model.pt") == steps
    exported = torch.load(tmp_path / "model.pt", weights_only=True)
    torch.testing.assert_close(exported, whole(expected), rtol=0, atol=0)


@pytest.mark.proof
def test_a_stop_loses_no_update_of_the_chiefs_group(start: Start, tmp_path: Path) -> None:
    options = {"push_every": 5, "pull_every": 3}
    (first, second) = stop_and_resume(start, tmp_path, tmp_path / "checkpoints", COUNTS, 60, 2, **options)
    assert first == second == {"least": -60.0, "most": -60.0}


@pytest.mark.proof
def test_a_group_without_the_chief_resumes_from_its_own_checkpoint(start: Start, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    options = {"max_staleness": 10_000}
    found = stop_and_resume(start, tmp_path, checkpoints, COUNTS, 60, 2, 2, **options)
    assert next(checkpoints.glob("group-1/step-*/.metadata")).exists()
    assert found[0] == found[1]
    # The state that the servers saved with the chief may lack the last pushes of group 1, which stopped later.
    assert 60 + 50 <= -found[0]["most"] <= 2 * 60


@pytest.mark.proof
def test_a_killed_sharded_group_returns_and_the_others_continue(start: Start, tmp_path: Path) -> None:
    with served(start, 2, 2, max_staleness=10_000) as groups:
        servers = groups.start_servers()
        processes = groups.start_all(COUNTS, tmp_path, 100, 0.05)
        wait_for(lambda: min(done(tmp_path, rank) for rank in range(4)) >= 6, "the groups train", *processes)
        for process in processes[2:]:
            process.kill()
            process.wait()
        before = max(done(tmp_path, rank) for rank in (2, 3))
        returned = [groups.start(rank, COUNTS, tmp_path, 20, 0, generation=1) for rank in (2, 3)]
        found = results(tmp_path, *processes[:2], *returned)
        outputs_of(*servers)
    assert found[0] == found[1]
    assert found[0]["least"] == found[0]["most"]
    assert 100 + 20 + 5 <= -found[0]["most"] <= 100 + 20 + before
