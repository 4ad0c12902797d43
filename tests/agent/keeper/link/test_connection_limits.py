"""Tests of the limits that the primary's server sets for unauthenticated connections."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.agent.keeper.keeper_cluster import SECRET
from tests.waiting import eventually
from torchyard_agent.keeper.link import gang_link
from torchyard_agent.keeper.link.gang_link import Listener, Message, Stream
from torchyard_agent.keeper.link.join_store import JoinStore, StoreServer
from torchyard_agent.protocol import authenticated_transport

HERE = "127.0.0.1"
KEY = bytes.fromhex(SECRET)


def test_the_oldest_unauthenticated_connections_are_closed_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gang_link, "MAX_UNAUTHENTICATED", 4)
    monkeypatch.setattr(authenticated_transport, "HANDSHAKE_DEADLINE_S", 600.0)

    async def flood(door: socket.socket) -> list[bool]:
        listener = Listener({KEY: StoreServer(JoinStore()).serve})
        # The server has not begun to accept connections, so they stay in the backlog.
        clients = [socket.create_connection(door.getsockname()) for _ in range(10)]
        await listener.open(door)
        try:
            await eventually(lambda: sum(map(was_closed, clients)) >= 6)
            closed = [was_closed(client) for client in clients]
        finally:
            listener.close()
        await eventually(lambda: all(map(was_closed, clients)))
        for client in clients:
            client.close()
        return closed

    with socket.create_server((HERE, 0), backlog=20) as door:
        assert asyncio.run(flood(door)) == [True] * 6 + [False] * 4
    # Only the first rejected connection is logged; later ones are only counted.
    assert caplog.text.count("refused ('127.0.0.1', ") == 1


def was_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        while data := client.recv(authenticated_transport.HELLO_BYTES):
            assert len(data) <= authenticated_transport.HELLO_BYTES
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_both_ends_of_a_connection_send_small_messages_at_once() -> None:
    async def meeting() -> list[int]:
        accepted: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()

        async def serve(stream: Stream, introduction: Message) -> None:
            stream.send({"store": "ready"})
            accepted.set_result(stream)

        listener = Listener({KEY: serve})
        with socket.create_server((HERE, 0)) as door:
            await listener.open(door)
            own, _ = await gang_link.call(*door.getsockname(), KEY, {"store": "worker-0", "session": "s"})  # type: ignore[call-arg]  # getsockname() returns two values.
            ends = [own, await accepted]
            sockets = [each._writer.get_extra_info("socket") for each in ends]
            found = [int(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) for each in sockets]
            for each in ends:
                each.abort()
            listener.close()
        return found

    assert all(asyncio.run(meeting()))


def test_a_connection_that_ends_before_it_is_served_is_no_error() -> None:
    async def meeting() -> list[dict[str, Any]]:
        mistakes: list[dict[str, Any]] = []
        served = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: mistakes.append(context))

        async def serve(stream: Stream, introduction: Message) -> None:
            try:
                # The server closes the oldest connection in the same way when there are too many.
                stream.abort()
                await asyncio.sleep(0)
                await StoreServer(JoinStore()).serve(stream, introduction)
            finally:
                served.set()

        listener = Listener({KEY: serve})
        with socket.create_server((HERE, 0)) as door:
            await listener.open(door)
            with pytest.raises((OSError, EOFError)):
                await gang_link.call(*door.getsockname(), KEY, {"store": "worker-0", "session": "s"})  # type: ignore[call-arg]  # getsockname() returns two values.
            await served.wait()
            listener.close()
        return mistakes

    assert asyncio.run(meeting()) == []
