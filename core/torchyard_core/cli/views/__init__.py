"""Output of commands: tables, details and progress."""
