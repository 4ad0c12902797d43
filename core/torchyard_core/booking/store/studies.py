"""Copies of the studies of sweeps in the team's database, in Optuna's own tables.

The tables are in a separate schema, because both Optuna and the calendar have a table `alembic_version`. The role
that sets up the team owns the tables. A member who owned a table could attach a trigger, which would run with the
rights of the next member who copies a study.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, NullPool, text
from sqlalchemy.engine import URL

from torchyard_core.booking.errors import PermissionDenied, StoreUnavailable
from torchyard_core.booking.store.database_engine import Overlap, connector, make_engine, parsed, place_of, transaction
from torchyard_core.errors import TorchyardError
from torchyard_core.next_steps import SetUpTeam

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial

SCHEMA = "torchyard_studies"
_LOCK = 7_240_119
"""First key of the advisory locks for studies. The second key is a hash of the study's name, or 0 for the tables."""
_OF_OPTUNA = ("alembic_version", "version_info")
"""Tables that only an upgrade of Optuna changes."""


@dataclass(frozen=True)
class _Study:
    """The content of a study."""

    directions: Sequence[StudyDirection]
    user_attributes: dict[str, Any]
    system_attributes: dict[str, Any]
    trials: Sequence[FrozenTrial]


def create_study_tables(engine: Engine, address: URL, password: str = "") -> bool:
    """Creates Optuna's tables. Members may then add and change studies, and admins may also delete studies.

    Does nothing and returns False if Optuna is not installed.

    Args:
        engine: Engine with a role that may create schemas. `address` and `password` belong to the same role.
    """
    if find_spec("optuna") is None:
        return False
    with transaction(engine, writes=True) as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    with transaction(engine, writes=True) as connection:
        # Optuna uses a separate connection, so the lock only keeps concurrent setups from creating the same tables.
        _lock(connection, 0)
        with _errors_of_optuna(address), _storage_at(address, password):
            pass
        tables = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = :schema"), _NAMED)
        changed = ", ".join(f"{SCHEMA}.{name}" for name in tables.scalars() if name not in _OF_OPTUNA)
        for statement in (
            f"GRANT USAGE ON SCHEMA {SCHEMA} TO torchyard_member",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO torchyard_member",
            f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {SCHEMA} TO torchyard_member",
            f"GRANT INSERT, UPDATE ON {changed} TO torchyard_member",
            f"GRANT DELETE ON {changed} TO torchyard_admin",
        ):
            connection.exec_driver_sql(statement)
    return True


def copy_study(url: str, file: Path, name: str) -> None:
    """Brings the copy of a study in the team's database up to date.

    Finished trials of the copy are never changed, so an older file does not overwrite results from a newer file.
    Concurrent calls for the same study wait for each other.

    Args:
        url: The URL of the database.
        file: The SQLite file with the study. It is not changed.
        name: The name of the study in the database.

    Raises:
        BadUrl, StoreUnavailable, PermissionDenied: The database cannot be used.
        TorchyardError: Optuna is not installed or cannot use the tables, or the file is not a study.
    """
    if find_spec("optuna") is None:
        hint = "Install it: `pip install 'torchyard[sweep]'`."
        raise TorchyardError("Optuna is not installed on this computer", code="no_optuna", hint=hint)
    address = parsed(url)
    study = _read(file)
    engine = make_engine(address)
    try:
        with transaction(engine, writes=True) as connection:
            _check_rights(connection, address)
            _lock(connection, name)
            with _errors_of_optuna(address), _storage_at(address) as storage:
                times = _update(storage, study, name)
            if times:
                # Optuna records the current time as the start and the end of the updated trials, so the original times
                # are set here.
                columns = "datetime_start = :start, datetime_complete = :end"
                connection.execute(text(f"UPDATE {SCHEMA}.trials SET {columns} WHERE trial_id = :trial"), times)
    except Overlap:
        raise StoreUnavailable(f"{place_of(address)} is busy", hint="It is retried automatically.") from None
    finally:
        engine.dispose()


def dashboard_url(url: str) -> str:
    """Returns the URL with which Optuna and its dashboard open the studies in the team's database."""
    address = parsed(url)
    query = {**address.query, "options": f"-csearch_path={SCHEMA}"}
    return address.set(query=query).render_as_string(hide_password=False)


_NAMED = {"schema": SCHEMA}


def _lock(connection: Connection, study: str | int) -> None:
    """Locks the study with a name until the end of the transaction. A `study` of 0 locks the creation of the tables."""
    key = "hashtext(:study)" if study else "0"
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK}, {key})"), {"study": study} if study else {})


def _check_rights(connection: Connection, address: URL) -> None:
    """Raises PermissionDenied if the tables for studies do not exist, or if the role may not write to them."""
    found = connection.execute(
        text(
            "SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'INSERT')"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = :schema AND c.relname = 'trials'"
        ),
        _NAMED,
    ).scalar()
    place = place_of(address)
    if found is None:
        message = f"{place} has no tables for the studies of sweeps"
        raise PermissionDenied(message, hint=("Set up the team again, with Optuna installed.", SetUpTeam()))
    if not found:
        message = f"your role `{address.username}` may not add studies to {place}"
        raise PermissionDenied(message, hint=SetUpTeam(("--member", str(address.username))))


@contextmanager
def _storage_at(address: URL, password: str = "") -> Iterator[RDBStorage]:
    """Opens Optuna's storage in the team's database. Missing tables are created."""
    connect, opened = connector(address, SCHEMA, password), []

    def tracked() -> Any:
        opened.append(connect())
        return opened[-1]

    try:
        # Optuna needs a second connection only while it creates the tables.
        storage = _open("postgresql+psycopg://", creator=tracked, pool_size=1, max_overflow=1)
        try:
            _check_version(storage, address)
            yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()
    finally:
        for connection in opened:  # If Optuna fails to open the storage, it leaves its connections open.
            connection.close()


def _check_version(storage: RDBStorage, address: URL) -> None:
    """Raises TorchyardError if the tables are those of another version of Optuna."""
    found, known = storage.get_current_version(), storage.get_head_version()
    if found != known:
        message = f"the studies in {place_of(address)} have the format {found} of Optuna, and this computer {known}"
        raise TorchyardError(message, code="optuna_version", hint="Install the Optuna that the team uses.")


def _open(url: str, *, skip_table_creation: bool = False, **engine_kwargs: Any) -> RDBStorage:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Optuna's own version check would open a second connection for every call.
    return optuna.storages.RDBStorage(
        url, engine_kwargs, skip_compatibility_check=True, skip_table_creation=skip_table_creation
    )


@contextmanager
def _errors_of_optuna(address: URL) -> Iterator[None]:
    """Raises the errors of the database without Optuna's wrapping, so that `transaction` converts them."""
    from optuna.exceptions import OptunaError, StorageInternalError

    try:
        yield
    except StorageInternalError as error:
        raise error.__cause__ or error from None
    except (OptunaError, RuntimeError, ValueError) as error:
        message = f"Optuna cannot write to {place_of(address)}: {error}"
        raise TorchyardError(message, code="optuna", hint="Install the Optuna that the team uses.") from error


def _read(file: Path) -> _Study:
    """Reads the only study of an SQLite file. Raises TorchyardError if the file does not contain one readable study."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)

    try:
        storage = _open("sqlite://", skip_table_creation=True, creator=connect, poolclass=NullPool)
        try:
            (name,) = (study.study_name for study in storage.get_all_studies())
            number = storage.get_study_id_from_name(name)
            trials = storage.get_all_trials(number, deepcopy=False)
            if [trial.number for trial in trials] != list(range(len(trials))):
                raise ValueError("trials are missing")
            return _Study(
                storage.get_study_directions(number),
                storage.get_study_user_attrs(number),
                storage.get_study_system_attrs(number),
                trials,
            )
        finally:
            storage.remove_session()
            storage.engine.dispose()
    except Exception as error:  # The file comes from a host and may contain anything.
        message = f"the study {file} cannot be read: {error.__cause__ or error}"
        raise TorchyardError(message, code="study_unreadable", hint="The next version of the file is tried.") from error


def _update(storage: RDBStorage, study: _Study, name: str) -> list[dict[str, Any]]:
    """Adds trials to the copy of a study and updates its unfinished trials.

    Trials are added in the order of their numbers, because Optuna numbers them in the order in which they are added.

    Returns:
        The times of the updated trials, each with the trial's ID in the storage.
    """
    from optuna.trial import TrialState

    try:
        number = storage.get_study_id_from_name(name)
    except KeyError:
        number = storage.create_new_study(study.directions, name)
    known = storage.get_study_user_attrs(number)
    for key in _changed(study.user_attributes, known):
        storage.set_study_user_attr(number, key, study.user_attributes[key])
    known = storage.get_study_system_attrs(number)
    for key in _changed(study.system_attributes, known):
        storage.set_study_system_attr(number, key, study.system_attributes[key])
    copied = bisect_left(range(len(study.trials)), True, key=lambda trial: not _has_trial(storage, number, trial))
    times = []
    for there in storage.get_all_trials(number, deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING)):
        if there.number < copied:
            times += _update_trial(storage, number, there, study.trials[there.number])
    for trial in study.trials[copied:]:
        storage.create_new_trial(number, template_trial=trial)
    return times


def _has_trial(storage: RDBStorage, study: int, number: int) -> bool:
    try:
        storage.get_trial_id_from_study_id_trial_number(study, number)
    except KeyError:
        return False
    return True


def _update_trial(storage: RDBStorage, study: int, there: FrozenTrial, now: FrozenTrial) -> list[dict[str, Any]]:
    """Updates an unfinished trial. Returns its times if its state has changed."""
    from optuna.trial import TrialState

    if now.state is TrialState.WAITING:
        return []
    trial = storage.get_trial_id_from_study_id_trial_number(study, there.number)
    if there.state is TrialState.WAITING:
        storage.set_trial_state_values(trial, TrialState.RUNNING)
    for name in _changed(now.params, there.params):
        distribution = now.distributions[name]
        storage.set_trial_param(trial, name, distribution.to_internal_repr(now.params[name]), distribution)
    for key in _changed(now.user_attrs, there.user_attrs):
        storage.set_trial_user_attr(trial, key, now.user_attrs[key])
    for key in _changed(now.system_attrs, there.system_attrs):
        storage.set_trial_system_attr(trial, key, now.system_attrs[key])
    for step in _changed(now.intermediate_values, there.intermediate_values):
        storage.set_trial_intermediate_value(trial, step, now.intermediate_values[step])
    if now.state.is_finished():
        storage.set_trial_state_values(trial, now.state, now.values)
    if now.state is there.state:
        return []
    return [{"trial": trial, "start": now.datetime_start, "end": now.datetime_complete}]


def _changed(now: dict[Any, Any], before: dict[Any, Any]) -> list[Any]:
    """Returns the keys whose values are new or different."""
    return [key for key, value in now.items() if key not in before or before[key] != value]
