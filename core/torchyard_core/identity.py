"""The user of this desktop, by the name that the operating system gives. It is a claim, not a proof."""

from __future__ import annotations

import getpass
import os
import socket


def login_name() -> str:
    """The name of the logged-in user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container whose user has no name
        return f"uid-{os.getuid()}" if hasattr(os, "getuid") else "me"


def desktop_identity() -> str:
    """`kim@laptop`: the user and the computer, as runs and hosts record it."""
    return f"{login_name()}@{socket.gethostname()}"
