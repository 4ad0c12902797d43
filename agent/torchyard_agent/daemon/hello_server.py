"""A small server that answers `hello` before asyncio and other large modules are imported.

A deployment is complete when every agent has answered `hello`. The imports, which take 0.1 s of CPU time per host, are
delayed until the first other request. Measured with eight hosts on two cores: a deployment took 4.0 times as long as
the upload alone when asyncio was imported at the start, and 2.3 times as long when its import was delayed.
"""

from __future__ import annotations

import json
import os
import select
import socket
from typing import Any, Callable

from torchyard_agent.peer_credentials import peer_uid

SETTLE_AFTER_MS = 2000
LONGEST_HELLO = 65536
"""Maximum length of an incomplete request in bytes. A longer request is passed to the asyncio server."""


Conversations = list[tuple[socket.socket, bytes]]
"""The open sockets, each with the bytes that were received and not yet answered."""


def answer_hello(
    listener: socket.socket,
    hello: dict[str, Any],
    settle: Callable[[], None],
    retiring: Callable[[dict[str, Any]], None] = lambda params: None,
) -> Conversations | None:
    """Answers `hello` requests until a client sends a different or invalid request, or does not read its answers.

    Args:
        settle: Unpacks a new archive. Called once, when no client has been active for SETTLE_AFTER_MS.
        retiring: Called with the parameters of `retire`.

    Returns:
        The open sockets with their unanswered bytes, or None if the last request was `retire`.
    """
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    open_now: dict[int, tuple[socket.socket, bytes]] = {}
    wait_ms: int | None = SETTLE_AFTER_MS
    while True:
        ready = poll.poll(wait_ms)
        if not ready:
            settle()
            wait_ms = None
        for descriptor, _ in ready:
            if descriptor == listener.fileno():
                client, _ = listener.accept()
                if peer_uid(client) != os.getuid():
                    client.close()
                    continue
                open_now[client.fileno()] = (client, b"")
                poll.register(client, select.POLLIN)
                continue
            client, pending = open_now[descriptor]
            data = _receive(client)
            pending += data
            if data:
                pending, method = _answer(client, pending, hello, retiring)
                open_now[descriptor] = (client, pending)
                if method == "retire":
                    for left, _ in open_now.values():
                        left.close()
                    return None
                if method:
                    return list(open_now.values())
            else:
                poll.unregister(client)
                del open_now[descriptor]
                client.close()


def _receive(client: socket.socket) -> bytes:
    try:
        return client.recv(65536)
    except OSError:
        return b""


def _answer(
    client: socket.socket, pending: bytes, hello: dict[str, Any], retiring: Callable[[dict[str, Any]], None]
) -> tuple[bytes, str]:
    """Answers complete requests, and returns the unanswered bytes and the method of the first unanswered request.

    The method is "" if all requests were `hello`. If a request cannot be answered, the method is a description of the
    problem.
    """
    while b"\n" in pending:
        line, rest = pending.split(b"\n", 1)
        try:
            request = json.loads(line)
            id, method = request["id"], str(request["method"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return pending, "unreadable"
        if method not in ("hello", "retire"):
            return pending, method
        answer = {"jsonrpc": "2.0", "id": id, "result": hello if method == "hello" else {}}
        try:
            # A line this short is sent either completely or not at all.
            client.send(json.dumps(answer).encode() + b"\n", socket.MSG_DONTWAIT)
        except BlockingIOError:
            return pending, "never reads"  # The client reads no answers. The asyncio server closes the connection.
        except OSError:
            pass  # The client has disconnected, but a `retire` request is executed nevertheless.
        if method == "retire":
            params = request.get("params")
            retiring(params if isinstance(params, dict) else {})
            return rest, method
        pending = rest
    return pending, "too long" if len(pending) > LONGEST_HELLO else ""
