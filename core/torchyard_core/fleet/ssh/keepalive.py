"""Keepalive for SSH connections, with requests that the server must answer.

paramiko's own keepalive expects no answer, so it does not detect that the server has disappeared (power failure,
unplugged cable, lost NAT state). TCP alone detects this only after about 15 minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import paramiko
from paramiko.common import cMSG_GLOBAL_REQUEST
from paramiko.packet import Packetizer


class KeepalivePacketizer(Packetizer):
    """A packetizer that requests an answer after silence, and ends the connection after several unanswered requests.

    The checks run on the transport's thread.
    """

    def __init__(self, sock: Any):
        super().__init__(sock)
        self._heard_at = time.monotonic()
        self._unanswered = 0
        self._sending = 0
        self._sending_lock = threading.Lock()
        self._interval_s = 0.0
        self._count = 0
        self._ask: Callable[[], None] = lambda: None

    def watch(self, interval_s: float, count: int, ask: Callable[[], None]) -> None:
        """Starts calling `ask` after each silence of `interval_s` seconds.

        If the silence continues for another interval after `count` calls, the connection ends.
        """
        self._heard_at = time.monotonic()
        self._ask, self._count, self._interval_s = ask, count, interval_s

    def read_message(self) -> Any:
        found = super().read_message()
        self._heard_at = time.monotonic()
        self._unanswered = 0
        return found

    def send_message(self, data: Any) -> None:
        """Sends a message. Blocks while the peer does not read."""
        with self._sending_lock:
            self._sending += 1
        try:
            super().send_message(data)
        finally:
            with self._sending_lock:
                self._sending -= 1

    def _check_keepalive(self) -> None:
        """Checks for silence. paramiko calls this method ten times a second while no data arrives."""
        if not self._interval_s or time.monotonic() - self._heard_at < self._interval_s:
            return
        if self._unanswered >= self._count:
            raise EOFError  # paramiko ends the transport on EOFError.
        self._unanswered += 1
        self._heard_at = time.monotonic()
        # While another message is being sent, no request can be sent. The interval still counts as an unanswered
        # request, because the peer may have stopped reading.
        if not self._sending:
            self._ask()


def keepalive_request() -> paramiko.Message:
    """Returns a request that sshd answers with a failure. Any answer proves that the host is alive."""
    request = paramiko.Message()
    request.add_byte(cMSG_GLOBAL_REQUEST)
    request.add_string("keepalive@openssh.com")
    request.add_boolean(True)  # The flag `want reply` requests an answer.
    return request


def keep_alive(transport: paramiko.Transport, interval_s: float, count: int) -> None:
    """Makes `transport` send a keepalive request after each silence of `interval_s` seconds.

    If `count` requests remain unanswered, the transport ends.
    """
    packetizer = transport.packetizer
    assert isinstance(packetizer, KeepalivePacketizer)

    def ask() -> None:
        if transport.in_kex or not transport.clear_to_send.is_set():
            return  # A key exchange allows no other message. The time still counts as silence.
        transport._send_message(keepalive_request())  # type: ignore[attr-defined]  # The type stubs lack this attribute.

    packetizer.watch(interval_s, count, ask)
