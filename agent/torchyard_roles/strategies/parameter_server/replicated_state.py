"""State that is replicated to all workers without optimizer steps: buffers of each group, and frozen parameters.

A group's first worker sends its buffers before its push, and the other workers get them with the parameters of that
round. They must not get the buffers of the next round, which the first worker may have sent already: they would modify
them in that round and not receive them again. The chief sends the frozen parameters once, before other workers join.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Protocol

import torch


class Receiver(Protocol):
    """A worker's session, as far as replicated state is sent through it."""

    group: int
    buffers_seen: int

    def post(self, header: dict[str, Any], payload: torch.Tensor | None = None) -> None: ...


class ReplicatedState:
    """The replicated state on one server. `sizes` in bytes of "buffers" and "constants", 0 on all servers but one."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self._lock = threading.Lock()
        self._buffers: dict[int, tuple[int, torch.Tensor]] = {}  # by group: (serial, bytes)
        self._coming: dict[int, tuple[int, torch.Tensor]] = {}
        self.constants: torch.Tensor | None = None

    def empty(self, name: str) -> torch.Tensor:
        """A tensor of torch.uint8 to receive the named state into."""
        return torch.empty(self._sizes[name], dtype=torch.uint8)

    def take_buffers(self, session: Receiver, values: torch.Tensor, groups: Iterable[int]) -> None:
        """Store the buffers from `session` for these groups, valid after their current round."""
        with self._lock:
            for group in groups:
                serial = self._buffers.get(group, (0, values))[0] + 1
                self._coming[group] = serial, values
                if group == session.group:
                    session.buffers_seen = serial

    def end_round(self, group: int) -> None:
        """Make the newest buffers of a group valid."""
        with self._lock:
            if group in self._coming:
                self._buffers[group] = self._coming.pop(group)

    def bring_buffers(self, session: Receiver) -> None:
        """Send the valid buffers of its group to a session that does not have them."""
        with self._lock:
            serial, values = self._buffers.get(session.group, (0, None))
            if values is None or serial == session.buffers_seen:
                return
            session.buffers_seen = serial
        session.post({"op": "buffers"}, values)

    def state(self) -> dict[str, Any]:
        with self._lock:
            return {
                "buffers": {group: values for group, (_, values) in self._buffers.items()},
                "constants": self.constants,
            }

    def load(self, saved: dict[str, Any]) -> None:
        """Restore a state(). Raises KeyError."""
        with self._lock:
            self._buffers = {int(group): (1, values) for group, values in saved["buffers"].items()}
            self.constants = saved["constants"]
