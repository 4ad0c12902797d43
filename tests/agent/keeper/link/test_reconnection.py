"""Tests of lost hosts that rejoin. Most tests simulate the member's or the primary's end of the gang link."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import CLUSTER, SECRET, Host, KeeperCluster, replica, shell
from tests.agent.keeper.link.test_gang_link import Relay
from tests.waiting import eventually
from torchyard_agent.keeper.assignments import Assignments
from torchyard_agent.keeper.link import gang_link, messages
from torchyard_agent.keeper.link.gang_link import NETWORK_ERRORS, Message, MessageChannel, Stream

KEY = bytes.fromhex(SECRET)
FOREVER = shell("exec sleep 1000")
LOSING = {"heartbeat_s": 0.4, "lease_s": 2.0}
"""Short timeouts, which are nevertheless long enough for a busy machine."""
PATIENT = {"lease_s": 60.0}
"""Timeouts for tests with simulated members, whose leases must not expire."""


class OneWay(Relay):
    """A relay that always forwards the members' messages and can hold back the primary's messages."""

    def __init__(self, address: str, port: int):
        super().__init__(address, port)
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, into: bytearray) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if into is not self.heard:
                    await self.is_open.wait()
                writer.write(data)
        writer.close()


def test_a_member_whose_lease_expired_unnoticed_is_restarted(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b", timeouts=LOSING)
        relay = OneWay(a.member["address"], a.member["gang_port"])
        await relay.open()
        count = shell('echo "start $TORCHYARD_GENERATION"; exec sleep 1000')
        replicas = [replica("chief-0", "gpu-a", count), replica("worker-0", "gpu-b", count)]
        await cluster.begin(*replicas, through=relay.member, max_restarts=1, failure_grace_s=0.2)
        await eventually(lambda: "running" in b.states() and "start 0" in b.output("worker-0"))
        relay.is_open.clear()
        await eventually(lambda: "the primary host gpu-a was lost" in b.reason())
        relay.is_open.set()  # The primary kept receiving this member's heartbeats, so it has not noticed a loss.
        await eventually(lambda: a.states()[-1] == "running" and "start 1" in b.output("worker-0"))
        await eventually(lambda: len(cluster.left()) == 2)
        assert a.reason() == ""
        (again,) = [event for event in a.journal() if event["event"] == "gang_restart"]
        assert again["cause"].startswith("gpu-b was lost: its keeper ")
        await a.call("stop", reason="enough")
        assert (await cluster.end())["state"] == "stopped"
        relay.close()

    run_scenario(scenario)


class Posed:
    """A simulated member that records the primary's messages, and sends a message only when the test calls for it."""

    def __init__(self, host: str, primary: Host):
        self.heard: list[Message] = []
        self.deaf_to = ""
        """A kind of message. Once a message of this kind arrives, the member ignores all messages until it
        reconnects.
        """
        self._host = host
        self._primary = primary
        self._got = 0
        self._said = 0
        self._streams: list[Stream] = []
        self._reading: list[asyncio.Task[None]] = []

    async def call(self, *, cut_off: bool = False) -> Message:
        """Connects to the primary, and returns the primary's answer."""
        introduction = {"host": self._host, "epoch": "posed", "got": self._got, "cut_off": cut_off}
        where = self._primary.prepared
        stream, answer = await gang_link.call(where["address"], where["gang_port"], KEY, introduction)
        self._hang_up()
        self.deaf_to = ""
        self._streams.append(stream)
        self._reading.append(asyncio.create_task(self._read(stream)))
        return answer

    def _hang_up(self) -> None:
        for stream, reading in zip(self._streams, self._reading, strict=True):
            stream.abort()
            reading.cancel()

    async def _read(self, stream: Stream) -> None:
        with suppress(*NETWORK_ERRORS):
            while True:
                frame = await stream.receive()
                if frame.get("n", 0) <= self._got:
                    continue
                if frame["body"]["say"] == self.deaf_to:
                    return
                self._got = frame["n"]
                self.heard.append(frame["body"])
                stream.send({"got": self._got})

    def say(self, say: str, **fields: Any) -> None:
        self._said += 1
        self._streams[-1].send({"n": self._said, "got": self._got, "body": {"say": say, **fields}})

    def orders(self, *says: str) -> list[Message]:
        """Returns the received messages of the given kinds."""
        return [message for message in self.heard if message["say"] in says]

    async def hears(self, say: str, times: int = 1) -> Message:
        """Waits until the given number of messages of one kind has been received; returns the last one."""
        await eventually(lambda: len(self.orders(say)) >= times)
        return self.orders(say)[times - 1]

    async def close(self) -> None:
        self._hang_up()
        await asyncio.wait(self._reading)


async def stop(primary: Host, members: dict[str, Posed]) -> None:
    """Stops the run, and sends the answers of the simulated members. `members` maps each replica to its member."""
    before = {name: len(member.orders("end")) for name, member in members.items()}
    await primary.call("stop", reason="enough")
    for name, member in members.items():
        await member.hears("end", times=before[name] + 1)
        member.say("ended", replica=name, exit_code=-15)
    for member in members.values():
        await member.hears("sweep")
        member.say("gone")
    for member in members.values():
        await member.hears("ended")
        await member.close()
    assert await primary.exit_code() == 0, primary.log()
    assert primary.ended()["state"] == "stopped"


def generation(start: Message) -> int:
    return int(start["replicas"][0]["generation"])


def test_orders_that_a_lost_host_missed_are_not_repeated(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, _ = await cluster.add("gpu-a", "gpu-b", timeouts=PATIENT)
        fails = "while ! test -e fail; do sleep 0.02; done; rm fail; exit 1"
        replicas = [replica("chief-0", "gpu-a", shell(fails)), replica("worker-0", "gpu-b", FOREVER)]
        await cluster.begin(*replicas, joining=False, max_restarts=3, failure_grace_s=0.1)
        b = Posed("gpu-b", a)
        assert (await b.call())["lost"] is False
        await b.hears("share")
        b.say("joined")
        await b.hears("go")
        b.say("spawned", replica="worker-0")
        await eventually(lambda: "running" in a.states())

        (a.run_dir / "work" / "fail").touch()
        await b.hears("end")
        b.say("ended", replica="worker-0", exit_code=-15)
        await b.hears("clear")
        b.deaf_to = "start"
        b.say("cleared", gang="trainers", generation=0)
        await eventually(lambda: "starting" in [one.get("state") for one in a.journal() if one.get("restarts") == 1])

        # The member reports that it has ended its ranks by itself, so the current generation counts as failed.
        assert (await b.call(cut_off=True))["lost"] is True
        b.say("back")
        await b.hears("clear", times=2)
        b.say("cleared", gang="trainers", generation=1)
        assert generation(await b.hears("start")) == 2
        b.say("spawned", replica="worker-0")
        await eventually(lambda: a.states()[-1] == "running")
        cause = next(one["cause"] for one in a.journal() if one["event"] == "gang_restart" and one["generation"] == 2)
        assert cause == "gpu-b was lost: its keeper did not hear gpu-a in time, and ended its ranks"

        await stop(a, {"worker-0": b})

    run_scenario(scenario)


def test_a_delayed_start_is_not_sent_to_a_lost_host(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, *_ = await cluster.add("gpu-a", "gpu-b", "gpu-c", timeouts=PATIENT)
        shares = [replica(name, host, FOREVER) for name, host in (("chief-0", "gpu-a"), ("worker-0", "gpu-c"))]
        await cluster.begin(
            *shares, replica("evaluator-0", "gpu-b", FOREVER), joining=False, carry=True, max_restarts=1
        )
        b, c = Posed("gpu-b", a), Posed("gpu-c", a)
        for member, holds in ((b, ""), (c, "step-000000000007")):
            await member.call()
            await member.hears("share")
            member.say("holds", name=holds)
            member.say("joined")
        await c.hears("bring")  # No replica may start before this member has received the checkpoint.
        assert b.orders("go") == []

        await b.call(cut_off=True)
        b.say("back")
        assert generation(await b.hears("start")) == 1
        b.say("spawned", replica="evaluator-0")
        c.say("not_brought", name="step-000000000007", problem="it is gone")
        await c.hears("go")
        c.say("spawned", replica="worker-0")
        await eventually(lambda: "running" in a.states())

        await stop(a, {"evaluator-0": b, "worker-0": c})
        assert b.orders("go") == []

    run_scenario(scenario)


class PosedPrimary:
    """A simulated primary with one member; it accepts connections and sends heartbeats."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.channel = MessageChannel(self.heard.append)
        self.beats = True
        self._calls: asyncio.Queue[tuple[Stream, Message]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> dict[str, Any]:
        """Starts to listen; returns the primary's address in the form in which members receive it."""
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        self._tasks.append(asyncio.create_task(self._beat()))
        return {"host": "gpu-a", "address": "127.0.0.1", "gang_port": self._server.sockets[0].getsockname()[1]}

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(*NETWORK_ERRORS):
            stream, introduction, _ = await gang_link.admit(reader, writer, KEY)
            self._calls.put_nowait((stream, introduction))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            if self.beats:
                self.channel.beat()

    async def called(self) -> tuple[Stream, Message]:
        """Accepts the member's next connection; returns the unanswered connection, and the member's first message."""
        return await asyncio.wait_for(self._calls.get(), 60)

    def converse(self, stream: Stream, introduction: Message, *, lost: bool) -> None:
        stream.send({"got": self.channel.received, "lost": lost})
        self._tasks.append(asyncio.create_task(self.channel.run_connection(stream, introduction["got"])))

    async def hears(self, say: str, times: int = 1) -> None:
        await eventually(lambda: [message["say"] for message in self.heard].count(say) >= times)

    async def close(self) -> None:
        self._tasks[0].cancel()
        self.channel.close()
        self._server.close()
        await asyncio.wait(self._tasks)


def test_a_member_rejoins_only_after_reporting_its_expired_lease(run_scenario: RunScenario) -> None:
    """This test takes several seconds: ranks take 1.5 s to exit, and the member's lease expires twice."""
    taken = f"GPU-{os.urandom(8).hex()}"

    async def scenario(cluster: KeeperCluster) -> None:
        (b,) = await cluster.add("gpu-b", later=True, gpus=[taken], timeouts=LOSING)
        loop, lease_s = asyncio.get_running_loop(), LOSING["lease_s"]
        stubborn = shell("trap '' TERM; echo up; while :; do sleep 0.1; done")
        plan: Any = {
            "members": [{"host": "gpu-a", "address": "127.0.0.1", "gang_port": 1}, b.member],
            "cluster": {**CLUSTER, "options": {}},
            "replicas": [replica("worker-0", "gpu-b", stubborn)],
            "policy": {"host_wait_s": 600.0, "max_restarts": 0},
            "setup": [],
            "spare_imports": [],
            "secrets": {},
        }
        primary = PosedPrimary()
        await b.call("join", primary=await primary.open())
        stream, introduction = await primary.called()
        assert introduction["cut_off"] is False
        primary.converse(stream, introduction, lost=False)
        primary.channel.send(messages.encode(Assignments(plan, replicates=False).of_host("gpu-b")))
        await primary.hears("joined")
        primary.channel.send({"say": "go"})
        await eventually(lambda: b.output("worker-0") == "up\n")

        # Only the primary considers the member lost. The member's own lease expires while it ends its ranks, which has
        # no further effect, because the primary has already dropped the member.
        primary.channel.close()
        silent_since = loop.time()
        stream, introduction = await primary.called()
        await asyncio.sleep(silent_since + lease_s - 0.75 - loop.time())
        primary.converse(stream, introduction, lost=True)
        await primary.hears("back")
        primary.channel.send({"say": "go"})
        await eventually(lambda: b.output("worker-0") == "up\n" * 2)
        assert primary.channel.connected

        # The member assumes that it is cut off, and stops its ranks. Before they have ended, it reconnects, so the
        # primary does not consider it lost.
        primary.beats = False
        stream, introduction = await primary.called()
        assert introduction["cut_off"] is False
        primary.converse(stream, introduction, lost=False)
        stream, introduction = await primary.called()
        assert introduction["cut_off"] is True
        assert [message["say"] for message in primary.heard].count("back") == 1
        primary.beats = True
        primary.converse(stream, introduction, lost=True)
        await primary.hears("back", times=2)
        over = {"run_id": cluster.run_id, "state": "stopped", "reason": "enough", "replicas": [], "metrics": {}}
        primary.channel.send({"say": "ended", "ended": {**over, "timings": {}}})
        assert await b.exit_code() == 0, b.log()
        await primary.close()

    # Another process locks the GPU. It can do so because a scheduled run locks its GPUs only when it starts.
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"\0torchyard/gpu/{taken}")
        other.listen()
        run_scenario(scenario)
