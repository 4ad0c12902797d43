"""The other hosts' keepers, as the primary has them: a line to each that has come."""

from __future__ import annotations

import asyncio
from typing import Callable

from torchyard_agent.keeper.link.gang_link import Line, Message
from torchyard_agent.keeper.timeouts import Patience

TO_RANKS = ("take_gpus", "go", "start", "clear", "end")
"""Orders that are about a host's ranks as the policy has them now."""


class Members:
    """`hear` is told what one of them says, by its host's name."""

    def __init__(self, hear: Callable[[str, Message], None]):
        self._hear = hear
        self._lines: dict[str, Line] = {}
        self._epochs: dict[str, str] = {}

    def admits(self, host: str, epoch: str) -> bool:
        """Whether a keeper speaks for its host: the first that comes in its name does, and nobody else."""
        return self._epochs.setdefault(host, epoch) == epoch

    def line(self, host: str) -> Line | None:
        """None before it has come for the first time."""
        return self._lines.get(host)

    def open_line(self, host: str) -> Line:
        """It has come for the first time."""
        line = self._lines[host] = Line(lambda message: self._hear(host, message))
        return line

    def tell(self, host: str, message: Message) -> None:
        """Whoever has not come yet is not told."""
        if host in self._lines:
            self._lines[host].send(message)

    def tell_all(self, message: Message) -> None:
        for line in self._lines.values():
            line.send(message)

    def take_back_orders(self, host: str) -> None:
        """It was lost, and its ranks with it: once it is back, an order of before would start or end the wrong ones."""
        if host in self._lines:
            self._lines[host].take_back(lambda message: message["say"] in TO_RANKS)

    @property
    def all_know(self) -> bool:
        """Whether everyone who can be reached has taken note of all that was said."""
        return all(line.settled for line in self._lines.values() if line.connected)

    async def watch_leases(
        self, patience: Patience, is_expected: Callable[[str], bool], on_lost: Callable[[str, float], None]
    ) -> None:
        """Heartbeats out, and an eye on those that should come in. `on_lost`: a host, and the seconds it was silent."""
        loop = asyncio.get_running_loop()
        beat_at = 0.0
        while True:
            await asyncio.sleep(min(patience.heartbeat_s, patience.lease_s / 10))
            now = loop.time()
            beat = now >= beat_at
            if beat:
                beat_at = now + patience.heartbeat_s
            for host, line in list(self._lines.items()):
                if beat:
                    line.beat()
                silent_s = now - line.heard_at
                if silent_s > patience.lease_s and is_expected(host):
                    line.close()
                    on_lost(host, silent_s)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
