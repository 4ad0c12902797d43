"""The umask: the agent's own files are its user's alone, and the user's programs get the one of their login."""

from __future__ import annotations

import os

VARIABLE = "TORCHYARD_UMASK"
"""The login's umask, octal, handed from the bootstrap to the daemon and to keepers."""


def keep_files_private() -> None:
    """Gives what this process creates no permissions for others; the umask before is kept for the user's programs."""
    before = os.umask(0o077)
    os.environ.setdefault(VARIABLE, f"{before:o}")


def of_login() -> int:
    """The umask for a user's program; -1, which leaves it as it is, where no other was noted."""
    try:
        return int(os.environ.get(VARIABLE, ""), 8)
    except ValueError:
        return -1
