"""The migrations of the database schema, with one module per migration."""
