"""Who sits at this desktop, as runs and hosts are told: what a person may claim, not what anybody has proved."""

from __future__ import annotations

import getpass
import os
import socket


def who_asks() -> str:
    """`kim@laptop`: the user as the environment or the password file has it, and this computer."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container whose user has no name
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "somebody"
    return f"{user}@{socket.gethostname()}"
