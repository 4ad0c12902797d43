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
from torchyard_agent.daemon.rpc_methods import Methods
from torchyard_agent.daemon.runs import Runs
from torchyard_agent.journal import Journal, JournalReader
from torchyard_agent.protocol import journal_replay, paths
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


class RunningKeeper(Runs):
    """The runs of a host, each of which has a running keeper."""

    async def keeper(self, run_id: str) -> Any:
        return self

    def is_alive(self, run_id: str) -> bool:
        return True


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Returns the folder of a run on the host `gpu-a`, with an empty log."""
    folder = Path(paths.run_dir(str(tmp_path), "gpu-a", "1-run"))
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "worker-0.log").touch()
    return folder


def log_has_ended(run: Path) -> bool:
    async def asked() -> bool:
        agent_dir, nothing = str(run.parents[3]), None
        hello = {"node": "gpu-a"}
        methods = Methods(agent_dir, hello, RunningKeeper(agent_dir, "gpu-a"), nothing, nothing)  # type: ignore[arg-type]  # Logs do not use these arguments.
        answer = await methods.logs_read(nothing, {"run_id": "1-run", "replica": "worker-0", "offset": 0})  # type: ignore[arg-type]
        return bool(answer["ended"])

    return asyncio.run(asked())


def test_a_log_ends_with_the_run_and_not_with_a_replica_that_may_be_restarted(run: Path) -> None:
    journal = Journal(str(run / "journal.jsonl"), lambda: None)
    journal.write("run_state", state="running")
    journal.write("replica_state", replica="worker-0", host="gpu-a", state="failed", exit_code=1, restarts=0)
    assert not log_has_ended(run)

    journal.write("gang_restart", gang="trainers", generation=1, cause="exited with 1")
    journal.write("replica_state", replica="worker-0", host="gpu-a", state="running", exit_code=None, restarts=1)
    assert not log_has_ended(run)

    journal.write("run_state", state="succeeded")
    journal.write("run_ended", state="succeeded", reason="")
    assert log_has_ended(run)
    journal.close()


def test_a_run_that_ended_on_a_host_goes_on_when_the_host_rejoins_it(run: Path) -> None:
    journal = Journal(str(run / "journal.jsonl"), lambda: None)
    journal.write("run_state", state="failed", reason="the primary host gpu-b was lost")
    journal.write("run_ended", state="failed", reason="the primary host gpu-b was lost")
    journal.write("run_state", state="restarting", reason="the primary host gpu-b is connected again")
    journal.close()

    assert not log_has_ended(run)
    events = JournalReader(str(run)).read()
    assert not journal_replay.fold("1-run", events)["ended"]
    assert journal_replay.fold("1-run", events[:2])["ended"]
