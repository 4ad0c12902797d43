"""Which processes are on a GPU because a monitor is: by their executables, since a process chooses its own name.

A display server runs an executable that root installed: a file of that name in a folder that root alone may write,
and the very file that this process sees under that path (a user can mount another one there in a namespace of their
own). It is on the driver's list of graphics processes alone.
"""

from __future__ import annotations

import os
import stat

NAMES = frozenset(
    {"X", "Xorg", "Xwayland", "gnome-shell", "mutter", "kwin_x11", "kwin_wayland", "plasmashell", "sway", "weston"}
)
_DELETED = " (deleted)"
"""What the kernel appends to the path of an executable that an upgrade has replaced."""


def is_display_server(pid: int) -> bool | None:
    """Whether the process runs a display server's executable; None where this user may not see which it runs."""
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
    """Whether a process does nothing on a GPU but draw. `computes`: it is on the list of compute processes.

    `display_server` is `is_display_server`'s answer; where that is None the name decides.
    """
    return not computes and (name in NAMES if display_server is None else display_server)


def _is_roots(about: os.stat_result) -> bool:
    """Only root may change it."""
    return about.st_uid == 0 and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _folders(path: str) -> list[str]:
    found = [os.path.dirname(path)]
    while found[-1] not in ("/", ""):
        found.append(os.path.dirname(found[-1]))
    return found
