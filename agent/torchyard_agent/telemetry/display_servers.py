"""Recognizes display servers on a GPU by their executables, because a process can choose any name.

The executable must have a known name and be in a folder that only root may write to. It must also be the file that the
agent finds at the same path, because a user can substitute another file there in a mount namespace. An executable that
an update has replaced is also accepted. A process that only draws is on the driver's list of graphics processes, and
not on its list of compute processes.
"""

from __future__ import annotations

import os
import stat

NAMES = frozenset(
    {"X", "Xorg", "Xwayland", "gnome-shell", "mutter", "kwin_x11", "kwin_wayland", "plasmashell", "sway", "weston"}
)
_DELETED = " (deleted)"
"""Suffix that the kernel adds to the path of an executable that was replaced or deleted."""


def is_display_server(pid: int) -> bool | None:
    """Returns whether the process runs a display server's executable, or None if this user cannot read its path."""
    link = f"/proc/{pid}/exe"
    try:
        path = os.readlink(link)
    except PermissionError:
        return None
    except OSError:
        return False
    replaced = path.endswith(_DELETED)
    path = path[: -len(_DELETED)] if replaced else path
    if os.path.basename(path) not in NAMES:
        return False
    try:
        runs = os.stat(link)
        if not _is_roots(runs) or not all(_is_roots(os.stat(folder)) for folder in _folders(path)):
            return False
        return replaced or os.path.samestat(runs, os.stat(path))
    except OSError:
        return False


def draws_screen(display_server: bool | None, name: str, computes: bool) -> bool:
    """Returns whether a process is a display server that only draws on a GPU.

    Args:
        display_server: The result of `is_display_server`. If it is None, the decision depends on `name`.
        computes: Whether the process is on the list of compute processes.
    """
    return not computes and (name in NAMES if display_server is None else display_server)


def _is_roots(about: os.stat_result) -> bool:
    """Returns whether only root may change the file."""
    return about.st_uid == 0 and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _folders(path: str) -> list[str]:
    found = [os.path.dirname(path)]
    while found[-1] not in ("/", ""):
        found.append(os.path.dirname(found[-1]))
    return found
