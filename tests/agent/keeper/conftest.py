"""Fixtures for clusters of keepers. All processes of a cluster are killed at the end of the test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.keeper.keeper_cluster import KeeperCluster
from tests.fork_server import ForkServer
from tests.warm_python import write_client

Scenario = Callable[[KeeperCluster], Awaitable[None]]
RunScenario = Callable[[Scenario], None]


@pytest.fixture(scope="session")
def python_with_torch(tmp_path_factory: pytest.TempPathFactory, torch_for_hosts: ForkServer) -> str:
    """Returns the path of a `python` that has imported torch, for the training scripts of keepers."""
    folder = tmp_path_factory.mktemp("python")
    torch_for_hosts.serve(write_client(folder))
    return str(folder / "python")


@pytest.fixture
def run_scenario(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RunScenario]:
    """Returns a function that runs a scenario with a new cluster in an event loop.

    In tests that train, the cluster's `python` has imported torch.
    """
    cluster = KeeperCluster(tmp_path, os.urandom(6).hex())
    if request.node.get_closest_marker("train"):
        cluster.python = request.getfixturevalue("python_with_torch")

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            try:
                await scenario(cluster)
            finally:
                cluster.close()

        asyncio.run(main())

    yield run
    cluster.close()
