"""The PID and UID of a Unix socket's peer, from the kernel."""

from __future__ import annotations

import socket
import struct

_UCRED = struct.Struct("3i")


def peer_pid(connection: socket.socket) -> int:
    """PID of the peer; for a server, the process that began to listen. 0 if it is hidden."""
    pid, _, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(pid)


def peer_uid(connection: socket.socket) -> int:
    """UID of the peer (SO_PEERCRED): abstract sockets have no file permissions."""
    _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)
