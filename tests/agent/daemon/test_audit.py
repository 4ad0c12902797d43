"""Tests of a host's audit log: its entries and size limit, damaged lines, and write errors."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from torchyard_agent.daemon import audit
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.jsonrpc import RpcError

NODE = "gpu-a"


@pytest.fixture
def agent_dir(tmp_path: Path) -> str:
    folder_of(str(tmp_path)).mkdir(parents=True)
    return str(tmp_path)


def folder_of(agent_dir: str, node: str = NODE) -> Path:
    return Path(paths.host_dir(agent_dir, node))


def acts(agent_dir: str, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(act.get(name) for name in ("what", "by", "from", *names)) for act in audit.read(agent_dir, NODE)]


def test_a_start_is_a_deploy_an_upgrade_or_only_a_start(agent_dir: str) -> None:
    audit.note_start(agent_dir, NODE, "1.0", "aa", "kim@laptop")
    audit.note_start(agent_dir, NODE, "1.0", "aa", "")
    audit.note(agent_dir, NODE, "retire", "lee@tower")
    audit.note_start(agent_dir, NODE, "1.1", "bb", "lee@tower")
    assert acts(agent_dir, "version", "before") == [
        ("deploy", "kim", "laptop", "1.0", None),
        ("start", "", "", "1.0", None),
        ("retire", "lee", "tower", None, None),
        ("upgrade", "lee", "tower", "1.1", "1.0"),
    ]
    assert {act["uid"] for act in audit.read(agent_dir, NODE)} == {os.getuid()}


def test_the_size_of_the_audit_log_is_bounded(agent_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_BYTES", 2000)
    for number in range(200):
        audit.note(agent_dir, NODE, "remove", "kim@laptop", run_id=str(number))
    folder = folder_of(agent_dir)
    assert sorted(path.name for path in folder.iterdir()) == ["audit.1.jsonl", "audit.jsonl"]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2 * 2200
    kept = [int(act["run_id"]) for act in audit.read(agent_dir, NODE)]
    assert kept == list(range(kept[0], 200))
    assert [act["run_id"] for act in audit.read(agent_dir, NODE, last=2)] == ["198", "199"]


def test_an_incomplete_line_is_skipped(agent_dir: str) -> None:
    audit.note(agent_dir, NODE, "retire", "kim@laptop")
    with (folder_of(agent_dir) / "audit.jsonl").open("a") as file:
        file.write('{"what": "rem\n')
    audit.note(agent_dir, NODE, "retire", "lee@tower")
    assert [act[1] for act in acts(agent_dir)] == ["kim", "lee"]


def test_a_write_error_does_not_prevent_the_act(agent_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    audit.note(agent_dir, "undeployed", "undeploy", "kim@laptop")
    assert not folder_of(agent_dir, "undeployed").exists()
    assert capsys.readouterr().err == ""
    (folder_of(agent_dir) / "audit.jsonl").mkdir()
    audit.note(agent_dir, NODE, "remove", "kim@laptop")
    assert "remove by kim@laptop could not be noted" in capsys.readouterr().err


def test_successful_calls_that_change_the_host_are_noted(agent_dir: str) -> None:
    async def done(connection: Any, params: dict[str, Any]) -> Any:
        params.pop("run_id", None)
        return {}

    async def refused(connection: Any, params: dict[str, Any]) -> Any:
        raise RpcError("a run lives there", "run_alive")

    methods: dict[str, Any] = {"run.abort": done, "run.remove": refused, "undeploy": refused, "run.list": done}
    watched = audit.watch(agent_dir, NODE, methods)

    async def story() -> Any:
        connection: Any = None
        await watched["run.abort"](connection, {"run_id": "r1", "by": "kim@laptop"})
        await watched["run.list"](connection, {})
        for name in ("run.remove", "undeploy"):
            with pytest.raises(RpcError):
                await watched[name](connection, {"run_id": "r1", "by": "lee@tower"})
        return await watched["audit.read"](connection, {"last": 10})

    read = asyncio.run(story())
    assert [(act["what"], act.get("run_id"), act.get("refused")) for act in read] == [
        ("take_back", "r1", None),
        ("undeploy", None, "run_alive"),
    ]
