"""Tests of inputs that once raised unexpected exceptions: deep nesting, infinite numbers, text instead of numbers."""

from __future__ import annotations

import copy
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.parsers import (
    ENVIRONMENT,
    JOURNAL,
    MANIFEST,
    PUSH,
    _link,
    _push,
    _questions,
    answer_of_link,
    follow_journal,
    kept_calendar,
)
from torchyard_agent.daemon import audit
from torchyard_agent.journal import JournalReader
from torchyard_agent.keeper.checkpoints.checkpoint_folders import newest
from torchyard_agent.protocol import metrics_report
from torchyard_core.booking.model import from_rfc3339
from torchyard_core.errors import HostError, RunFailed
from torchyard_core.fleet.host_facts_cache import planner_hosts
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.response_schemas import NOTIFICATIONS, find_mismatch
from torchyard_core.launch.bandwidth_cache import BandwidthCache
from torchyard_core.launch.runs.history import History
from torchyard_core.topology.document.crash_recovery import Recovery
from torchyard_roles.checkpoints import checkpoint_files
from torchyard_roles.checkpoints.checkpoint_files import Damaged
from torchyard_roles.environment import read as read_environment
from torchyard_roles.errors import EnvironmentProblem, ProtocolError
from torchyard_roles.exchange.parameter_layout import Layout

DEEP = "[" * 40_000
ENDLESS = "1e999"
"""A number in JSON that json.loads reads as infinity."""


def test_headers_of_the_exchange() -> None:
    with pytest.raises(ProtocolError, match="sent an invalid header"):
        _link(DEEP.encode())
    for size in ("true", str(2**63), "-1"):
        with pytest.raises(ProtocolError, match="announced"):
            _link(f'{{"bytes": {size}}}'.encode())


@pytest.mark.parametrize("name", ["round", "chunk", "base", "changed"])
def test_a_push_of_an_endless_number(name: str) -> None:
    with pytest.raises(ValueError, match="not a push"):
        _push({**PUSH, name: float("inf")})


@pytest.mark.parametrize("text", [DEEP, '{"whole_parameters":false,"parameters":[["w",[1e999],"float32",0]]}'])
def test_an_invalid_fingerprint(text: str) -> None:
    with pytest.raises(ValueError, match="not a layout's fingerprint"):
        Layout.read(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCHYARD_OPTIONS", DEEP),
        ("TORCHYARD_PEERS", DEEP),
        ("TORCHYARD_PEERS", '{"ps": [["ps-0", "10.0.0.1", 1e999]]}'),
        ("TORCHYARD_GROUP", "9" * 5000),
        ("TORCHYARD_REPLICA", "worker-" + "9" * 5000),
    ],
)
def test_malformed_variables(name: str, value: str) -> None:
    with pytest.raises(EnvironmentProblem, match=name):
        read_environment({**ENVIRONMENT, name: value})


@pytest.mark.parametrize(
    "manifest",
    [
        DEEP,
        json.dumps(MANIFEST).replace('"step": 3', f'"step": {ENDLESS}'),
        json.dumps({**MANIFEST, "files": {**MANIFEST["files"], "a\0b": 2}}),
    ],
)
def test_a_manifest_of_a_checkpoint(tmp_path: Path, manifest: str) -> None:
    folder = tmp_path / checkpoint_files.name_of(3)
    folder.mkdir()
    for name in checkpoint_files.FILES:
        (folder / name).write_bytes(b"ab")
    (folder / checkpoint_files.ABOUT).write_text(manifest)
    with pytest.raises(Damaged):
        checkpoint_files.read(tmp_path, 3)
    assert checkpoint_files.complete(tmp_path) == []


def test_a_checkpoint_of_an_infinite_size_is_ignored(tmp_path: Path) -> None:
    folder = tmp_path / checkpoint_files.name_of(3)
    folder.mkdir()
    (folder / checkpoint_files.ABOUT).write_text('{"step": 3, "files": {"model.pt": 1e999}}')
    assert newest(str(tmp_path)) == ""


@pytest.mark.parametrize("datagram", ["[" * 8000, '{"replica": "worker-0", "local_rank": 1e999, "metrics": {}}'])
def test_a_report_is_dropped(datagram: str) -> None:
    assert metrics_report.decode(datagram.encode()) is None


def test_questions_at_the_join_store() -> None:
    get = {"id": 4, "done": 1, "op": "get", "key": "a", "wait_s": 0}
    _questions([json.dumps({"id": 1, "done": 0, "op": "add", "key": "n", "amount": 2}).replace("2", ENDLESS), DEEP])
    _questions([json.dumps({**get, "id": 0}).replace('"id": 0', f'"id": {ENDLESS}')])
    # Both requests have the same ID. The timer of the first request must not fail when the second one arrives.
    _questions([json.dumps(get)] * 2)
    _questions(["{"])


def test_files_of_this_desktop_and_of_a_host(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(DEEP)
    assert History(tmp_path).load("r") is None
    assert Recovery(tmp_path).unsaved_work() == []
    for content in (DEEP, "[]", '"x"'):
        assert kept_calendar(content.encode()) is None
    (tmp_path / "bandwidth.json").write_text(f'{{"k": {{"bytes_s": {"9" * 400}, "at": 1}}}}')
    assert BandwidthCache(tmp_path / "bandwidth.json").of(("a", "b"), "k").bytes_s is None
    event = {"epoch": 1, "seq": 1, "time": "2031-01-10T09:00:00Z", "event": "note"}
    (tmp_path / "journal.jsonl").write_text(f"{DEEP}\n{json.dumps(event)}\n")
    assert JournalReader(str(tmp_path)).read() == [event]
    log = Path(audit._path(str(tmp_path), "node"))
    log.parent.mkdir(parents=True)
    log.write_text(f'{DEEP}\n{{"what": "deploy"}}\n')
    assert audit.read(str(tmp_path), "node") == [{"what": "deploy"}]


def test_facts_of_an_endless_number() -> None:
    gpu = {"index": 0, "uuid": "GPU-1", "name": "A100", "memory_mb": float("inf")}
    (host,) = planner_hosts([Host(name="a")], {"a": {"address": "a", "gpus": [gpu]}})
    assert host.gpus == ()


def test_a_time_before_all_years_is_no_time() -> None:
    with pytest.raises(ValueError, match="in no year of UTC"):
        from_rfc3339("0001-01-01T00:00:00+14:00")


@pytest.mark.parametrize("answer", [1, [], {"idle": 1}, {"uses": [1]}])
def test_malformed_evidence_is_an_error_of_its_host(answer: Any) -> None:
    """Such an error must not end the thread that synchronizes the calendar with all hosts."""
    with pytest.raises(HostError, match=r"bookings\.evidence is malformed"):
        answer_of_link([{"jsonrpc": "2.0", "id": 1, "result": answer}], "bookings.evidence")


@pytest.mark.parametrize(
    ("number", "key", "wrong"),
    [
        *((0, "state", "flying"), (0, "seq", "x"), (1, "host", None), (2, "generation", []), (4, "step", "x")),
        *((4, "loss", "x"), (6, "timings", {"ended_s": "x"}), (6, "replicas", [1]), (0, "epoch", {})),
    ],
)
def test_a_journal_of_a_host_is_validated_as_it_arrives(number: int, key: str, wrong: Any) -> None:
    assert find_mismatch(JOURNAL, NOTIFICATIONS["state"]) == ""
    said = copy.deepcopy(JOURNAL)
    said["entries"][number][key] = wrong
    assert find_mismatch(said, NOTIFICATIONS["state"]).startswith(f"entries[{number}].{key}")


def test_a_host_that_does_not_say_why_a_keeper_is_gone() -> None:
    with pytest.raises(RunFailed, match="the keeper of run r on gpu-a is gone"):
        follow_journal({"run_id": "r", "entries": [], "alive": False, "died": None})


def test_a_report_of_a_replica_with_no_number_shows_nothing() -> None:
    entry = {**JOURNAL["entries"][4], "replica": "worker-x"}
    assert follow_journal({**JOURNAL, "entries": [entry], "alive": True}) is None


def test_a_message_without_a_name_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", faults.append)
    said = [{"jsonrpc": "2.0", "method": []}, {"jsonrpc": "2.0", "id": 1, "result": {}}]
    assert answer_of_link(said, "bookings.evidence") == {}
    assert faults == []
