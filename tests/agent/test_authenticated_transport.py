"""Tests of the authenticated transport, which is a state machine without sockets."""

from __future__ import annotations

import pytest

from torchyard_agent.protocol.authenticated_transport import (
    MAX_PAYLOAD,
    REFUSAL,
    AuthenticationError,
    CallerHandshake,
    FrameCodec,
    KeyRefused,
    ListenerHandshake,
    decode_message,
    encode_message,
)

KEY, OTHER = b"k" * 32, b"o" * 32


def shake_hands(caller: CallerHandshake, listener: ListenerHandshake) -> tuple[FrameCodec, FrameCodec]:
    """Completes a handshake; returns the caller's and the listener's codec."""
    answer = caller.receive(caller.to_send + listener.to_send)
    assert caller.receive(listener.receive(answer)) == b""
    assert caller.expects == listener.expects == 0
    return caller.codec(), listener.codec()


def opened(codec: FrameCodec, frame: bytes, limit: int = MAX_PAYLOAD) -> bytes | None:
    size = codec.expects
    assert codec.receive(frame[:size], limit) is None
    assert codec.expects == len(frame) - size
    return codec.receive(frame[size:], limit)


def test_both_ends_exchange_frames_after_the_handshake() -> None:
    listener = ListenerHandshake(OTHER, KEY)
    ends = shake_hands(CallerHandshake(KEY), listener)
    assert listener.key == KEY
    for sender, receiver in (ends, ends[::-1]):
        for payload in (b"", encode_message({"op": "set"}), b"x" * 1000):
            assert opened(receiver, sender.seal(payload)) == payload


def test_a_caller_with_another_key_is_refused_at_both_ends() -> None:
    caller, listener = CallerHandshake(OTHER), ListenerHandshake(KEY)
    refusal = listener.receive(caller.receive(listener.to_send))
    assert refusal == REFUSAL
    with pytest.raises(AuthenticationError, match="the caller does not know"):
        listener.codec()
    with pytest.raises(KeyRefused):
        caller.receive(refusal)


def test_a_listener_without_the_key_or_the_protocol_is_refused() -> None:
    caller = CallerHandshake(KEY)
    caller.receive(ListenerHandshake(KEY).to_send)
    with pytest.raises(AuthenticationError, match="the listener does not know"):
        caller.receive(b"p" * caller.expects)
    with pytest.raises(AuthenticationError, match="does not speak"):
        CallerHandshake(KEY).receive(b"SSH-2.0".ljust(48))


def test_replayed_and_reflected_frames_are_refused() -> None:
    caller, listener = shake_hands(CallerHandshake(KEY), ListenerHandshake(KEY))
    frame = caller.seal(b"once")
    assert opened(listener, frame) == b"once"
    for receiver in (listener, caller):
        with pytest.raises(AuthenticationError, match="MAC"):
            opened(receiver, frame)


def test_a_length_over_the_limit_is_refused_before_the_payload() -> None:
    caller, listener = shake_hands(CallerHandshake(KEY), ListenerHandshake(KEY))
    with pytest.raises(AuthenticationError, match="over the limit of 10"):
        opened(listener, caller.seal(b"x" * 11), limit=10)
    with pytest.raises(ValueError, match="over the limit"):
        caller.seal(bytes(MAX_PAYLOAD + 1))


@pytest.mark.parametrize("payload", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_a_payload_that_is_not_an_object_is_refused(payload: bytes) -> None:
    with pytest.raises(AuthenticationError):
        decode_message(payload)
