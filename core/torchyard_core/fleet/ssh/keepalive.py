"""Whether the other side is still there: SSH's own keepalive, which asks for an answer.

paramiko's keepalive wants none and so never learns of a peer that has gone without a word (power cut, pulled cable,
a bastion that forgot us): TCP alone takes a quarter of an hour.
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
    """Notes when something was heard, and asks after a silence. Its methods run on the transport's thread."""

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
        """From now on `ask` is called after `interval_s` of silence; after `count` silences in a row it is over."""
        self._heard_at = time.monotonic()
        self._ask, self._count, self._interval_s = ask, count, interval_s

    def read_message(self) -> Any:
        """The next message, as paramiko reads it."""
        found = super().read_message()
        self._heard_at = time.monotonic()
        self._unanswered = 0
        return found

    def send_message(self, data: Any) -> None:
        """Sends a message, as paramiko does. Blocks while the other side takes nothing."""
        with self._sending_lock:
            self._sending += 1
        try:
            super().send_message(data)
        finally:
            with self._sending_lock:
                self._sending -= 1

    def _check_keepalive(self) -> None:
        """paramiko calls this ten times a second while nothing comes."""
        if not self._interval_s or time.monotonic() - self._heard_at < self._interval_s:
            return
        if self._unanswered >= self._count:
            raise EOFError  # the transport ends, and all who wait for it are told
        self._unanswered += 1
        self._heard_at = time.monotonic()
        if not self._sending:  # else the question would wait behind what is not taken, and silence is answer enough
            self._ask()


def keep_alive(transport: paramiko.Transport, interval_s: float, count: int) -> None:
    """Ends the transport when the other side has been silent through `count` questions, one each `interval_s`."""
    packetizer = transport.packetizer
    assert isinstance(packetizer, KeepalivePacketizer)

    def ask() -> None:
        if transport.in_kex or not transport.clear_to_send.is_set():
            return  # new keys are being agreed on: nothing else may be sent, and silence counts all the same
        question = paramiko.Message()
        question.add_byte(cMSG_GLOBAL_REQUEST)
        question.add_string("keepalive@openssh.com")
        question.add_boolean(True)  # any answer will do, and sshd's is a refusal
        transport._send_message(question)  # type: ignore[attr-defined]  # the stubs leave it out

    packetizer.watch(interval_s, count, ask)
