"""Starts that wait until the chief's host has the newest checkpoint, brought from another host."""

from __future__ import annotations

import asyncio
import logging
from typing import Callable

from torchyard_agent.keeper.checkpoints.checkpoint_replication import Sending
from torchyard_agent.keeper.link.gang_link import Message

log = logging.getLogger(__name__)


class Bringing:
    """`host` is the chief's. `order` tells a host to start; `complain` is told why nothing could be brought."""

    def __init__(
        self,
        carrying: Sending | None,
        host: str,
        order: Callable[[str, Message], None],
        complain: Callable[[str], None],
    ):
        self._carrying = carrying
        self._host = host
        self._order = order
        self._complain = complain
        self._held_back: list[dict[str, Message]] = []
        """By host, each start's orders."""
        self._task: asyncio.Task[None] | None = None

    def once_it_is_there(self, orders: dict[str, Message]) -> None:
        """Gives these orders, by host, now, or once the newest checkpoint was brought."""
        if self._held_back:
            self._held_back.append(orders)
        elif self._carrying is None or not self._carrying.must_bring:
            self._give(orders)
        else:
            self._held_back.append(orders)
            self._task = asyncio.get_running_loop().create_task(self._bring(self._carrying))

    async def _bring(self, from_others: Sending) -> None:
        try:
            await from_others.bring(self._host)
        except Exception as error:  # the outer edge of this task: the run starts with what there is
            log.exception("no checkpoint could be brought")
            self._complain(f"internal error: {error!r}")
        self._release()

    def give_up(self) -> None:
        """Nothing that was held back waits any longer: an end was decided."""
        self.cancel()
        self._release()

    def leave_out(self, host: str) -> None:
        """It was lost meanwhile: what it was to start is not its matter any more, even where it is back by then."""
        for orders in self._held_back:
            orders.pop(host, None)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _release(self) -> None:
        held, self._held_back = self._held_back, []
        for orders in held:
            self._give(orders)

    def _give(self, orders: dict[str, Message]) -> None:
        for host, message in orders.items():
            self._order(host, message)
