"""Alembic runs this: it migrates over the connection, and inside the transaction, that `upgrade` hands over."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
