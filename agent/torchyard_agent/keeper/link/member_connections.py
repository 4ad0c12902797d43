"""The connections of the primary to the members, with one message channel per host that has joined."""

from __future__ import annotations

import asyncio
from typing import Callable

from torchyard_agent.keeper.link import messages
from torchyard_agent.keeper.link.gang_link import MessageChannel
from torchyard_agent.keeper.link.messages import FromMember, FromPrimary
from torchyard_agent.keeper.timeouts import Timeouts


class MemberConnections:
    """The channels of the primary to its members, by host.

    Args:
        on_message: Called with the host of a member and a message from it.
    """

    def __init__(self, on_message: Callable[[str, FromMember], None]):
        self._on_message = on_message
        self._channels: dict[str, MessageChannel] = {}
        self._epochs: dict[str, str] = {}

    def admits(self, host: str, epoch: str) -> bool:
        """Returns whether a keeper may act for a host. Only the first keeper that connected for the host may.

        Args:
            epoch: A random value that identifies the keeper.
        """
        return self._epochs.setdefault(host, epoch) == epoch

    def is_known(self, host: str, epoch: str) -> bool:
        """Returns whether the keeper that `epoch` identifies already acts for the host."""
        return self._epochs.get(host) == epoch

    def channel(self, host: str) -> MessageChannel | None:
        """Returns the channel of a member, or None if the member has never connected."""
        return self._channels.get(host)

    def open_channel(self, host: str) -> MessageChannel:
        """Creates the channel of a member that connects for the first time."""
        channel = self._channels[host] = MessageChannel(
            lambda data: self._on_message(host, messages.decode_from_member(data, host))
        )
        return channel

    def forget(self, host: str) -> None:
        """Closes the channel of a host that has left the run. Another keeper may then act for the host."""
        channel = self._channels.pop(host, None)
        self._epochs.pop(host, None)
        if channel is not None:
            channel.close()

    def send(self, host: str, message: FromPrimary) -> None:
        """Sends a message to one member. If its host has not joined yet, the message is dropped."""
        if host in self._channels:
            self._channels[host].send(messages.encode(message))

    def send_all(self, message: FromPrimary) -> None:
        for channel in self._channels.values():
            channel.send(messages.encode(message))

    def withdraw_orders(self, host: str) -> None:
        """Discards unacknowledged orders to a lost host, which would affect the wrong ranks if the host returned."""
        if host in self._channels:
            self._channels[host].discard(messages.is_about_ranks)

    @property
    def are_settled(self) -> bool:
        """Returns whether all connected members have acknowledged all messages."""
        return all(channel.all_acknowledged for channel in self._channels.values() if channel.connected)

    async def watch_leases(
        self, timeouts: Timeouts, is_expected: Callable[[str], bool], on_lost: Callable[[str, float], None]
    ) -> None:
        """Sends heartbeats, and calls `on_lost` when a member's lease has expired.

        Args:
            is_expected: Returns whether a host should be connected.
            on_lost: Called with the host and the time in seconds since its last message.
        """
        loop = asyncio.get_running_loop()
        beat_at = 0.0
        while True:
            await asyncio.sleep(min(timeouts.heartbeat_s, timeouts.lease_s / 10))
            now = loop.time()
            beat = now >= beat_at
            if beat:
                beat_at = now + timeouts.heartbeat_s
            for host, channel in list(self._channels.items()):
                if beat:
                    channel.beat()
                silent_s = now - channel.heard_at
                if silent_s > timeouts.lease_s and is_expected(host):
                    channel.close()
                    on_lost(host, silent_s)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
