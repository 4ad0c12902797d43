"""Tests that requests trigger garbage collection at most once an hour."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from torchyard_agent.daemon import garbage_collection_trigger
from torchyard_agent.daemon.garbage_collection_trigger import GarbageCollectionTrigger
from torchyard_agent.unix_socket_rpc import Connection


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    begun: list[str] = []
    monkeypatch.setattr(garbage_collection_trigger, "AFTER_S", 0.0)
    monkeypatch.setattr(GarbageCollectionTrigger, "_start", lambda self: begun.append("begun"))
    return begun


def ask(folder: Path, times: int) -> None:
    async def method(connection: Connection, params: dict[str, Any]) -> Any:
        return params

    async def asking() -> None:
        watched = GarbageCollectionTrigger(str(folder), "gpu-a", "a" * 64).watch({"ask": method})
        for number in range(times):
            assert await watched["ask"](cast(Connection, None), {"number": number}) == {"number": number}
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)

    asyncio.run(asking())


def test_the_first_request_triggers_a_collection_and_the_next_ones_do_not(tmp_path: Path, started: list[str]) -> None:
    ask(tmp_path, 5)
    assert started == ["begun"]


def test_the_hour_is_counted_across_daemons(tmp_path: Path, started: list[str]) -> None:
    state = tmp_path / "hosts" / "gpu-a" / "housekeeping.json"
    state.parent.mkdir(parents=True)
    state.touch()
    ask(tmp_path, 2)
    assert started == []

    # The first recorded time is more than an hour old. The second one is in the future, as after the clock was set
    # back.
    for wrong in (-3700, +3700):
        os.utime(state, (time.time() + wrong,) * 2)
        ask(tmp_path, 2)
    assert started == ["begun", "begun"]
