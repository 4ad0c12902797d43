"""Tests of the runs that the daemon finds on its host's disk."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from torchyard_agent.daemon.runs import Runs
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.jsonrpc import RpcError


@pytest.mark.parametrize("record", [b"", b"[1]", b"7", b'{"record": 5}', b"\xff\x00" * 100])
@pytest.mark.parametrize("journal", [b"", b"\x00" * 500 + b"\n", b"[1]\n"])
def test_a_damaged_run_does_not_hide_others(tmp_path: Path, record: bytes, journal: bytes) -> None:
    for run_id in ("1-damaged", "2-whole"):
        Path(paths.run_dir(str(tmp_path), "gpu-a", run_id)).mkdir(parents=True)
    damaged, whole = (Path(paths.run_dir(str(tmp_path), "gpu-a", name)) for name in ("1-damaged", "2-whole"))
    (damaged / "run.json").write_bytes(record)
    (damaged / "journal.jsonl").write_bytes(journal)
    (whole / "run.json").write_text(json.dumps({"name": "digits", "record": {"primary": "gpu-a"}}))

    async def listed() -> list[tuple[str, str, str]]:
        found = await Runs(str(tmp_path), "gpu-a").list()
        return [(line["run_id"], line["name"], line["state"]) for line in found]

    assert asyncio.run(listed()) == [("1-damaged", "", "draft"), ("2-whole", "digits", "draft")]


def test_a_scripts_folder_beside_the_runs_is_no_run(tmp_path: Path) -> None:
    """Some public scripts download data to `../../data/mnist`, which creates a folder beside the run folders."""
    run = Path(paths.run_dir(str(tmp_path), "gpu-a", "20261123-042912-3f6a"))
    (run / "work").mkdir(parents=True)
    (run / "keeper.log").touch()
    (run / "work" / ".." / ".." / "data" / "mnist").mkdir(parents=True)

    runs = Runs(str(tmp_path), "gpu-a")

    assert runs.ids() == [run.name]
    assert [line["run_id"] for line in asyncio.run(runs.list())] == [run.name]


class KeeperExits(Runs):
    """The runs of a host on which the keeper exits while the daemon is looking for it."""

    async def keeper(self, run_id: str) -> Any:
        end = {"event": "run_ended", "state": "stopped", "reason": "by kim", "replicas": []}
        event = {"epoch": "e", "seq": 1, "time": "2026-11-22T12:00:00Z", **end}
        (Path(self.folder(run_id)) / "journal.jsonl").write_text(json.dumps(event) + "\n")
        return None


def test_a_run_whose_keeper_exits_during_the_request_has_its_journaled_end(tmp_path: Path) -> None:
    folder = Path(paths.run_dir(str(tmp_path), "gpu-a", "1-run"))
    folder.mkdir(parents=True)
    (folder / "keeper.log").touch()
    (shown,) = asyncio.run(KeeperExits(str(tmp_path), "gpu-a").list())
    assert (shown["state"], shown["alive"]) == ("stopped", False)


class SlowStart(Runs):
    """The runs of a host on which a keeper starts only when the test allows it."""

    def __init__(self, agent_dir: str, node: str, keeper: Any) -> None:
        super().__init__(agent_dir, node)
        self.starting = asyncio.Event()
        self.may_start = asyncio.Event()
        self._started = keeper

    async def _spawn_keeper(self, run_id: str, folder: str, archive: str) -> Any:
        Path(folder).mkdir(parents=True)
        Path(folder, "keeper.log").touch()
        self.starting.set()
        await self.may_start.wait()
        self._keepers[run_id] = self._started
        return self._started


class FakeKeeper:
    """A connection to a fake keeper, which answers calls or lets every call time out."""

    def __init__(self, status: dict[str, Any] | None) -> None:
        self._status = status
        self.closed = False

    async def call(self, method: str, params: dict[str, Any], timeout: float = 0.0) -> dict[str, Any]:
        if method == "status" and self._status is None:
            raise RpcError("no answer to status within 5 s", "timeout")
        return self._status or {}


@pytest.mark.parametrize("status", [{"metrics": {}}, None])
def test_a_slow_keeper_is_not_reported_as_dead(tmp_path: Path, status: dict[str, Any] | None) -> None:
    async def listed_meanwhile() -> list[dict[str, Any]]:
        runs = SlowStart(str(tmp_path), "gpu-a", FakeKeeper(status))
        preparing = asyncio.create_task(runs.prepare({"run_id": "1-run", "archive": "a"}))
        await runs.starting.wait()
        listing = asyncio.create_task(runs.list())
        await asyncio.sleep(0.05)
        runs.may_start.set()
        await preparing
        found: list[dict[str, Any]] = await listing
        return found

    (shown,) = asyncio.run(listed_meanwhile())
    assert shown["alive"]
