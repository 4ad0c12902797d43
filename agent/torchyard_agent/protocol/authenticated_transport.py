"""Authenticated frames between the processes of a run: handshake, framing and encoding of messages.

This module does no I/O. The gang link, the join store and the exchange of tensors use the same state machines. Both
ends know a 256-bit key, and each end proves this with a MAC over the other's nonce. Every frame has a MAC over its
number and payload, with a key that is specific to the connection and the direction. Therefore frames cannot be forged,
replayed or reflected. Frames are not encrypted. The owner of a connection handles its socket and deadlines.

    listener                                      caller
       | -- hello: MAGIC, nonce_l (32) ------------> |
       | <- answer: nonce_c (32), proof_c (32) ----- |
       | -- proof_l (32), or REFUSAL --------------> |
       | == frames: length (4), MAC (32), payload == |

The payload of a frame is a message, which is a JSON object, unless both ends expect raw bytes. In a request, `op` is
the name of the operation.
"""

from __future__ import annotations

import hmac
import json
import os
import struct
import threading
import time
from typing import Any, Callable, Union

Message = dict[str, Any]

MAGIC = b"torchyard-link-2"
NONCE_BYTES = 32
PROOF_BYTES = 32
HELLO_BYTES = len(MAGIC) + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES
REFUSAL = bytes(PROOF_BYTES)
"""Sent instead of the listener's proof if the caller has a different key. The caller need not try again."""
HEADER = struct.Struct(">I32s")
MAX_PAYLOAD = 16 * 1024 * 1024
HANDSHAKE_DEADLINE_S = 5.0


class AuthenticationError(Exception):
    """Raised if the peer does not know the key, or a frame is forged, damaged or invalid."""


class KeyRefused(AuthenticationError):
    """Raised if the listener reports that this caller has a different key."""


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


def exchange_key(secret: bytes) -> bytes:
    """Returns the key that ranks use for the join store and for connections between them.

    The key is derived from the run's secret. Ranks do not receive the secret itself, because a training script could
    otherwise pose as a keeper.
    """
    return _mac(secret, b"exchange")


class CallerHandshake:
    """The handshake on the caller's side.

    The owner reads exactly `expects` bytes, passes them to receive() and sends the result, and repeats this until
    `expects` is 0.
    """

    to_send = b""
    """The bytes that this side sends before it receives any bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._hello = b""
        self._nonce = os.urandom(NONCE_BYTES)
        self.expects = HELLO_BYTES

    def receive(self, data: bytes) -> bytes:
        """Returns the next bytes to send. Raises AuthenticationError, or KeyRefused if the listener has another key."""
        if not self._hello:
            if not data.startswith(MAGIC):
                raise AuthenticationError("the other side does not speak Torchyard's link protocol")
            self._hello, self.expects = data, PROOF_BYTES
            return self._nonce + _mac(self._key, b"caller", data, self._nonce)
        if data == REFUSAL:
            raise KeyRefused("the listener has another key")
        if not hmac.compare_digest(data, _mac(self._key, b"listener", self._hello, self._nonce)):
            raise AuthenticationError("the listener does not know the run's secret")
        self.expects = 0
        return b""

    def codec(self) -> FrameCodec:
        """Returns the codec for the frames of this connection. Must be called after the handshake."""
        return FrameCodec(self._key, self._hello, self._nonce, is_caller=True)


class ListenerHandshake:
    """The handshake on the listener's side. The caller must know one of several keys.

    This class is used like CallerHandshake.
    """

    def __init__(self, *keys: bytes) -> None:
        self._keys = keys
        self._nonce = b""
        self.key: bytes | None = None
        """The key that the caller has proved to know, or None if the caller has not proved to know any of the keys."""
        self.to_send = MAGIC + os.urandom(NONCE_BYTES)
        self.expects = ANSWER_BYTES

    def receive(self, data: bytes) -> bytes:
        """Returns the next bytes to send, which are REFUSAL if the caller has none of the keys."""
        self._nonce, proof = data[:NONCE_BYTES], data[NONCE_BYTES:]
        self.expects = 0
        for key in self._keys:
            if hmac.compare_digest(proof, _mac(key, b"caller", self.to_send, self._nonce)):
                self.key = key
                return _mac(key, b"listener", self.to_send, self._nonce)
        return REFUSAL

    def codec(self) -> FrameCodec:
        """Returns the codec for the frames of this connection. Must be called after the handshake.

        Raises AuthenticationError if the caller was refused.
        """
        if self.key is None:
            raise AuthenticationError("the caller does not know the run's secret")
        return FrameCodec(self.key, self.to_send, self._nonce, is_caller=False)


Handshake = Union[CallerHandshake, ListenerHandshake]


class FrameCodec:
    """The encoder and decoder of the frames of one connection.

    To receive, the owner reads exactly `expects` bytes and passes them to receive(), alternately a header and a
    payload.
    """

    def __init__(self, key: bytes, hello: bytes, caller_nonce: bytes, *, is_caller: bool) -> None:
        session = _mac(key, b"session", hello, caller_nonce)
        self._sealer = hmac.new(_mac(session, b"caller" if is_caller else b"listener"), digestmod="sha256")
        self._opener = hmac.new(_mac(session, b"listener" if is_caller else b"caller"), digestmod="sha256")
        self._sealed = 0
        self._opened = 0
        self._received_mac: bytes | None = None
        self.expects = HEADER.size

    def seal(self, payload: bytes) -> bytes:
        """Returns the frame of a payload, including its header. Raises ValueError if the payload is too long."""
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"a frame of {len(payload)} bytes is over the limit of {MAX_PAYLOAD}")
        mac = _frame_mac(self._sealer, self._sealed, payload)
        self._sealed += 1
        return HEADER.pack(len(payload), mac) + payload

    def receive(self, data: bytes, limit: int = MAX_PAYLOAD) -> bytes | None:
        """Returns the verified payload, or None after a header.

        Raises AuthenticationError if the frame is invalid. If the frame is longer than `limit`, the error is raised
        before any byte of the payload is received.
        """
        if self._received_mac is None:
            length, mac = HEADER.unpack(data)
            if length > limit:
                raise AuthenticationError(f"a frame of {length} bytes is over the limit of {limit}")
            self._received_mac, self.expects = mac, length
            return None
        if not hmac.compare_digest(self._received_mac, _frame_mac(self._opener, self._opened, data)):
            raise AuthenticationError("a frame's MAC does not match: forged, replayed or damaged")
        self._received_mac, self.expects = None, HEADER.size
        self._opened += 1
        return data


def _frame_mac(keyed: hmac.HMAC, number: int, payload: bytes) -> bytes:
    mac = keyed.copy()  # Copying an HMAC takes a third of the time of creating a new one with the same key.
    mac.update(number.to_bytes(8, "big") + payload)
    return mac.digest()


_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def encode_message(message: Message) -> bytes:
    return _to_json(message).encode()


def decode_message(payload: bytes) -> Message:
    """Decodes a message, which is a JSON object. Raises AuthenticationError if the payload is anything else."""
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise AuthenticationError(f"a frame is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise AuthenticationError("a frame is not a JSON object")
    return message


EVERY_S = 60.0
"""Shortest time in seconds between two log lines about refused callers."""


class RefusedConnections:
    """A counter of the callers that a listener has refused. Its methods are thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.count = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._unreported = 0
        self._reported_at = float("-inf")

    def note(self, sentence: str) -> str:
        """Counts a refusal. Returns the line to log, or "" if a line was logged less than EVERY_S ago."""
        with self._lock:
            self.count += 1
            now = self._clock()
            if now - self._reported_at < EVERY_S:
                self._unreported += 1
                return ""
            unreported, self._unreported, self._reported_at = self._unreported, 0, now
        if not unreported:
            return sentence
        return f"{sentence} ({unreported} more since the last such line, {self.count} in all)"
