"""Tests of the gang link: unauthenticated clients, invalid data, replayed traffic and broken connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import SECRET, KeeperCluster, replica, shell
from tests.waiting import eventually
from torchyard_agent.protocol import authenticated_transport

UNTIL_GO = shell("while [ ! -e go ]; do sleep 0.01; done")


class Relay:
    """A relay between members and the primary that records the traffic and can be interrupted."""

    def __init__(self, address: str, port: int):
        self.target = (address, port)
        self.heard = bytearray()
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(*self.target)
        except ConnectionRefusedError:
            writer.close()
            return
        self._writers += [writer, back]
        await asyncio.gather(self._pass(reader, back, self.heard), self._pass(there, writer, bytearray()))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, into: bytearray) -> None:
        try:
            while data := await reader.read(65536):
                into += data
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    @property
    def member(self) -> dict[str, object]:
        return {"host": "gpu-a", "address": "127.0.0.1", "gang_port": self.port}

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()


def test_unauthenticated_clients_do_not_disturb_the_run(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b")
        replicas = [replica("chief-0", "gpu-a", UNTIL_GO), replica("worker-0", "gpu-b", UNTIL_GO)]
        await cluster.begin(*replicas, joining=False)
        where = (a.member["address"], a.member["gang_port"])
        strangers = [socket.create_connection(where) for _ in range(150)]
        for number, stranger in enumerate(strangers[:40]):
            stranger.settimeout(1)
            stranger.send(os.urandom(200) if number % 2 else b"GET / HTTP/1.1\r\n\r\n" * 20)
        liar = strangers[-1]
        liar.settimeout(60)
        hello = liar.recv(authenticated_transport.HELLO_BYTES, socket.MSG_WAITALL)
        liar.send(authenticated_transport.CallerHandshake(b"x" * 32).receive(hello))
        refusal = authenticated_transport.REFUSAL
        assert liar.recv(len(refusal), socket.MSG_WAITALL) == refusal
        assert liar.recv(1) == b""
        await b.call("join", primary=a.member)
        await eventually(lambda: "running" in b.states())
        for host in (a, b):
            (host.run_dir / "work" / "go").touch()
        assert (await cluster.end())["state"] == "succeeded"
        for stranger in strangers:
            stranger.close()

    run_scenario(scenario)


def test_a_replayed_connection_is_refused(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b")
        relay = Relay(a.member["address"], a.member["gang_port"])
        await relay.open()
        replicas = [replica("chief-0", "gpu-a", UNTIL_GO), replica("worker-0", "gpu-b", UNTIL_GO)]
        await cluster.begin(*replicas, through=relay.member)
        await eventually(lambda: "running" in b.states())
        with socket.create_connection((a.prepared["address"], a.prepared["gang_port"])) as thief:
            thief.settimeout(60)
            thief.send(bytes(relay.heard))
            received = b""
            with contextlib.suppress(ConnectionResetError):
                received = thief.recv(4096, socket.MSG_WAITALL)
            # If the keeper closes the connection before it has read everything that the client sent, the kernel resets
            # the connection, and the refusal is lost.
            assert received[authenticated_transport.HELLO_BYTES :] in (b"", authenticated_transport.REFUSAL)
        assert (await a.call("status"))["state"] == "running"
        for host in (a, b):
            (host.run_dir / "work" / "go").touch()
        ended = await cluster.end()
        relay.close()
        assert ended["state"] == "succeeded"

    run_scenario(scenario)


def test_no_message_is_lost_if_a_link_is_restored_within_the_lease(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b", timeouts={"heartbeat_s": 0.3, "lease_s": 6})
        relay = Relay(a.member["address"], a.member["gang_port"])
        await relay.open()
        replicas = [replica("chief-0", "gpu-a", UNTIL_GO), replica("worker-0", "gpu-b", UNTIL_GO)]
        await cluster.begin(*replicas, through=relay.member)
        await eventually(lambda: "running" in b.states())
        for _ in range(3):
            relay.cut()
            await asyncio.sleep(0.05)  # The next cut may come while the member is reconnecting.
        (b.run_dir / "work" / "go").touch()  # The rank waits for this file, so it exits while the link is broken.
        relay.cut()
        (a.run_dir / "work" / "go").touch()
        ended = await cluster.end()
        relay.close()
        assert ended["state"] == "succeeded"
        assert [one["state"] for one in ended["replicas"]] == ["succeeded", "succeeded"]

    run_scenario(scenario)


def test_a_member_that_cannot_be_reached_is_named_with_the_port(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b", timeouts={"join_within_s": 1.0})
        replicas = [replica("chief-0", "gpu-a", UNTIL_GO), replica("worker-0", "gpu-b", UNTIL_GO)]
        with socket.create_server(("127.0.0.1", 0)) as blackhole:
            wrong = {"host": "gpu-a", "address": "127.0.0.1", "gang_port": blackhole.getsockname()[1]}
            await cluster.begin(*replicas, through=wrong)
            ended = await cluster.end()
        where = f"{a.member['address']}:{a.member['gang_port']}"
        assert ended["state"] == "failed"
        assert ended["reason"].startswith(f"gpu-b did not reach the primary gpu-a at {where} in time")
        assert "firewall" in ended["reason"]
        assert "firewall" in b.ended()["reason"]

    run_scenario(scenario)


def test_the_secret_is_written_nowhere(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await cluster.begin(replica("worker-0", "gpu-a", shell("env")))
        await cluster.end()
        for path in a.run_dir.rglob("*"):
            assert path.is_dir() or SECRET not in path.read_text(), path
        assert SECRET not in a.log()

    run_scenario(scenario)
