"""The user of this desktop, identified by the login name, which is not authenticated."""

from __future__ import annotations

import getpass
import os
import socket


def login_name() -> str:
    """Returns the name of the logged-in user, or a substitute such as `uid-1000` if the user has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # In a container, the user ID may have no user name.
        return f"uid-{os.getuid()}" if hasattr(os, "getuid") else "me"


def desktop_identity() -> str:
    """Returns the user and the computer as runs and hosts record them: `kim@laptop`."""
    return f"{login_name()}@{socket.gethostname()}"
