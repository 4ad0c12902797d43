"""Tests of when a sweep's study is copied to the team's database, and how often an error is raised."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.sweeps.test_trial_table import data
from torchyard_core.app import team_studies
from torchyard_core.app.team_studies import TeamStudies
from torchyard_core.booking import store
from torchyard_core.booking.errors import StoreUnavailable
from torchyard_core.home import Home
from torchyard_core.sweeps.trial_table import SweepTable, read_table

URL = "postgresql+psycopg://kim@db/gpus"


class Database:
    """Stands for the team's database. While `error` is set, copies fail with it."""

    def __init__(self) -> None:
        self.copied: list[tuple[str, str, str]] = []
        self.error: Exception | None = None
        self.now = 0.0

    def copy_study(self, url: str, file: Path, name: str) -> None:
        if self.error is not None:
            raise self.error
        self.copied.append((url, file.name, name))


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    made = Database()
    monkeypatch.setattr(store, "copy_study", made.copy_study)
    return made


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "settings.yaml").write_text(f"bookings_url: {URL}\n")
    return Home(tmp_path)


def table(study: str) -> SweepTable:
    return read_table({**data(), "study": study})


def test_a_study_is_copied_once_per_version_also_by_another_program_of_this_computer(
    home: Home, database: Database
) -> None:
    studies = TeamStudies(home)
    assert studies.copy(table("1"))
    assert studies.copy(table("1"))
    assert TeamStudies(home).copy(table("1"))
    assert database.copied == [(URL, "run.sqlite3", "s run")]
    assert studies.copy(table("2"))
    assert len(database.copied) == 2
    assert studies.url_of_copy("run") == f"{URL}?options=-csearch_path%3Dtorchyard_studies"
    assert studies.url_of_copy("other") == ""


@pytest.mark.parametrize("settings", ["", "bookings_url: sqlite:////tmp/bookings.sqlite3\n", "bookings_url: [\n"])
def test_nothing_is_copied_without_a_team(home: Home, database: Database, settings: str) -> None:
    home.settings_file.write_text(settings)
    assert TeamStudies(home).copy(table("1"))
    assert not database.copied


def test_an_error_is_raised_once_and_the_copy_is_tried_again_after_a_while(home: Home, database: Database) -> None:
    studies = TeamStudies(home, lambda: database.now)
    database.error = StoreUnavailable("the database does not answer")
    with pytest.raises(StoreUnavailable):
        studies.copy(table("1"))
    database.now += team_studies.RETRY_S
    assert not studies.copy(table("1"))
    database.error = None
    database.now += team_studies.RETRY_S - 1
    assert not studies.copy(table("1"))
    assert not database.copied
    assert studies.copy(table("1"), at_once=True)
    database.error = StoreUnavailable("the database does not answer")
    with pytest.raises(StoreUnavailable):
        studies.copy(table("2"))
