"""Delays a gang's start until the chief's host has the newest checkpoint of all connected hosts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Callable

from torchyard_agent.keeper.checkpoints.checkpoint_replication import CheckpointSender
from torchyard_agent.keeper.link.messages import FromPrimary

log = logging.getLogger(__name__)


class CheckpointRestore:
    """Delays the orders to start ranks until the newest checkpoint is on the chief's host, or copying it has failed.

    Args:
        sender: Copies checkpoints between hosts. None if the run needs no copies.
        host: The chief's host.
        order: Sends a message to a host.
        on_problem: Called with the reason if the checkpoint cannot be copied.
    """

    def __init__(
        self,
        sender: CheckpointSender | None,
        host: str,
        order: Callable[[str, FromPrimary], None],
        on_problem: Callable[[str], None],
    ):
        self._sender = sender
        self._host = host
        self._order = order
        self._on_problem = on_problem
        self._delayed: list[dict[str, FromPrimary]] = []
        """The orders of delayed starts. Each entry contains the orders of one start, by host."""
        self._task: asyncio.Task[None] | None = None

    def start_when_restored(self, orders: Mapping[str, FromPrimary]) -> None:
        """Sends each host its order once the chief's host has the newest checkpoint, or copying it has failed."""
        if self._delayed:
            self._delayed.append(dict(orders))
        elif self._sender is None or not self._sender.is_behind:
            self._send(orders)
        else:
            self._delayed.append(dict(orders))
            self._task = asyncio.get_running_loop().create_task(self._restore(self._sender))

    async def _restore(self, sender: CheckpointSender) -> None:
        try:
            await sender.restore(self._host)
        except Exception as error:
            # After an error in the transfer, the ranks resume from the newest checkpoint that is on the chief's host.
            log.exception("no checkpoint could be copied")
            self._on_problem(f"internal error: {error!r}")
        self._release()

    def give_up(self) -> None:
        """Sends the delayed orders immediately. Called when the end of the run or gang has been decided."""
        self.cancel()
        self._release()

    def remove_host(self, host: str) -> None:
        """Discards the delayed orders to a lost host. They are not sent even if the host returns."""
        for orders in self._delayed:
            orders.pop(host, None)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _release(self) -> None:
        delayed, self._delayed = self._delayed, []
        for orders in delayed:
            self._send(orders)

    def _send(self, orders: Mapping[str, FromPrimary]) -> None:
        for host, message in orders.items():
            self._order(host, message)
