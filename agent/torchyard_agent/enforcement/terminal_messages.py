"""Messages on a user's terminals, as write(1) leaves them: only where the kernel lets this agent write."""

from __future__ import annotations

import os
import stat
import time

FOLDER = "/dev/pts"
MOST = 32
"""Terminals of one user that are written to."""


def tell(uid: int, text: str, folder: str = FOLDER) -> int:
    """Writes the text to the user's terminals; to how many. None of them is waited for."""
    message = f"\r\n\a{_printable(text)} [{time.strftime('%H:%M')}]\r\n".encode()
    reached = 0
    try:
        names = sorted(name for name in os.listdir(folder) if name.isdecimal())
    except OSError:
        return 0
    for name in names:
        if reached == MOST:
            break
        path = os.path.join(folder, name)
        try:
            if os.stat(path).st_uid != uid:
                continue
            terminal = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # it was closed just now, or its user lets nobody write (mesg n)
        try:
            found = os.fstat(terminal)
            if stat.S_ISCHR(found.st_mode) and found.st_uid == uid:
                os.write(terminal, message)
                reached += 1
        except OSError:
            continue  # nobody reads there: it is full
        finally:
            os.close(terminal)
    return reached


def _printable(text: str) -> str:
    """Titles and names are others' words: nothing in them may steer a terminal."""
    return "".join(letter for letter in text if letter.isprintable())
