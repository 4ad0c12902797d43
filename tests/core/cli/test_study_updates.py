"""Tests of the copies of a study that a command makes while it follows a sweep, and at the sweep's end."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.core.sweeps.test_trial_table import ROWS, data
from torchyard_core.booking import store
from torchyard_core.cli.study_updates import StudyUpdates
from torchyard_core.errors import Unreachable
from torchyard_core.home import Home
from torchyard_core.launch.runs.sweep_copies import STUDY, TABLE

CONTENT = b"the study"


class Primary:
    """The link to the agent with the sweep's files. Counts the files that are read; answers only if `answers`."""

    host = "gpu-a"

    def __init__(self) -> None:
        table = {**data(*ROWS), "study": hashlib.sha256(CONTENT).hexdigest()}
        self._files = {TABLE: json.dumps(table).encode(), STUDY: CONTENT}
        self.reads: Counter[str] = Counter()
        self.answers = True

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if not self.answers:
            raise Unreachable("gpu-a", "gpu-a does not answer.")
        self.reads[params["path"]] += 1
        content = self._files[params["path"]]
        return {"data": base64.b64encode(content[params["offset"] :]).decode(), "size": len(content)}


class Followed:
    """A sweep that a command follows, and the copies of its study in the team's database."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        (folder / "settings.yaml").write_text("bookings_url: postgresql+psycopg://kim@db/gpus\n")
        self.shared: list[bytes] = []
        monkeypatch.setattr(store, "copy_study", lambda url, file, name: self.shared.append(file.read_bytes()))
        self.primary = Primary()
        chosen: Any = SimpleNamespace(home=Home(folder))
        fleet: Any = SimpleNamespace(link=lambda host: self.primary)
        self.updates = StudyUpdates(chosen, fleet)
        self.started: Any = SimpleNamespace(run_id="run", primary=self.primary)


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Followed:
    return Followed(tmp_path, monkeypatch)


def test_the_table_and_the_study_of_an_ended_sweep_are_fetched_once(followed: Followed) -> None:
    with followed.updates.following(followed.started):
        table = followed.updates.read_last(followed.started, "succeeded")
    assert table is not None
    assert len(table.trials) == len(ROWS)
    assert followed.primary.reads == {TABLE: 1, STUDY: 1}
    assert followed.shared == [CONTENT]


def test_a_command_that_leaves_before_the_end_copies_the_study_once_more(followed: Followed) -> None:
    with followed.updates.following(followed.started):
        pass
    assert followed.primary.reads == {TABLE: 1, STUDY: 1}
    assert followed.shared == [CONTENT]


def test_a_table_that_could_not_be_read_at_the_end_is_fetched_again_for_the_database(followed: Followed) -> None:
    with followed.updates.following(followed.started):
        followed.primary.answers = False
        with pytest.raises(Unreachable):
            followed.updates.read_last(followed.started, "succeeded")
        followed.primary.answers = True
    assert followed.shared == [CONTENT]
