"""Tests of downpour with sharded worker groups on GPUs: the ranks use NCCL, and the servers are on CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.on_gpus import GPU_MARKS, interpreters
from tests.roles.processes import Start
from tests.roles.strategies.diloco.test_sharded_groups import check_equal_to_whole_models
from tests.roles.strategies.parameter_server.test_sharded_downpour import run

pytestmark = GPU_MARKS


@pytest.fixture
def start() -> Iterator[Start]:
    with interpreters() as found:
        yield found.start


@pytest.mark.parametrize("offload", [False, True])
def test_a_sharded_group_equals_a_group_with_whole_models(start: Start, tmp_path: Path, offload: bool) -> None:
    plain = run(start, tmp_path / "plain", 2, shard="none")
    sharded = run(start, tmp_path / "sharded", 2, shard_offload=offload)
    check_equal_to_whole_models(sharded, plain)
