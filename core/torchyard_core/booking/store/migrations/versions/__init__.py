"""The migrations of the database schema, one module for each."""
