"""Writes messages to a user's terminals in the same way as write(1), if the kernel permits it."""

from __future__ import annotations

import os
import stat
import time

FOLDER = "/dev/pts"
MAX_TERMINALS = 32
"""Maximum number of a user's terminals to which a message is written."""


def write(uid: int, text: str, folder: str = FOLDER) -> int:
    """Writes the text to the user's terminals without blocking, and returns the number of terminals written to."""
    message = f"\r\n\a{_printable(text)} [{time.strftime('%H:%M')}]\r\n".encode()
    reached = 0
    try:
        names = sorted(name for name in os.listdir(folder) if name.isdecimal())
    except OSError:
        return 0
    for name in names:
        if reached == MAX_TERMINALS:
            break
        path = os.path.join(folder, name)
        try:
            if os.stat(path).st_uid != uid:
                continue
            terminal = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # The terminal was just closed, or its user does not accept messages (mesg n).
        try:
            found = os.fstat(terminal)
            if stat.S_ISCHR(found.st_mode) and found.st_uid == uid:
                os.write(terminal, message)
                reached += 1
        except OSError:
            continue  # The output buffer of the terminal is full.
        finally:
            os.close(terminal)
    return reached


def _printable(text: str) -> str:
    """Removes characters that are not printable, because titles and names come from other users."""
    return "".join(letter for letter in text if letter.isprintable())
