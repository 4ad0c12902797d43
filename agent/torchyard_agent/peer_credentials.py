"""The PID and UID of a Unix socket's peer, as reported by the kernel."""

from __future__ import annotations

import socket
import struct

UCRED = struct.Struct("3i")
"""The kernel's struct ucred: PID, UID, GID."""


def peer_pid(connection: socket.socket) -> int:
    """Returns the PID of the peer, or 0 if it is hidden.

    If the peer is a server, the PID is that of the process that called listen().
    """
    return int(UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))[0])


def peer_uid(connection: socket.socket) -> int:
    """Returns the UID of the peer, which must be checked because abstract sockets have no file permissions."""
    return int(UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))[1])
