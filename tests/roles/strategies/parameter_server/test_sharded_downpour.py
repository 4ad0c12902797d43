"""Tests of downpour with worker groups that shard their model, compared with the same run with whole models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.roles.join_stores import serve_in_a_process
from tests.roles.processes import Start, outputs_of
from tests.roles.strategies.diloco.test_served_strategy import ServedGroups
from tests.roles.strategies.diloco.test_sharded_groups import PROGRAM, check_equal_to_whole_models
from tests.roles.strategies.diloco.test_strategy import results

pytestmark = pytest.mark.train

STEPS = 11


def run(
    start: Start, folder: Path, shard: str, sizes: tuple[int, ...] = (2,), *arguments: object, **options: object
) -> list[dict[str, Any]]:
    """Trains groups of the given sizes with two servers to the end; returns the result of each rank."""
    folder.mkdir(exist_ok=True)
    store = serve_in_a_process()
    try:
        groups = ServedGroups(start, store, 2, *sizes, kind="downpour", shard=shard, **options)
        servers = groups.start_servers()
        found = results(folder, *groups.start_all(PROGRAM, folder, STEPS, 0, *arguments))
        outputs_of(*servers)
    finally:
        store.end()
    return found


def test_a_sharded_group_equals_a_group_with_whole_models(start: Start, tmp_path: Path) -> None:
    plain = run(start, tmp_path / "plain", "none")
    sharded = run(start, tmp_path / "sharded", "all")
    check_equal_to_whole_models(sharded, plain)
    assert len(sharded[0]["parts"]["blocks.0.0.weight"]) == 3
    assert len(sharded[1]["parts"]["blocks.0.0.weight"]) == 2
