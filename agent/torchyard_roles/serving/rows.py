"""What no server steps and all workers have alike: buffers, a row a worker group, and frozen parameters, as bytes.

A group's first worker brings its buffers with its pushes, and the others get them with the next parameters. The chief
brings the frozen parameters once, before the others come.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torchyard_roles.serving.session import Session


class Rows:
    """Those that come to one server. `sizes`: bytes of "buffers" and "constants", both 0 at all servers but one."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self._lock = threading.Lock()
        self._buffers: dict[int, tuple[int, torch.Tensor]] = {}  # by group: (serial, bytes)
        self.constants: torch.Tensor | None = None

    def empty(self, name: str) -> torch.Tensor:
        """To receive a row into, of torch.uint8."""
        return torch.empty(self._sizes[name], dtype=torch.uint8)

    def take_buffers(self, session: Session, values: torch.Tensor, groups: Iterable[int]) -> None:
        """`session` has brought them, for these groups."""
        with self._lock:
            for group in groups:
                self._buffers[group] = (self._buffers.get(group, (0, values))[0] + 1, values)
            session.buffers_seen = self._buffers[session.group][0]

    def bring_buffers(self, session: Session) -> None:
        """Post its group's newest, unless it has them."""
        serial, values = self._buffers.get(session.group, (0, None))
        if values is not None and serial != session.buffers_seen:
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
