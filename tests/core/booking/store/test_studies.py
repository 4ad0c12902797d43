"""Tests of copying studies to the team's PostgreSQL, and of the rights of members there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import optuna
import psycopg
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import NullPool, event

from tests.core.booking.cluster import Cluster
from torchyard_core.booking.errors import PermissionDenied, StoreUnavailable
from torchyard_core.booking.store import copy_study, dashboard_url, setup_team
from torchyard_core.booking.store.studies import SCHEMA
from torchyard_core.errors import TorchyardError

DISTRIBUTIONS = {
    "lr": FloatDistribution(1e-4, 0.1, log=True),
    "depth": IntDistribution(1, 9),
    "kind": CategoricalDistribution(["a", "b"]),
}


@pytest.fixture
def server(postgres: Cluster) -> Iterator[Cluster]:
    yield postgres
    with postgres.connect("owner", "team") as connection:
        connection.execute(f"TRUNCATE {SCHEMA}.studies CASCADE")


@pytest.fixture
def source(tmp_path: Path) -> optuna.Study:
    """Returns a study in an SQLite file with a complete, a failed, a pruned and a running trial, and one to try."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(f"sqlite:///{file_of(tmp_path)}", {"poolclass": NullPool})
    # Each of Optuna's many small transactions would otherwise wait for the disk.
    event.listen(storage.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    study = optuna.create_study(
        storage=storage,
        study_name="sweep",
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=1),
    )
    for _ in range(4):
        trial = study.ask(DISTRIBUTIONS)
        trial.set_user_attr("hosts", ["gpu-a"])
        trial.report(0.25, 1)
    study.tell(0, 0.5)
    study.tell(1, state=TrialState.FAIL)
    study.tell(2, state=TrialState.PRUNED)
    study.enqueue_trial({"lr": 0.01, "depth": 3, "kind": "b"}, user_attrs={"repeats": 1})
    return study


def file_of(tmp_path: Path) -> Path:
    return tmp_path / "study.sqlite3"


@contextmanager
def opened(server: Cluster, member: str) -> Iterator[optuna.storages.RDBStorage]:
    """Opens the team's studies with Optuna alone, and the URL that users are shown."""
    storage = optuna.storages.RDBStorage(dashboard_url(server.url(member, "team")))
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def read_back(server: Cluster, name: str, member: str = "lee") -> list[FrozenTrial]:
    """Returns the trials of a copy."""
    with opened(server, member) as storage:
        return optuna.load_study(study_name=name, storage=storage).get_trials()


def content(trials: list[FrozenTrial]) -> list[tuple[object, ...]]:
    """Returns all of the trials but their IDs in the storage."""
    return [
        (
            *(trial.number, trial.state, trial.values, trial.params, trial.distributions, trial.user_attrs),
            *(trial.system_attrs, trial.intermediate_values, trial.datetime_start, trial.datetime_complete),
        )
        for trial in trials
    ]


def test_a_copy_has_all_trials_and_follows_those_that_had_not_ended(
    server: Cluster, source: optuna.Study, tmp_path: Path
) -> None:
    copy_study(server.url("kim", "team"), file_of(tmp_path), "digits run-1")
    first = read_back(server, "digits run-1")
    assert content(first) == content(source.get_trials())
    assert [trial.state.name for trial in first] == ["COMPLETE", "FAIL", "PRUNED", "RUNNING", "WAITING"]

    repeated = source.ask(DISTRIBUTIONS)
    repeated.report(float("nan"), 2)
    source.tell(repeated, 0.75)
    running = optuna.trial.Trial(source, source.get_trials()[3]._trial_id)
    running.report(0.5, 2)
    running.set_user_attr("hosts", ["gpu-a", "gpu-b"])
    source.tell(3, state=TrialState.FAIL)
    source.ask(DISTRIBUTIONS)
    copy_study(server.url("lee", "team"), file_of(tmp_path), "digits run-1")
    second = read_back(server, "digits run-1", "ada")
    assert repr(content(second)) == repr(content(source.get_trials()))  # NaN is not equal to itself.
    assert [trial._trial_id for trial in second[:5]] == [trial._trial_id for trial in first]

    copy_study(server.url("kim", "team"), file_of(tmp_path), "digits run-1")
    assert repr(read_back(server, "digits run-1")) == repr(second)


def test_an_older_file_changes_nothing(server: Cluster, source: optuna.Study, tmp_path: Path) -> None:
    older = shutil.copy(file_of(tmp_path), tmp_path / "older.sqlite3")
    source.tell(3, 1.0)
    source.tell(source.ask(DISTRIBUTIONS), 2.0)
    copy_study(server.url("kim", "team"), file_of(tmp_path), "digits run-1")
    newer = read_back(server, "digits run-1")
    before = older.read_bytes()
    copy_study(server.url("lee", "team"), older, "digits run-1")
    assert repr(read_back(server, "digits run-1")) == repr(newer)
    assert older.read_bytes() == before


def test_desktops_that_copy_at_the_same_time_duplicate_no_trial(
    server: Cluster, source: optuna.Study, tmp_path: Path
) -> None:
    source.tell(3, 1.0)
    for round_ in range(2):
        for number in range(8):
            trial = source.ask(DISTRIBUTIONS)
            trial.report(number, 1)
            if number % 3:
                source.tell(trial, float(number))
        members = ("kim", "lee", "ada")
        with ThreadPoolExecutor(len(members)) as pool:
            urls = [server.url(member, "team") for member in members]
            list(pool.map(lambda url: copy_study(url, file_of(tmp_path), "digits run-1"), urls))
        assert content(read_back(server, "digits run-1")) == content(source.get_trials()), round_


def test_members_add_studies_and_only_admins_delete_them(server: Cluster, source: optuna.Study, tmp_path: Path) -> None:
    copy_study(server.url("kim", "team"), file_of(tmp_path), "digits run-1")
    for statement in (
        f"DELETE FROM {SCHEMA}.studies",
        f"DROP TABLE {SCHEMA}.trials",
        f"CREATE TABLE {SCHEMA}.mine (id int)",
        f"CREATE TRIGGER mine AFTER INSERT ON {SCHEMA}.trials EXECUTE FUNCTION tsvector_update_trigger()",
        f"UPDATE {SCHEMA}.alembic_version SET version_num = 'x'",
    ):
        with server.connect("kim", "team") as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)
    with opened(server, "ada") as storage:
        optuna.delete_study(study_name="digits run-1", storage=storage)


def test_a_role_without_rights_and_a_database_without_tables_are_refused(
    server: Cluster, source: optuna.Study, tmp_path: Path
) -> None:
    with server.connect("owner", "team") as connection:
        connection.execute("CREATE ROLE guest LOGIN")
        try:
            with pytest.raises(PermissionDenied, match=r"your role `guest` may not add studies to"):
                copy_study(server.url("guest", "team"), file_of(tmp_path), "digits run-1")
        finally:
            connection.execute("DROP ROLE guest")
        connection.execute("CREATE DATABASE bare")
    try:
        with pytest.raises(PermissionDenied, match="has no tables for the studies of sweeps"):
            copy_study(server.url("kim", "bare"), file_of(tmp_path), "digits run-1")
        assert setup_team(server.url("owner", "bare"), ["kim"]).has_studies
        copy_study(server.url("kim", "bare"), file_of(tmp_path), "digits run-1")
    finally:
        with server.connect("owner", "team") as connection:
            connection.execute("DROP DATABASE bare WITH (FORCE)")


def test_a_server_that_does_not_answer_and_a_damaged_file_are_errors(
    server: Cluster, source: optuna.Study, tmp_path: Path
) -> None:
    with pytest.raises(StoreUnavailable):
        copy_study("postgresql+psycopg://kim@127.0.0.1:1/team", file_of(tmp_path), "digits run-1")
    file_of(tmp_path).write_bytes(b"not SQLite")
    with pytest.raises(TorchyardError, match="cannot be read"):
        copy_study(server.url("kim", "team"), file_of(tmp_path), "digits run-1")


def test_without_optuna_the_calendar_is_set_up_and_a_copy_says_what_to_install(
    server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard_core.booking.store.studies.find_spec", lambda name: None)
    made = setup_team(server.url("owner", "team"), ["kim"])
    assert any("pip install 'torchyard[sweep]'" in line for line in made.lines())
    with pytest.raises(TorchyardError, match="Optuna is not installed on this computer"):
        copy_study(server.url("kim", "team"), tmp_path / "study.sqlite3", "digits run-1")
