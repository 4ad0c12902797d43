"""Alembic migrations of the bookings database, with hand-written constraints, triggers and policies."""
