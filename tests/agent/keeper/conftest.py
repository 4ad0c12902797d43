"""A yard for each test: whatever it starts is gone when it ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.keeper.keeper_cluster import KeeperCluster

Story = Callable[[KeeperCluster], Awaitable[None]]
Play = Callable[[Story], None]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """Runs a test's story in an event loop, with a yard of its own."""
    yard = KeeperCluster(tmp_path, os.urandom(6).hex())

    def run(story: Story) -> None:
        async def told() -> None:
            try:
                await story(yard)
            finally:
                yard.close()

        asyncio.run(told())

    yield run
    yard.close()
