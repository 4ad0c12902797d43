"""Setup of a team's database: schema, roles, policies and members.

The setup can be repeated to add members or to upgrade the schema.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, text
from sqlalchemy.engine import URL

from torchyard_core.booking.errors import BadUrl, PermissionDenied, Refused, StoreTooNew
from torchyard_core.booking.store.database_engine import (
    has_calendar,
    keyring_name,
    make_engine,
    parsed,
    place_of,
    transaction,
    upgrade,
)
from torchyard_core.booking.store.studies import create_study_tables
from torchyard_core.booking.store.tables import HEAD, KNOWN

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")
_LOCK = 7_204_118


@dataclass(frozen=True)
class Member:
    """A member of the team. `password` is set only if the setup created the role, and is shown once but not stored."""

    name: str
    is_admin: bool
    url: str
    password: str | None
    keyring_name: str


@dataclass(frozen=True)
class TeamSetup:
    """The result of a setup: the name of the database, and the members that were added."""

    place: str
    members: tuple[Member, ...]
    has_studies: bool = True
    """Whether the database has tables for the studies of sweeps, which need Optuna."""

    def lines(self) -> tuple[str, ...]:
        """Returns the lines for the terminal: each member's `bookings_url`, and how to store a new password."""
        lines = []
        for one in self.members:
            lines.append(f"{one.name}{' (admin)' if one.is_admin else ''}: bookings_url: {one.url}")
            if one.password is not None:
                lines.append(f"    password, shown only now: {one.password}")
                lines.append(f"    kept with: keyring set {one.keyring_name}  (or a line in ~/.pgpass)")
        if not self.has_studies:
            lines.append("Studies of sweeps cannot be copied here yet: install Optuna on this computer")
            lines.append("    (pip install 'torchyard[sweep]'), then set up the team again.")
        return tuple(lines)


@dataclass(frozen=True)
class ServerFound:
    """The result of testing whether a role can create the calendar in a database."""

    place: str
    has_calendar: bool


def find_server(url: str, password: str = "") -> ServerFound:
    """Tests whether the role in `url` can create a calendar, and whether the database already has one.

    Changes nothing. Raises BadUrl, StoreUnavailable, or PermissionDenied if the role may not create roles.
    """
    address = parsed(url)
    engine = make_engine(address, password)
    rights = "SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user"
    try:
        with transaction(engine) as connection:
            may_create = connection.execute(text(rights)).scalar()
            version = has_calendar(connection)
    finally:
        engine.dispose()
    if not may_create:
        raise PermissionDenied(
            f"the role `{address.username}` may not create roles in {place_of(address)}",
            hint="Use a role that may, such as postgres, or ask the administrator of the server.",
        )
    return ServerFound(place_of(address), version is not None)


def setup_team(url: str, members: Iterable[str], admins: Iterable[str] = (), *, password: str = "") -> TeamSetup:
    """Creates or completes the team's calendar in one transaction, and then the tables for studies of sweeps.

    Args:
        url: The URL of the database, with a role that may create roles and schemas.
        members: The names of members to add.
        admins: The names of admins to add.
        password: The password of the role in `url`. By default, libpq's own mechanisms and the keyring are used.

    Raises:
        BadUrl, PermissionDenied, StoreUnavailable, StoreTooNew: The database cannot be used.
        Refused: A name is invalid, or names a role that is exempt from the policies.
    """
    address = parsed(url)
    if address.get_backend_name() == "sqlite":
        raise BadUrl("a team needs a PostgreSQL database, not a file", hint="Name postgresql+psycopg://ADMIN@HOST/DB.")
    leaders = list(dict.fromkeys(admins))
    names = list(dict.fromkeys([*leaders, *members]))
    for name in names:
        if not _NAME.fullmatch(name) or name.startswith("pg_") or name in ("torchyard_member", "torchyard_admin"):
            hint = "Use letters, digits, `_`, `.` and `-`, at most 63, and not pg_…."
            raise Refused(f"`{name}` cannot be the name of a role", code="bad_name", hint=hint)
        if name == address.username:
            message = f"`{name}` sets up the database and owns its tables, and owners stand above its policies"
            raise Refused(message, code="bad_name", hint="Give that person another role for booking.")
    engine = make_engine(address, password)
    try:
        with transaction(engine, writes=True) as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            _roles(connection)
            _schema(connection, address)
            made = tuple(_member(connection, name, name in leaders, address) for name in names)
        has_studies = create_study_tables(engine, address, password)
    finally:
        engine.dispose()
    return TeamSetup(place_of(address), made, has_studies)


def _roles(connection: Connection) -> None:
    for role in ("torchyard_member", "torchyard_admin"):
        if not _role_exists(connection, role):
            connection.exec_driver_sql(f"CREATE ROLE {role} NOLOGIN")
    connection.exec_driver_sql("GRANT torchyard_member TO torchyard_admin")


def _schema(connection: Connection, address: URL) -> None:
    place = place_of(address)
    version = has_calendar(connection)
    if version is not None and version not in KNOWN:
        raise StoreTooNew(place)
    connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS btree_gist SCHEMA public")
    connection.exec_driver_sql("CREATE SCHEMA IF NOT EXISTS torchyard")
    if version != HEAD:
        upgrade(connection)
    connection.exec_driver_sql("GRANT USAGE ON SCHEMA torchyard TO torchyard_member, torchyard_admin")
    is_owner = "SELECT pg_has_role(datdba, 'USAGE') FROM pg_database WHERE datname = current_database()"
    if connection.execute(text(is_owner)).scalar():
        # Members could create temporary tables that hide the calendar's tables of the same name. The calendar needs no
        # temporary tables.
        connection.exec_driver_sql(f'REVOKE TEMPORARY ON DATABASE "{address.database}" FROM PUBLIC')


def _member(connection: Connection, name: str, is_admin: bool, address: URL) -> Member:
    quoted = f'"{name}"'  # Names match _NAME, so they contain no quotation marks.
    password = None
    if not _role_exists(connection, name):
        password = secrets.token_urlsafe(18)
        # Only a SCRAM verifier is sent, so the server's statement logs do not contain the password.
        raw = connection.connection.driver_connection
        if raw is None:
            raise PermissionDenied("the connection was lost", hint="Try again.")
        verifier = raw.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()
        connection.exec_driver_sql(f"CREATE ROLE {quoted} LOGIN PASSWORD '{verifier}'")
    elif connection.execute(
        text("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = :name"), {"name": name}
    ).scalar():
        message = f"the role `{name}` is above all policies (a superuser, or BYPASSRLS)"
        raise Refused(message, code="bad_name", hint="Give that person another role for booking.")
    connection.exec_driver_sql(f"GRANT {'torchyard_admin' if is_admin else 'torchyard_member'} TO {quoted}")
    connection.execute(
        text(
            "INSERT INTO torchyard.members AS m (name, is_admin) VALUES (:name, :is_admin)"
            " ON CONFLICT (name) DO UPDATE SET is_admin = m.is_admin OR excluded.is_admin"
        ),
        {"name": name, "is_admin": is_admin},
    )
    connection.exec_driver_sql(f'GRANT CONNECT ON DATABASE "{address.database}" TO {quoted}')
    theirs = address.set(username=name)
    return Member(name, is_admin, theirs.render_as_string(), password, keyring_name(theirs))


def _role_exists(connection: Connection, name: str) -> bool:
    found = connection.execute(text("SELECT 1 FROM pg_roles WHERE rolname = :name"), {"name": name}).first()
    return found is not None
