"""Alembic's migrations of the bookings database. Constraints, triggers and policies are written by hand."""
