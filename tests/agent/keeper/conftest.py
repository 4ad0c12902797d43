"""Fixtures for clusters of keepers. All processes of a cluster are killed at the end of the test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.keeper.keeper_cluster import KeeperCluster

Scenario = Callable[[KeeperCluster], Awaitable[None]]
RunScenario = Callable[[Scenario], None]


@pytest.fixture
def run_scenario(tmp_path: Path) -> Iterator[RunScenario]:
    """Returns a function that runs a scenario with a new cluster in an event loop."""
    cluster = KeeperCluster(tmp_path, os.urandom(6).hex())

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            try:
                await scenario(cluster)
            finally:
                cluster.close()

        asyncio.run(main())

    yield run
    cluster.close()
