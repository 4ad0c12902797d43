"""Tests of DiLoCo with worker groups that shard their model, by comparison with groups that do not."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.roles.join_stores import serve_in_a_process
from tests.roles.processes import DEADLINE_S, Start, outputs_of, wait_for
from tests.roles.strategies.diloco.test_served_strategy import ServedGroups
from tests.roles.strategies.diloco.test_strategy import PROGRAMS, done, groups_of, results
from torchyard_roles.checkpoints.export import export_model

pytestmark = pytest.mark.train

PROGRAM = PROGRAMS / "sharding" / "sharded_rounds.py"
STEPS = 11
STREAMING: dict[str, object] = {"fragments": 2, "overlap_steps": 1, "mixing": 0.5}


def run(
    start: Start, folder: Path, shard: str, steps: int = STEPS, checkpoints: Path | None = None, **options: object
) -> list[dict[str, Any]]:
    """Trains two groups of two ranks to the end; returns the result of each rank."""
    folder.mkdir(exist_ok=True)
    store = serve_in_a_process()
    try:
        groups = groups_of(start, store, 2, 2, inner_steps=4, shard=shard, **options)
        more = {} if checkpoints is None else {"TORCHYARD_CHECKPOINTS": str(checkpoints)}
        return results(folder, *groups.start_all(PROGRAM, folder, steps, 0, **more))
    finally:
        store.end()


def whole(group: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Assembles the parameters of a group from the parts of its ranks."""
    return {
        name: torch.cat([torch.tensor(rank["parts"][name], dtype=torch.float64) for rank in group])
        for name in group[0]["parts"]
    }


def check_equal_to_whole_models(sharded: list[dict[str, Any]], plain: list[dict[str, Any]]) -> None:
    for number, (one, other) in enumerate(zip(sharded, plain, strict=True)):
        assert one["fed"] == other["fed"]
        torch.testing.assert_close(one["losses"], other["losses"], rtol=0, atol=1e-12)
        torch.testing.assert_close(whole(sharded[number // 2 * 2 :][:2]), whole([other]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options", [pytest.param({}, id="blocking", marks=pytest.mark.proof), pytest.param(STREAMING, id="streaming")]
)
def test_sharded_groups_equal_groups_with_whole_models(
    start: Start, tmp_path: Path, options: dict[str, object]
) -> None:
    plain = run(start, tmp_path / "plain", "none", **options)
    sharded = run(start, tmp_path / "sharded", "all", **options)
    check_equal_to_whole_models(sharded, plain)
    assert len(sharded[0]["parts"]["blocks.0.0.weight"]) == 3
    assert len(sharded[1]["parts"]["blocks.0.0.weight"]) == 2


def test_a_stopped_run_of_sharded_groups_resumes_exactly(start: Start, tmp_path: Path) -> None:
    """The second group is two steps ahead and waits for the average of a fragment, which the first one never sends."""
    expected = run(start, tmp_path / "whole", "all", 26, **STREAMING)
    checkpoints, folder = tmp_path / "checkpoints", tmp_path / "stopped"
    folder.mkdir()
    store = serve_in_a_process()
    try:
        groups = groups_of(start, store, 2, 2, inner_steps=4, shard="all", **STREAMING)
        more = {"TORCHYARD_CHECKPOINTS": str(checkpoints), "TORCHYARD_RUN_DIR": str(tmp_path)}
        held = [{**more, "HOLD": "9"}] * 2 + [more] * 2
        processes = [groups.start(rank, PROGRAM, folder, 26, 0, **each) for rank, each in enumerate(held)]
        expected_steps = [9, 9, 11, 11]
        wait_for(lambda: [done(folder, rank) for rank in range(4)] == expected_steps, "the groups train", *processes)
        for process in processes:
            os.kill(process.pid, signal.SIGTERM)
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * 4, outputs
    finally:
        store.end()
    assert [done(folder, rank) for rank in range(4)] == expected_steps
    assert next(checkpoints.glob("step-*/.metadata")).exists()
    assert next(checkpoints.glob("group-1/step-*/.metadata")).exists()
    resumed = run(start, folder, "all", 26, checkpoints, **STREAMING)
    for one, other in zip(resumed, expected, strict=True):
        assert 0 < len(one["fed"]) < 26
        assert one["fed"] == other["fed"][-len(one["fed"]) :]
        assert one["losses"] == other["losses"][-len(one["losses"]) :]
        assert one["parts"] == other["parts"]
    assert export_model(checkpoints, tmp_path / "model.pt") == 26
    exported = torch.load(tmp_path / "model.pt", weights_only=True)
    torch.testing.assert_close(exported, whole(expected[:2]), rtol=0, atol=0)


@pytest.mark.proof
def test_with_servers_the_result_is_the_same(start: Start, tmp_path: Path) -> None:
    expected = run(start, tmp_path / "plain", "all")
    folder = tmp_path / "served"
    folder.mkdir()
    store = serve_in_a_process()
    try:
        groups = ServedGroups(start, store, 1, 2, 2, inner_steps=4, shard="all")
        servers = groups.start_servers()
        found = results(folder, *groups.start_all(PROGRAM, folder, STEPS, 0))
        outputs_of(*servers)
    finally:
        store.end()
    assert [rank["parts"] for rank in found] == [rank["parts"] for rank in expected]


@pytest.mark.proof
def test_a_killed_group_returns_with_the_parameters_of_the_others(start: Start, tmp_path: Path) -> None:
    store = serve_in_a_process()
    try:
        groups = groups_of(start, store, 2, 2, inner_steps=4, shard="all")
        processes = groups.start_all(PROGRAM, tmp_path, 60, 0.05)
        wait_for(lambda: min(done(tmp_path, rank) for rank in range(4)) >= 6, "the groups train", *processes)
        for process in processes[2:]:
            process.kill()
            process.wait()
        returned = [groups.start(rank, PROGRAM, tmp_path, 60, 0, generation=1) for rank in (2, 3)]
        found = results(tmp_path, *processes[:2], *returned)
    finally:
        store.end()
    assert [rank["parts"] for rank in found[:2]] == [rank["parts"] for rank in found[2:]]
    assert len(found[0]["fed"]) == 60


def test_a_frozen_parameter_is_refused_by_its_name(start: Start, tmp_path: Path) -> None:
    store = serve_in_a_process()
    try:
        groups = groups_of(start, store, 2, 2, inner_steps=4, shard="all")
        processes = groups.start_all(PROGRAM, tmp_path, 4, 0, "frozen")
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        store.end()
    assert [process.returncode for process in processes] == [1] * 4, outputs
    sentence = "No optimizer trains the parameter `first.bias`, which diloco does not support with strategy.shard."
    assert all(sentence in output for output in outputs), outputs
