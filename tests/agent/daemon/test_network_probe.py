"""Tests of reachability and throughput between two agents on one machine, over the loopback interface."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from torchyard_agent import port_reservation
from torchyard_agent.daemon import network_probe
from torchyard_agent.daemon.network_probe import NetworkProbe
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.unix_socket_rpc import Connection

HERE = "127.0.0.1"


class Desk:
    """A fake desktop connection that has only the members that the network probe uses."""

    def __init__(self) -> None:
        self.on_close: list[Callable[[], None]] = []


def between(work: Callable[[NetworkProbe, NetworkProbe, Connection], Awaitable[None]]) -> None:
    async def main() -> None:
        await work(NetworkProbe(), NetworkProbe(), cast(Connection, Desk()))

    asyncio.run(main())


def test_held_ports_are_reachable_and_free_afterwards() -> None:
    held = port_reservation.hold_ports(3)
    ports = held.ports

    async def work(a: NetworkProbe, b: NetworkProbe, desk: Connection) -> None:
        there = await a.listen(desk, {"token": "secret", "address": HERE, "ports": ports})
        targets = [{"host": "a", "address": HERE, "port": port} for port in there["ports"]]
        assert there["ports"] == ports
        assert await b.reach(desk, {"token": "secret", "source": HERE, "targets": targets}) == []
        await a.close(desk, {"token": "secret"})
        # Ranks bind the ports with SO_REUSEADDR, as torch's store does. This succeeds because the probe leaves no
        # connection in TIME_WAIT.
        for port in ports:
            with socket.socket() as rank:
                rank.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                rank.bind((HERE, port))
                rank.listen()

    try:
        between(work)
    finally:
        held.release()
    for port in ports:  # The ports are no longer held, so binding succeeds without SO_REUSEADDR.
        with socket.socket() as program:
            program.bind((HERE, port))


def test_a_host_behind_nat_is_reached_by_an_address_that_it_does_not_have() -> None:
    held, translated = port_reservation.hold_ports(2), "192.0.2.7"

    async def work(a: NetworkProbe, b: NetworkProbe, desk: Connection) -> None:
        there = await a.listen(desk, {"token": "secret", "address": translated, "ports": held.ports, "traffic": True})
        assert there == {"address": translated, "ports": held.ports, "busy": False}
        # The targets have this machine's real address, to which a NAT router would translate `translated`.
        targets = [{"host": "a", "address": HERE, "port": port} for port in held.ports]
        assert await b.reach(desk, {"token": "secret", "source": translated, "targets": targets}) == []
        way = {"token": "secret", "address": HERE, "port": held.ports[0], "source": translated, "seconds": 0.1}
        assert (await b.pull(desk, way))["bytes_s"] > 0
        await a.close(desk, {"token": "secret"})
        assert (await a.listen(desk, {"token": "other", "address": translated, "port_range": None}))["ports"]
        await a.close(desk, {"token": "other"})

    try:
        between(work)
    finally:
        held.release()


def test_a_closed_port_and_a_port_of_another_program_are_reported() -> None:
    stranger = socket.create_server((HERE, 0))
    with socket.create_server((HERE, 0)) as gone:
        free = gone.getsockname()[1]

    async def work(a: NetworkProbe, b: NetworkProbe, desk: Connection) -> None:
        there = await a.listen(desk, {"token": "theirs", "address": HERE, "port_range": None})
        ports = [free, stranger.getsockname()[1], there["ports"][0]]
        targets = [{"host": "a", "address": HERE, "port": port} for port in ports]
        missed = await b.reach(desk, {"token": "ours", "targets": targets})
        assert [target["port"] for target in missed] == ports
        assert missed[0]["error"] == "connection refused"
        assert "no answer" in missed[1]["error"]
        assert missed[2]["error"]
        await a.close(desk, {"token": "theirs"})

    try:
        between(work)
    finally:
        stranger.close()


def test_the_throughput_is_measured_for_the_requested_time() -> None:
    async def work(a: NetworkProbe, b: NetworkProbe, desk: Connection) -> None:
        there = await a.listen(desk, {"token": "t", "address": HERE, "port_range": None, "traffic": True})
        begin = time.monotonic()
        pulled = await b.pull(
            desk, {"token": "t", "source": HERE, "address": HERE, "port": there["ports"][0], "seconds": 0.3}
        )
        assert time.monotonic() - begin >= 0.3
        assert pulled["bytes_s"] > 10_000_000
        await a.close(desk, {"token": "t"})

    between(work)


def test_a_pull_without_a_sender_fails() -> None:
    with socket.create_server((HERE, 0)) as gone:
        port = gone.getsockname()[1]

    async def work(a: NetworkProbe, b: NetworkProbe, desk: Connection) -> None:
        with pytest.raises(RpcError, match="gave no data: connection refused"):
            await b.pull(desk, {"token": "t", "address": HERE, "port": port, "seconds": 0.3})

    between(work)


def test_listening_ends_with_the_connection() -> None:
    async def work(a: NetworkProbe, b: NetworkProbe, desk: Connection) -> None:
        there = await a.listen(desk, {"token": "t", "address": HERE, "port_range": None})
        for callback in desk.on_close:
            callback()
        target: dict[str, Any] = {"host": "a", "address": HERE, "port": there["ports"][0]}
        assert await b.reach(desk, {"token": "t", "targets": [target]}) == [{**target, "error": "connection refused"}]

    between(work)


def test_a_silent_client_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_probe, "GREETING_S", 5.0)

    async def work(a: NetworkProbe, b: NetworkProbe, desk: Connection) -> None:
        there = await a.listen(desk, {"token": "t", "address": HERE, "port_range": None})
        with socket.create_connection((HERE, there["ports"][0])):
            target = {"host": "a", "address": HERE, "port": there["ports"][0]}
            assert await b.reach(desk, {"token": "t", "targets": [target]}) == []
        await a.close(desk, {"token": "t"})

    between(work)
