"""Who is at the other end of a Unix socket, as the kernel knows it."""

from __future__ import annotations

import socket
import struct

_UCRED = struct.Struct("3i")


def peer_pid(connection: socket.socket) -> int:
    """PID of the process at the other end: of a server, the one that began to listen. 0 where it cannot be seen."""
    pid, _, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(pid)


def peer_uid(connection: socket.socket) -> int:
    """UID of the process at the other end (SO_PEERCRED): an abstract name has no file permissions to rely on."""
    _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)
