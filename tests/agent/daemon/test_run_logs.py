"""Tests of reading logs from a byte offset."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchyard_agent.daemon import run_logs
from torchyard_agent.protocol.jsonrpc import RpcError


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "worker-0.log"
    file.write_bytes(b"one\ntwo\nthree\n")
    return file


def read(log: Path, has_ended: Callable[[], bool] = lambda: False, **params: Any) -> dict[str, Any]:
    asked = {"replica": "worker-0", "offset": 0, **params}
    answer = asyncio.run(run_logs.read_log(str(log.parent.parent), asked, has_ended))
    return {**answer, "data": base64.b64decode(answer["data"])}


def test_a_piece_from_an_offset_on(log: Path) -> None:
    answer = read(log, offset=4, limit=4)

    assert (answer["data"], answer["offset"], answer["next"], answer["size"]) == (b"two\n", 4, 8, 14)
    assert not answer["ended"]


def test_a_negative_offset_counts_from_the_end(log: Path) -> None:
    assert read(log, offset=-6)["data"] == b"three\n"
    assert read(log, offset=-600)["data"] == b"one\ntwo\nthree\n"


def test_the_end_is_said_only_with_the_last_byte(log: Path) -> None:
    assert not read(log, lambda: True, limit=4)["ended"]
    assert read(log, lambda: True, offset=4)["ended"]


def test_times_are_those_of_the_piece_or_of_all_that_follows(log: Path) -> None:
    log.with_name("worker-0.log.times").write_bytes(b"%16d %14.3f\n%16d %14.3f\n" % (4, 10.0, 8, 20.0))
    os.utime(log, (30.0, 30.0))

    assert read(log, limit=4)["times"] == [(4, 10.0)]
    assert read(log, offset=4)["times"] == [(8, 20.0), (14, 30.0)]
    assert read(log, limit=1, times_to_end=True)["times"] == [(4, 10.0), (8, 20.0), (14, 30.0)]
    assert read(log, offset=14)["times"] == []


def test_an_index_is_no_log(log: Path) -> None:
    log.with_name("worker-0.log.times").write_bytes(b"")

    assert run_logs.list_logs(str(log.parent.parent)) == [{"name": "worker-0.log", "size": 14}]


def test_waiting_ends_when_something_is_written(log: Path) -> None:
    async def write_while_waiting() -> dict[str, Any]:
        asked = {"replica": "worker-0", "offset": 14, "wait_s": 20}
        waiting = asyncio.create_task(run_logs.read_log(str(log.parent.parent), asked, lambda: False))
        await asyncio.sleep(0)
        with log.open("ab") as file:
            file.write(b"four\n")
        return await asyncio.wait_for(waiting, 10)

    assert base64.b64decode(asyncio.run(write_while_waiting())["data"]) == b"four\n"


def test_a_log_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "logs" / "worker-0.log")["size"] == 0


def test_an_offset_beyond_the_end_is_refused(log: Path) -> None:
    with pytest.raises(RpcError, match=r"worker-0\.log has 14 bytes"):
        read(log, offset=15)


def test_no_other_file_can_be_read_as_a_log(log: Path) -> None:
    (log.parent.parent / "run.json.log").write_text("{}")

    assert read(log, replica="../run.json")["size"] == 0
