"""Tests of `on_worker_loss: continue` on GPUs: gradients are exchanged over NCCL, whose communicator is aborted after a
loss.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import KeeperCluster
from tests.agent.keeper.test_lost_workers import check_all_are_equal, check_survivors, lines, train
from tests.roles.on_gpus import GPU_MARKS

pytestmark = [*GPU_MARKS, pytest.mark.timeout(500)]


@pytest.mark.parametrize("reducers", [0, 1], ids=["nccl", "reducers"])
def test_survivors_of_a_worker_and_of_the_chief_continue_as_one_process_would(
    run_scenario: RunScenario, reducers: int
) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(cluster, a, 3, 14, "2:4:backward", "0:9:step", reducers=reducers, on_gpu=True)
        assert ended["state"] == "succeeded", ended
        check_survivors(a, [1], 14)
        assert [line["ranks"] for line in lines(a, 1)[:-1]] == [[0, 1, 2]] * 4 + [[0, 1]] * 6 + [[1]] * 4
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]

    run_scenario(scenario)


@pytest.mark.parametrize("place", ["forward", "backward", "step", "60"])
def test_a_lost_worker_returns_with_the_state_of_a_peer(run_scenario: RunScenario, place: str) -> None:
    """The worker is killed in the given phase of a step, or a number of milliseconds after the step has begun.

    In the latter case, kernels of the other workers may already be waiting on the GPU.
    """

    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(cluster, a, 3, 5, "returns=1", f"1:4:{place}", max_restarts=1, on_gpu=True)
        assert ended["state"] == "succeeded", ended
        assert check_all_are_equal(a, 3)[-5:] == [[0, 1, 2]] * 5
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]

    run_scenario(scenario)


def test_without_losses_the_result_is_bitwise_that_of_all_reduce(tmp_path: Path) -> None:
    digests = []
    for how in ("restart", "continue"):
        (tmp_path / how).mkdir()
        cluster = KeeperCluster(tmp_path / how, os.urandom(6).hex())

        async def scenario(cluster: KeeperCluster = cluster, how: str = how) -> None:
            (a,) = await cluster.add("gpu-a")
            ended = await train(cluster, a, 3, 20, how=how, on_gpu=True)
            assert ended["state"] == "succeeded", ended
            digests.append(lines(a, 0)[-1]["digest"])

        try:
            asyncio.run(scenario())
        finally:
            cluster.close()
    assert digests[0] == digests[1]
