"""The primary's connections to the members: a line for each host that has joined."""

from __future__ import annotations

import asyncio
from typing import Callable

from torchyard_agent.keeper.link import messages
from torchyard_agent.keeper.link.gang_link import MessageChannel
from torchyard_agent.keeper.link.messages import FromMember, FromPrimary
from torchyard_agent.keeper.timeouts import Timeouts


class MemberConnections:
    """`on_message` is called with the host and the message of each member."""

    def __init__(self, on_message: Callable[[str, FromMember], None]):
        self._on_message = on_message
        self._lines: dict[str, MessageChannel] = {}
        self._epochs: dict[str, str] = {}

    def admits(self, host: str, epoch: str) -> bool:
        """Whether a keeper may speak for a host: only the first one that connected in the host's name may."""
        return self._epochs.setdefault(host, epoch) == epoch

    def line(self, host: str) -> MessageChannel | None:
        """None before the member has connected for the first time."""
        return self._lines.get(host)

    def open_line(self, host: str) -> MessageChannel:
        """The line of a member that connects for the first time."""
        line = self._lines[host] = MessageChannel(
            lambda data: self._on_message(host, messages.decode_from_member(data, host))
        )
        return line

    def send(self, host: str, message: FromPrimary) -> None:
        """Sends to one member; a message to a host that has not joined yet is dropped."""
        if host in self._lines:
            self._lines[host].send(messages.encode(message))

    def send_all(self, message: FromPrimary) -> None:
        for line in self._lines.values():
            line.send(messages.encode(message))

    def withdraw_orders(self, host: str) -> None:
        """Discards unacknowledged orders to a lost host: after its return they would start or end the wrong ranks."""
        if host in self._lines:
            self._lines[host].take_back(messages.is_about_ranks)

    @property
    def are_settled(self) -> bool:
        """Whether all connected members have acknowledged all messages."""
        return all(line.settled for line in self._lines.values() if line.connected)

    async def watch_leases(
        self, timeouts: Timeouts, is_expected: Callable[[str], bool], on_lost: Callable[[str, float], None]
    ) -> None:
        """Sends heartbeats, and calls `on_lost` with a host and its seconds of silence once its lease has expired."""
        loop = asyncio.get_running_loop()
        beat_at = 0.0
        while True:
            await asyncio.sleep(min(timeouts.heartbeat_s, timeouts.lease_s / 10))
            now = loop.time()
            beat = now >= beat_at
            if beat:
                beat_at = now + timeouts.heartbeat_s
            for host, line in list(self._lines.items()):
                if beat:
                    line.beat()
                silent_s = now - line.heard_at
                if silent_s > timeouts.lease_s and is_expected(host):
                    line.close()
                    on_lost(host, silent_s)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
