"""Functions for blocking sockets: options, exact reads, and the authenticated handshake."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from torchyard_agent.protocol.authenticated_transport import FrameCodec, Handshake

PROBE_EVERY_S = 2
PROBES = 3


def tune(sock: socket.socket, dead_after_s: int) -> None:
    """Makes a socket send small messages immediately, and detect a dead peer within about `dead_after_s` seconds.

    An idle connection is probed, and a connection with unacknowledged data times out. The kernel chooses the sizes of
    the buffers: fixed sizes did not increase the throughput on loopback, and on slow links large buffers delay later
    chunks. Between two processes on one host, the congestion control is reno, because BBR uses a timer for every 64
    KiB, which took a quarter of a reducer's CPU time.
    """
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError, AttributeError):
        # The peer may already have disconnected, and TCP_CONGESTION exists only on Linux.
        if sock.getsockname()[0] == sock.getpeername()[0]:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(PROBE_EVERY_S, dead_after_s - PROBES * PROBE_EVERY_S)),
        ("TCP_KEEPINTVL", PROBE_EVERY_S),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", dead_after_s * 1000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def limit_unsent(sock: socket.socket, size: int) -> None:
    """Limits the unsent bytes in the kernel's buffer, so that a blocking send() keeps pace with the link."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT") and sock.family != socket.AF_UNIX:
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size)


def authenticate(sock: socket.socket, handshake: Handshake, deadline: float) -> FrameCodec:
    """Performs one side of the handshake, until a deadline on the monotonic clock.

    The socket has a timeout afterwards. Raises OSError or AuthenticationError if the handshake fails.
    """
    sock.settimeout(max(0.01, deadline - time.monotonic()))
    sock.sendall(handshake.to_send)
    while handshake.expects:
        sock.sendall(handshake.receive(read_exactly(sock, handshake.expects, deadline)))
    return handshake.codec()


def read_exactly(sock: socket.socket, size: int, deadline: float = 0.0) -> bytes:
    """Reads exactly `size` bytes. Raises an error if this is not possible before `deadline` on the monotonic clock.

    If `deadline` is 0, the socket's timeout applies instead.
    """
    buffer = bytearray(size)
    view, done = memoryview(buffer), 0
    while done < size:
        if deadline:
            sock.settimeout(max(0.01, deadline - time.monotonic()))
        done += _receive_some(sock, view[done:])
    return bytes(buffer)


def read_into(sock: socket.socket, view: memoryview) -> None:
    """Fills a view completely with data from a blocking socket."""
    done = 0
    while done < len(view):
        done += _receive_some(sock, view[done:])


def _receive_some(sock: socket.socket, view: memoryview) -> int:
    # With MSG_WAITALL, the kernel fills the whole view without returning to Python in between.
    count = sock.recv_into(view, 0, socket.MSG_WAITALL)
    if not count:
        raise ConnectionResetError("it closed the connection")
    return count


def send_all(sock: socket.socket, parts: list[bytes | memoryview]) -> int:
    """Sends all parts, removes them from the list, and returns the number of bytes sent."""
    total = 0
    while parts:
        sent = sock.sendmsg(parts)
        total += sent
        _drop(parts, sent)
    return total


def send_some(sock: socket.socket, parts: list[bytes | memoryview]) -> int:
    """Sends as much as possible without waiting, leaves the rest in `parts`, and returns the number of bytes sent."""
    try:
        sent = sock.sendmsg(parts, (), socket.MSG_DONTWAIT)
    except BlockingIOError:
        return 0
    _drop(parts, sent)
    return sent


def _drop(parts: list[bytes | memoryview], sent: int) -> None:
    """Removes the first `sent` bytes from the list of parts."""
    while parts and sent >= len(parts[0]):
        sent -= len(parts.pop(0))
    if sent:
        parts[0] = memoryview(parts[0])[sent:]
