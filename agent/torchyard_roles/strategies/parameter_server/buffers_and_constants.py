"""The buffers of each worker group, such as running means, and frozen parameters ("constants").

Workers receive both from one server, which takes no optimizer steps on them.

A group's first worker sends its buffers before its push, and the other workers receive them with the parameters of that
round. At that time, the server may already have the buffers of the next round. It does not send these before the next
round ends: the other workers would modify them in their next step, and would not receive them again. The chief sends
the frozen parameters once, before other workers join.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import torch

from torchyard_roles.exchange.chunk_staging import PackedTensors


class Receiver(Protocol):
    """The interface of a worker's session through which ServerBuffers sends buffers."""

    group: int
    buffers_seen: int

    def post(self, header: dict[str, Any], payload: torch.Tensor | None = None) -> None: ...


class ServerBuffers:
    """The buffers and constants on one server.

    Args:
        sizes: The sizes in bytes of "buffers" and "constants", which are 0 on all servers except the one that holds
            them.
    """

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self._lock = threading.Lock()
        # The keys are group numbers, and the values are (serial number, bytes).
        self._buffers: dict[int, tuple[int, torch.Tensor]] = {}
        self._coming: dict[int, tuple[int, torch.Tensor]] = {}
        self.constants: torch.Tensor | None = None

    def empty(self, name: str) -> torch.Tensor:
        """Returns a tensor of torch.uint8 into which the named state can be received."""
        return torch.empty(self._sizes[name], dtype=torch.uint8, device="cpu")

    def take_buffers(self, session: Receiver, values: torch.Tensor, groups: Iterable[int]) -> None:
        """Stores the buffers that a session sent, which become valid for `groups` after the current round."""
        with self._lock:
            for group in groups:
                serial = self._buffers.get(group, (0, values))[0] + 1
                self._coming[group] = serial, values
                if group == session.group:
                    session.buffers_seen = serial

    def end_round(self, group: int) -> None:
        """Ends a group's round. The buffers that were sent last become valid."""
        with self._lock:
            if group in self._coming:
                self._buffers[group] = self._coming.pop(group)

    def bring_buffers(self, session: Receiver) -> None:
        """Sends the valid buffers of a group to one of its sessions, unless the session already has them."""
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
        """Restores the state that state() returned. Raises KeyError if a value is missing."""
        with self._lock:
            self._buffers = {int(group): (1, values) for group, values in saved["buffers"].items()}
            self.constants = saved["constants"]


class WorkerBuffers:
    """The buffers and constants of one worker: its model's buffers, and its parameters that no optimizer trains.

    Args:
        trained: The IDs of all trained parameters.
        sends_buffers: Whether this worker is the first of its group, which sends its buffers to the others.
    """

    def __init__(self, model: torch.nn.Module, trained: set[int], *, sends_buffers: bool) -> None:
        frozen = (parameter for parameter in model.parameters() if id(parameter) not in trained)
        tensors = {"buffers": PackedTensors(model.buffers()), "constants": PackedTensors(frozen)}
        self.sizes = {name: each.bytes for name, each in tensors.items()}
        """The sizes of the tensors in bytes, by their names in messages."""
        self._tensors = {name: each for name, each in tensors.items() if each.bytes}
        self._sends_buffers = sends_buffers
        self._arrived: dict[str, torch.Tensor] = {}
        self._has_constants = False
        self.sent_buffers: torch.Tensor | None = None
        """The buffers that were sent last, or None if the server needs them again."""

    @property
    def receivers(self) -> dict[str, tuple[int, Callable[[torch.Tensor], None]]]:
        """For "buffers" and "constants", unless empty: the size in bytes, and a function that stores new values."""
        return {name: (self.sizes[name], partial(self._arrived.__setitem__, name)) for name in self._tensors}

    def packed(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the current values by name, each packed into a tensor of bytes."""
        return [(name, each.packed()) for name, each in self._tensors.items()]

    def changed_buffers(self) -> torch.Tensor | None:
        """Returns the buffers to send, or None if they have not changed or this worker does not send buffers."""
        if not self._sends_buffers or "buffers" not in self._tensors:
            return None
        buffers = self._tensors["buffers"].packed()
        is_sent = self.sent_buffers is not None and torch.equal(buffers, self.sent_buffers)
        return None if is_sent else buffers

    def keep_constants(self) -> None:
        """Makes this object ignore frozen parameters that are received later.

        A restarted server sends the old values again, but other pairs may have trained some of these parameters in the
        meantime.
        """
        self._has_constants = True

    def install(self) -> None:
        """Copies the received values into the model. Like parameters, buffers may be changed only between two steps.

        Unchanged buffers are not sent again. Therefore the last received buffers are installed after each step, except
        on the worker that sends them.
        """
        for name, each in self._tensors.items():
            is_source = name == "constants" or self._sends_buffers
            arrived = self._arrived.pop(name, None) if is_source else self._arrived.get(name)
            if arrived is not None and not (name == "constants" and self._has_constants):
                each.unpack(arrived)
