"""Two umasks: a private one for the agent's files, and the login's umask for the user's programs."""

from __future__ import annotations

import os

VARIABLE = "TORCHYARD_UMASK"
"""Environment variable with the umask of the login in octal, which the bootstrap passes to the daemon and keepers."""


def keep_files_private() -> None:
    """Sets a private umask. Stores the previous umask for the user's programs, unless the bootstrap has stored one."""
    before = os.umask(0o077)
    os.environ.setdefault(VARIABLE, f"{before:o}")


def of_login() -> int:
    """Returns the umask for a user's program. Returns -1, which means no change, if no umask was stored."""
    try:
        return int(os.environ.get(VARIABLE, ""), 8)
    except ValueError:
        return -1
