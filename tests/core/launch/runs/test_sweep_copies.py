"""Tests of copying a sweep's table and study from a host whose coordinator replaces both files during the copy."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.core.sweeps.test_trial_table import data, row
from torchyard_core.errors import AgentRefused, HostError
from torchyard_core.launch.runs import sweep_copies
from torchyard_core.launch.runs.sweep_copies import STUDY, TABLE, SweepCopies


class Primary:
    """A host with the files of a sweep. `before_read` is called before each answer."""

    host = "gpu-a"

    def __init__(self, table: dict[str, Any], study: bytes):
        self.files = {TABLE: json.dumps(table).encode(), STUDY: study}
        self.read: list[str] = []
        self.before_read = lambda path: None

    def call(self, method: str, params: dict[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        assert method == "files.read"
        assert params is not None
        path = params["path"]
        self.before_read(path)
        self.read.append(path)
        if path not in self.files:
            raise AgentRefused(self.host, "the run has no such file", code="no_file")
        whole, offset = self.files[path], params["offset"]
        piece = whole[offset : offset + 5]
        return {"data": base64.b64encode(piece).decode(), "next": offset + len(piece), "size": len(whole)}


def table(study: bytes, *rows: dict[str, Any]) -> dict[str, Any]:
    return {**data(*rows), "study": hashlib.sha256(study).hexdigest()}


def test_table_and_study_are_copied_and_an_unchanged_study_is_not_read_again(tmp_path: Path) -> None:
    copies, study = SweepCopies(tmp_path / "sweeps"), b"an SQLite file"
    host = Primary(table(study, row(1, "complete", 1.0)), study)
    found = copies.update("run", host)
    assert found is not None
    assert found == copies.table("run")
    assert copies.study("run") == study
    host.read.clear()
    copies.update("run", host)
    assert STUDY not in host.read


def test_a_study_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_copies, "AGAIN_S", 0.0)
    copies, old, new = SweepCopies(tmp_path), b"the old study", b"the new study, of which a part would be wrong"
    host = Primary(table(old), old)

    def replace(path: str) -> None:
        if path == STUDY and host.read.count(STUDY) == 1:
            host.files = {TABLE: json.dumps(table(new, row(1, "failed"))).encode(), STUDY: new}

    host.before_read = replace
    found = copies.update("run", host)
    assert copies.study("run") == new
    assert found is not None
    assert found.count("failed") == 1


def test_a_sweep_without_a_table_yet_and_a_malformed_one(tmp_path: Path) -> None:
    copies, host = SweepCopies(tmp_path), Primary({}, b"")
    with pytest.raises(HostError, match="gpu-a sent a malformed table of the sweep"):
        copies.update("run", host)
    host.files = {}
    assert copies.update("run", host) is None
    assert copies.table("run") is None
    assert copies.study("run") is None
