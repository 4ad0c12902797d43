"""Authenticated frames on the data network: the gang link, and later the join store and the servers.

Both ends know the run's 256-bit secret. Each proves it over the other's nonce before anything else is said,
and every frame carries a MAC over a key of this connection, its direction and its number, so that a frame can be
neither forged, nor replayed, nor sent back. A pure codec: sockets and their deadlines are the caller's.

    listener                                      caller
       | -- hello: MAGIC, nonce_l (32) ------------> |
       | <- answer: nonce_c (32), proof_c (32) ----- |
       | -- proof_l (32) --------------------------> |
       | == frames: length (4), MAC (32), payload == |
"""

from __future__ import annotations

import hmac
import os
import struct
import threading
import time
from typing import Callable

MAGIC = b"torchyard-link-1"
NONCE_BYTES = 32
PROOF_BYTES = 32
HELLO_BYTES = len(MAGIC) + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES
HEADER = struct.Struct(">I32s")
MAX_PAYLOAD = 16 * 1024 * 1024
HANDSHAKE_DEADLINE_S = 5.0


class AuthenticationError(Exception):
    """The peer does not know the run's secret, or a frame was tampered with."""


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


def _numbered(keyed: hmac.HMAC, number: int, payload: bytes) -> bytes:
    """The MAC of a frame. Copying what has its key already takes a third of the time of beginning anew."""
    mac = keyed.copy()
    mac.update(number.to_bytes(8, "big") + payload)
    return mac.digest()


def exchange_key(secret: bytes) -> bytes:
    """The key of those who are no keepers: ranks, at the join store and among each other.

    Made from the run's secret, which no rank is told: so a training script cannot pose as a keeper.
    """
    return _mac(secret, b"exchange")


def new_nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


def hello(nonce: bytes) -> bytes:
    """What a listener says first."""
    return MAGIC + nonce


def answer(secret: bytes, hello: bytes, nonce: bytes) -> bytes:
    """What a caller replies to `hello`."""
    if len(hello) != HELLO_BYTES or not hello.startswith(MAGIC):
        raise AuthenticationError("the other side does not speak Torchyard's link protocol")
    return nonce + _mac(secret, b"caller", hello, nonce)


def accept(secret: bytes, hello: bytes, answer: bytes) -> bytes:
    """The listener's proof, once the caller's has been verified."""
    nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _mac(secret, b"caller", hello, nonce)):
        raise AuthenticationError("the caller does not know the run's secret")
    return _mac(secret, b"listener", hello, nonce)


def verify(secret: bytes, hello: bytes, nonce: bytes, proof: bytes) -> None:
    """The caller's check of the listener's proof."""
    if not hmac.compare_digest(proof, _mac(secret, b"listener", hello, nonce)):
        raise AuthenticationError("the listener does not know the run's secret")


class FrameCodec:
    """Seals and opens the frames of one connection, once both sides have proved themselves."""

    def __init__(self, secret: bytes, hello: bytes, caller_nonce: bytes, *, is_caller: bool):
        key = _mac(secret, b"session", hello, caller_nonce)
        self._sealer = hmac.new(_mac(key, b"caller" if is_caller else b"listener"), digestmod="sha256")
        self._opener = hmac.new(_mac(key, b"listener" if is_caller else b"caller"), digestmod="sha256")
        self._sealed = 0
        self._opened = 0

    def seal(self, payload: bytes) -> bytes:
        """One frame, header and all."""
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"a frame of {len(payload)} bytes is over the limit of {MAX_PAYLOAD}")
        mac = _numbered(self._sealer, self._sealed, payload)
        self._sealed += 1
        return HEADER.pack(len(payload), mac) + payload

    def open_header(self, header: bytes) -> tuple[int, bytes]:
        """(payload length, its MAC). The length is checked before a byte of the payload is received."""
        length, mac = HEADER.unpack(header)
        if length > MAX_PAYLOAD:
            raise AuthenticationError(f"a frame of {length} bytes is over the limit of {MAX_PAYLOAD}")
        return length, mac

    def open_payload(self, mac: bytes, payload: bytes) -> bytes:
        """The payload, after its MAC was verified."""
        if not hmac.compare_digest(mac, _numbered(self._opener, self._opened, payload)):
            raise AuthenticationError("a frame's MAC does not match: forged, replayed or damaged")
        self._opened += 1
        return payload


EVERY_S = 60.0
"""One line about refused callers in so many seconds."""


class Refusals:
    """Counts refused callers of one listener. May be used from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.count = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._unsaid = 0
        self._said_at = float("-inf")

    def note(self, sentence: str) -> str:
        """The line for the log about a refusal, at most one a minute; empty for one that is only counted."""
        with self._lock:
            self.count += 1
            now = self._clock()
            if now - self._said_at < EVERY_S:
                self._unsaid += 1
                return ""
            unsaid, self._unsaid, self._said_at = self._unsaid, 0, now
        return f"{sentence} ({unsaid} more since the last such line, {self.count} in all)" if unsaid else sentence
