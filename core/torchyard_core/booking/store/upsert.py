"""INSERT … ON CONFLICT, in the dialects of both databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    renewed: Sequence[str],
    *,
    newest: str | None = None,
) -> None:
    """Inserts; where the key is there, renews the named columns, with `newest` unless that column would decrease."""
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement: Any = make(table)
    columns = {name: statement.excluded[name] for name in renewed}
    keys = list(table.primary_key.columns)
    if columns:
        where = statement.excluded[newest] >= table.c[newest] if newest else None
        statement = statement.on_conflict_do_update(index_elements=keys, set_=columns, where=where)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    connection.execute(statement, list(rows))
