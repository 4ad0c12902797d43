"""Tests of the channel to a process on this computer."""

from __future__ import annotations

import pytest

from torchyard_core.fleet.channel import ProcessChannel


def test_a_closed_channel_refuses_bytes_as_a_lost_connection() -> None:
    channel = ProcessChannel(["cat"])
    channel.send(b"hello")
    assert channel.receive(10) == b"hello"
    channel.close()
    with pytest.raises(ConnectionResetError):
        channel.send(b"more")
