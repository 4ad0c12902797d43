"""The address of a run's keeper: a random abstract socket, whose name a link in the run's folder holds.

A link, since it is made whole or not at all, and needs no room on a full disk. Other users of the host see the name
once it is bound, and can bind it after the keeper's end: what is served by another user counts as no keeper.
"""

from __future__ import annotations

import contextlib
import os
import socket

from torchyard_agent.peer_credentials import peer_uid
from torchyard_agent.protocol import paths

CONNECT_S = 5.0


def publish(folder: str, address: str) -> bool:
    """Notes the address, bound already, as the run's. False where another keeper of the run is alive."""
    note = paths.keeper_note(folder)
    while True:
        try:
            os.symlink(address[1:], note)
        except FileExistsError:
            if is_alive(folder):
                return False
            with contextlib.suppress(FileNotFoundError):  # of a keeper that was killed
                os.unlink(note)
        else:
            return True


def read(folder: str) -> str | None:
    """The address of the run's keeper; None where there is none, or it is not up yet."""
    try:
        return "\0" + os.readlink(paths.keeper_note(folder))
    except OSError:
        return None


def withdraw(folder: str) -> None:
    """The keeper leaves."""
    with contextlib.suppress(OSError):
        os.unlink(paths.keeper_note(folder))


def is_alive(folder: str) -> bool:
    """Whether a keeper of this run lives on this host. When in doubt, it does."""
    address = read(folder)
    if address is None:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(CONNECT_S)
        try:
            asking.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return peer_uid(asking) == os.getuid()
