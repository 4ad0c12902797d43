"""The address of a run's keeper. It is a random abstract address, stored as a symbolic link in the run's folder.

Creating a link is atomic and works even if the disk is full. Other users of the host can see the address, and can bind
it after the keeper has exited. Therefore a socket of another user is not treated as a keeper.
"""

from __future__ import annotations

import contextlib
import os
import socket

from torchyard_agent.peer_credentials import peer_uid
from torchyard_agent.protocol import paths

CONNECT_S = 5.0


def publish(folder: str, address: str) -> bool:
    """Publishes `address` as the address of the run's keeper. Returns False if another keeper of the run is running."""
    note = paths.keeper_note(folder)
    while True:
        try:
            os.symlink(address[1:], note)
        except FileExistsError:
            if is_alive(folder):
                return False
            with contextlib.suppress(FileNotFoundError):  # The link was left behind by a keeper that was killed.
                os.unlink(note)
        else:
            return True


def read(folder: str) -> str | None:
    """Returns the address of the run's keeper, or None if no address is published.

    The keeper that published it may have been killed since.
    """
    try:
        return "\0" + os.readlink(paths.keeper_note(folder))
    except OSError:
        return None


def withdraw(folder: str) -> None:
    """Removes the published address of the run's keeper. Called when the keeper exits."""
    with contextlib.suppress(OSError):
        os.unlink(paths.keeper_note(folder))


def is_alive(folder: str) -> bool:
    """Returns whether a keeper of the run is running on this host. Returns True if this cannot be determined."""
    address = read(folder)
    if address is None:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(CONNECT_S)
        try:
            client.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return peer_uid(client) == os.getuid()
