"""Tests, with real keepers, of launches that start keepers and interpreters before the run is prepared."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.keeper.keeper_cluster import AGENT, SECRET
from tests.waiting import eventually
from torchyard_agent import unix_socket_rpc
from torchyard_agent.daemon.runs import Runs
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.jsonrpc import RpcError

RUN_ID = "20260101-warm"
ARCHIVE = "a" * 64
Scenario = Callable[[Runs], Awaitable[None]]


@pytest.fixture
def run_scenario(tmp_path: Path) -> Callable[[Scenario], None]:
    """Calls a scenario with the runs of a host, and aborts the run with RUN_ID afterwards."""
    archive = Path(paths.archive_dir(str(tmp_path), ARCHIVE))
    archive.parent.mkdir(parents=True)
    archive.symlink_to(AGENT)

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            runs = Runs(str(tmp_path), "gpu-a")
            try:
                await scenario(runs)
            finally:
                with contextlib.suppress(RpcError):  # The keeper may exit during this call.
                    if await runs.keeper(RUN_ID) is not None:
                        await runs.forward("abort", {"run_id": RUN_ID})
                await eventually(lambda: not waiting())

        asyncio.run(main())

    return run


def waiting() -> list[int]:
    """Returns the PIDs of the run's interpreters.

    A process between fork and exec is not found, because it has no environment yet.
    """
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"TORCHYARD_RUN_ID={RUN_ID}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def warm() -> dict[str, Any]:
    rank = {"rank": 0, "local_rank": 0, "argv": [sys.executable, "script.py"], "env": {}}
    replicas = [{"name": "worker-0", "ranks": [rank]}]
    wanted = {"run_id": RUN_ID, "host": "gpu-a", "replicas": replicas, "run_dir": "<folder>", "imports": ["colorsys"]}
    return {**wanted, "archive": ARCHIVE}


def prepare() -> dict[str, Any]:
    none = dict.fromkeys(("snapshot", "port_range", "interface", "towards"))
    wanted = {"run_id": RUN_ID, "name": "test", "host": "gpu-a", "secret": SECRET, "gpus": [], "ports": 1}
    return {**wanted, **none, "data_address": "127.0.0.1", "record": {}, "archive": ARCHIVE}


def test_prepare_uses_the_keeper_that_warm_has_started(
    run_scenario: Callable[[Scenario], None],
) -> None:
    async def scenario(runs: Runs) -> None:
        await runs.warm(warm())
        assert len(await eventually(waiting)) == 1
        assert await runs.list() == []
        prepared = await runs.prepare(prepare())
        runs.end_warm(RUN_ID)  # This call has no effect after `prepare`.
        assert await eventually(lambda: _parents(waiting())) == [prepared["pid"]]
        assert [line["name"] for line in await runs.list()] == ["test"]

    run_scenario(scenario)


def _parents(pids: list[int]) -> list[int]:
    return [int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids]


def test_a_warm_launch_ends_with_its_connection(run_scenario: Callable[[Scenario], None], tmp_path: Path) -> None:
    async def scenario(runs: Runs) -> None:
        await runs.warm(warm())
        await eventually(waiting)
        runs.end_warm(RUN_ID)
        await eventually(lambda: not waiting())
        await eventually(lambda: not Path(paths.run_dir(str(tmp_path), "gpu-a", RUN_ID)).exists())

    run_scenario(scenario)


def test_a_launch_that_reconnects_gets_a_new_keeper(
    run_scenario: Callable[[Scenario], None],
) -> None:
    async def scenario(runs: Runs) -> None:
        await runs.warm(warm())
        first = _parents(await eventually(waiting))
        runs.end_warm(RUN_ID)
        prepared = await runs.prepare(prepare())
        assert prepared["pid"] not in first
        assert not waiting()

    run_scenario(scenario)


def test_a_warm_keeper_that_has_died_is_replaced(run_scenario: Callable[[Scenario], None]) -> None:
    async def scenario(runs: Runs) -> None:
        await runs.warm(warm())
        (first,) = _parents(await eventually(waiting))
        os.kill(first, 9)
        await eventually(lambda: not runs.is_alive(RUN_ID))
        assert (await runs.prepare(prepare()))["pid"] != first

    run_scenario(scenario)


class ExpiredKeeper:
    """A connection to a keeper whose lease has expired and which is about to exit."""

    closed = False

    async def call(self, method: str, params: dict[str, Any], timeout: float = 0.0) -> Any:
        asyncio.get_running_loop().call_later(0.1, setattr, self, "closed", True)
        raise RpcError("gpu-a gave up the launch", "lease_lapsed")


def test_a_keeper_whose_lease_has_expired_is_replaced(run_scenario: Callable[[Scenario], None]) -> None:
    async def scenario(runs: Runs) -> None:
        leaving: Any = ExpiredKeeper()
        runs._warm.add(RUN_ID)
        runs._keepers[RUN_ID] = leaving
        assert (await runs.prepare(prepare()))["run_dir"].endswith(RUN_ID)
        assert leaving.closed

    run_scenario(scenario)


def test_begin_after_an_abort_reports_that_the_launch_was_given_up(
    run_scenario: Callable[[Scenario], None],
) -> None:
    async def scenario(runs: Runs) -> None:
        await runs.prepare(prepare())
        await runs.forward("renew", {"run_id": RUN_ID})
        await runs.forward("abort", {"run_id": RUN_ID})
        await eventually(lambda: not runs.is_alive(RUN_ID))
        for method in ("start", "join"):
            with pytest.raises(RpcError, match=f"gpu-a gave up the launch of run {RUN_ID}: it was cancelled, or"):
                await runs.begin(method, {"run_id": RUN_ID})
        with pytest.raises(RpcError, match="is over"):
            await runs.forward("renew", {"run_id": RUN_ID})

    run_scenario(scenario)


@pytest.mark.parametrize("method", ["start", "join"])
def test_begin_reports_a_keeper_that_exits_before_it_answers(
    run_scenario: Callable[[Scenario], None], method: str
) -> None:
    async def scenario(runs: Runs) -> None:
        path = f"\0{RUN_ID}-exiting"
        exiting = await asyncio.start_unix_server(lambda _, writer: writer.close(), path)
        runs._keepers[RUN_ID] = await unix_socket_rpc.connect(path)
        with pytest.raises(RpcError, match=f"gpu-a gave up the launch of run {RUN_ID}") as refused:
            await runs.begin(method, {"run_id": RUN_ID})
        assert refused.value.code == "run_over"
        exiting.close()

    run_scenario(scenario)


@pytest.mark.parametrize("method", ["start", "join"])
def test_a_retiring_daemon_waits_for_a_prepared_launch(run_scenario: Callable[[Scenario], None], method: str) -> None:
    async def scenario(runs: Runs) -> None:
        may_answer = asyncio.Event()

        class Keeper:
            closed = False

            async def call(self, method: str, params: dict[str, Any], timeout: float = 0.0) -> Any:
                if method in ("start", "join"):
                    await may_answer.wait()
                    self.closed = True
                    del runs._keepers[RUN_ID]
                return {}

        keeper: Any = Keeper()
        runs._warm.add(RUN_ID)
        runs._keepers[RUN_ID] = keeper
        await runs.prepare(prepare())
        replaced = asyncio.ensure_future(runs.wait_for_launches(60))
        await asyncio.wait({replaced}, timeout=0.2)
        assert not replaced.done()
        beginning = asyncio.ensure_future(runs.begin(method, {"run_id": RUN_ID}))
        await asyncio.wait({replaced}, timeout=0.2)
        # The daemon must not be replaced before the keeper has answered: closing the connection would lose the answer.
        assert not replaced.done()
        may_answer.set()
        await asyncio.wait_for(replaced, 60)
        await beginning

    run_scenario(scenario)


def test_a_retiring_daemon_does_not_wait_for_an_aborted_launch(
    run_scenario: Callable[[Scenario], None],
) -> None:
    async def scenario(runs: Runs) -> None:
        await runs.wait_for_launches(60)
        await runs.prepare(prepare())
        replaced = asyncio.ensure_future(runs.wait_for_launches(60))
        await runs.forward("abort", {"run_id": RUN_ID})
        await asyncio.wait_for(replaced, 30)
        await runs.wait_for_launches(0.1)

    run_scenario(scenario)


def test_prepare_waits_for_a_keeper_that_is_starting(run_scenario: Callable[[Scenario], None]) -> None:
    async def scenario(runs: Runs) -> None:
        rising = asyncio.ensure_future(runs.warm(warm()))
        await asyncio.sleep(0)
        assert runs.is_starting(RUN_ID)
        prepared = await runs.prepare(prepare())
        await asyncio.wait({rising})
        assert prepared["run_dir"].endswith(RUN_ID)

    run_scenario(scenario)


def test_a_launch_that_was_aborted_is_not_started_early(run_scenario: Callable[[Scenario], None]) -> None:
    async def scenario(runs: Runs) -> None:
        with pytest.raises(RpcError, match="is over"):
            await runs.forward("abort", {"run_id": RUN_ID})
        with pytest.raises(RpcError, match="aborted"):
            await runs.warm(warm())
        assert not waiting()

    run_scenario(scenario)
