"""Tests of the connections over Unix sockets."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.waiting import eventually
from torchyard_agent import unix_socket_rpc
from torchyard_agent.unix_socket_rpc import Connection


def test_a_connection_that_is_open_when_the_process_ends_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def meeting() -> None:
        connections: set[Connection] = set()
        address = str(tmp_path / "socket")
        server = await unix_socket_rpc.serve(unix_socket_rpc.bind(address), {}, connections)
        client = await unix_socket_rpc.connect(address)
        await eventually(lambda: bool(connections))
        # The end of asyncio.run() cancels the task that serves the connection.
        server.close()
        asyncio.get_running_loop().call_soon(client.close)

    with caplog.at_level(logging.INFO):
        asyncio.run(meeting())
    assert not caplog.records
