"""Tests that a malformed answer of a daemon is promptly reported as an error of its host only, without a traceback."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab import Desktop
from torchyard_agent.protocol import PROTOCOL
from torchyard_core.fleet.agent_archive import build_archive
from torchyard_core.fleet.response_schemas import ANSWERS, find_mismatch

DAEMON = """\
#!{python}
import json, sys
given, out = sys.stdin.buffer, sys.stdout.buffer
nonce, answers = sys.argv[-1], json.loads({answers!r})
given.read(int(given.readline()))
given.readline()
def say(value):
    out.write(json.dumps(value).encode() + b"\\n")
    out.flush()
for first in ({{"have": True, "python": "/usr/bin/python3", "python_version": "3.12.1"}}, {{"ready": True}}):
    out.write(nonce.encode() + b" ")
    say(first)
for line in given:
    asked = json.loads(line)
    answer = answers.get(asked["method"], {{"result": None}})
    if "raw" in answer:
        out.write(answer["raw"].encode() + b"\\n")
        out.flush()
    else:
        say({{"jsonrpc": "2.0", "id": asked["id"], **answer}})
"""
HELLO = {"version": "0.1.0", "protocol": PROTOCOL, "sha256": "0" * 64, "pid": 1, "node": "n"}
GPU = {
    "index": 0,
    "uuid": "GPU-1",
    "name": "GPU",
    "memory_mb": 1,
    "memory_used_mb": 1,
    "utilisation": 1,
    "problem": None,
    "processes": [],
}
HOST = {"cpus": 4, "cpu": 1.0, "memory_mb": 1, "memory_used_mb": 1}
SAMPLE = {"time": 1.0, "host": HOST, "gpus": [GPU], "replicas": {}}


def daemon(folder: Path, **answers: Any) -> Path:
    """Writes a script that a local host runs as its Python; returns the script's path.

    The script answers requests like a daemon, with the given answers and otherwise with null.
    """
    said = {"hello": {"result": HELLO}, **answers}
    script = folder / f"daemon-{len(list(folder.iterdir()))}"
    script.write_text(DAEMON.format(python=sys.executable, answers=json.dumps(said)))
    script.chmod(0o755)
    return script


def test_every_malformed_host_is_an_error_of_its_own(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    hello = {key: value for key, value in HELLO.items() if key != "version"}

    def sample(**changes: Any) -> dict[str, Any]:
        return {"telemetry.sample": {"result": {**SAMPLE, **changes}}}

    evil: dict[str, dict[str, Any]] = {
        "null": {"telemetry.sample": {"result": None}},
        "list": {"telemetry.sample": {"result": []}},
        "gpus": sample(gpus=[{}]),
        "processes": sample(gpus=[{**GPU, "processes": [{"pid": "x"}]}]),
        "time": sample(time=1e300),
        "text": sample(host="<host>"),
        "code": {"telemetry.sample": {"error": {"code": "abc", "message": 7, "data": []}}},
        "json": {"telemetry.sample": {"raw": "{]"}},
        "hello": {"hello": {"result": hello}},
        "none": {"hello": {"result": None}},
    }
    hosts = [("good", daemon(tmp_path, **sample())), *((name, daemon(tmp_path, **one)) for name, one in evil.items())]
    desktop = Desktop(tmp_path / "desktop")
    request.addfinalizer(desktop.close)
    lines = [f"  - {{name: h-{name}, local: true, agent_python: {script}}}" for name, script in hosts]
    desktop.fleet_file.write_text("\n".join(["version: 1", "hosts:", *lines, ""]))

    began = time.monotonic()
    for command in (("status",), ("runs", "list"), ("status", "--json")):
        done = desktop.torchyard(*command, timeout=100)
        assert "Traceback" not in done.stderr + done.stdout, done.stderr
        assert "fault in Torchyard" not in done.stderr + done.stdout, done.stderr
    assert time.monotonic() - began < 50  # No call timed out, because a timeout takes 60 s.

    found = {one["name"].removeprefix("h-"): one for one in json.loads(done.stdout)}
    assert found["good"]["error"] is None
    assert found["good"]["gpus"]
    assert [name for name in evil if not found[name]["error"]] == []
    assert "malformed at `gpus[0].index`" in found["gpus"]["error"]["message"]
    assert "an invalid message" in found["json"]["error"]["message"]


def test_findings_of_enforcement_that_no_agent_makes_are_an_error_of_their_host(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    told = {"fresh": True, "enforcement": {"level": "stop", "dry_run": False}, "capabilities": {"acts_on": "all"}}
    finding = {
        "verdict": "root",
        "pid": 7,
        "user": "\x1b[2J",
        "program": None,
        "origin": {"as_root": 3, "container": {}},
    }
    odd = {"host.facts": {"result": {"bookings": {**told, "findings": [finding]}}}}
    evil = {"host.facts": {"result": {"bookings": {**told, "findings": [{"verdict": "root"}]}}}}
    sane = {"hello": {"result": {**HELLO, "sha256": build_archive().sha256}}, "telemetry.sample": {"result": SAMPLE}}
    hosts = {"odd": daemon(tmp_path, **sane, **odd), "evil": daemon(tmp_path, **sane, **evil)}
    desktop = Desktop(tmp_path / "desktop")
    request.addfinalizer(desktop.close)
    lines = [f"  - {{name: {name}, local: true, agent_python: {script}}}" for name, script in hosts.items()]
    desktop.fleet_file.write_text("\n".join(["version: 1", "hosts:", *lines, ""]))

    done = desktop.torchyard("hosts", "check", timeout=100)

    assert "Traceback" not in done.stderr + done.stdout
    assert "fault in Torchyard" not in done.stderr + done.stdout
    assert "\x1b[2J" not in done.stdout
    assert "odd: bookings are enforced (stop) on all users' processes" in done.stdout
    assert "None (PID 7) of root" in done.stdout
    assert "malformed at `bookings.findings[0].pid`" in done.stdout + done.stderr


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(JUNK, st.sampled_from(sorted(ANSWERS)))
def test_any_answer_is_validated_without_a_fault(value: Any, method: str) -> None:
    assert isinstance(find_mismatch(value, ANSWERS[method]), str)
    if not isinstance(value, (dict, list)):
        assert find_mismatch(value, ANSWERS[method]) == "the answer"


@pytest.mark.parametrize(
    ("times", "at"),
    [
        ([[5, 1.5], [7, 2]], ""),
        (7, "times"),
        ([5], "times[0]"),
        ([[5, 1.5], [7]], "times[1]"),
        ([[5, 1.5, 2.0]], "times[0]"),
        ([["5", 1.5]], "times[0][0]"),
        ([[5, float("nan")]], "times[0][1]"),
        ([[5, 1e300]], "times[0][1]"),
    ],
)
def test_times_of_a_log_are_pairs_of_a_size_and_a_time(times: Any, at: str) -> None:
    answer = {"data": "", "next": 0, "size": 0, "ended": False, "times": times}
    assert find_mismatch(answer, ANSWERS["logs.read"]) == at
