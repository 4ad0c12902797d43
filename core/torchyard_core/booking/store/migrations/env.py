"""Alembic's environment: migrations run in the connection and transaction of `database_engine.upgrade`."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
