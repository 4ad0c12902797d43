"""What no server steps and all workers have alike: buffers, a row a worker group, and frozen parameters, as bytes.

A group's first worker brings its buffers before it pushes, and the others get them with the parameters that this round
ends with. Never those of the next round, which the first may have brought by then: who had them already would compute
over them, and not get them again. The chief brings the frozen parameters once, before the others come.
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
    """Those that come to one server. `sizes`: bytes of "buffers" and "constants", both 0 at all servers but one."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self._lock = threading.Lock()
        self._buffers: dict[int, tuple[int, torch.Tensor]] = {}  # by group: (serial, bytes)
        self._coming: dict[int, tuple[int, torch.Tensor]] = {}
        self.constants: torch.Tensor | None = None

    def empty(self, name: str) -> torch.Tensor:
        """To receive a row into, of torch.uint8."""
        return torch.empty(self._sizes[name], dtype=torch.uint8)

    def take_buffers(self, session: Receiver, values: torch.Tensor, groups: Iterable[int]) -> None:
        """`session` has brought them for these groups, which have them from their round's end on."""
        with self._lock:
            for group in groups:
                serial = self._buffers.get(group, (0, values))[0] + 1
                self._coming[group] = serial, values
                if group == session.group:
                    session.buffers_seen = serial

    def end_round(self, group: int) -> None:
        """Of what has come for this group, all have the newest from now on."""
        with self._lock:
            if group in self._coming:
                self._buffers[group] = self._coming.pop(group)

    def bring_buffers(self, session: Receiver) -> None:
        """Post its group's newest, unless it has them."""
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
        """Take up what state() gave. Raises KeyError for what is none."""
        with self._lock:
            self._buffers = {int(group): (1, values) for group, values in saved["buffers"].items()}
            self.constants = saved["constants"]
