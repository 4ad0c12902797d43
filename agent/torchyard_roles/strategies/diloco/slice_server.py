"""The server on a group's first rank, which averages one slice for all groups and sends θ and m to returning groups.

other group                                   owner of the slice
   | slice: epoch, weight               --->    |
   | pseudo-gradients, in messages      --->    |  averages each message of all members
   | <--- averages, in messages                 |
returning group                               member
   | state: round                       --->    |
   | <--- θ and m after that round              |
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from torchyard_roles.errors import ProtocolError
from torchyard_roles.exchange.chunk_staging import PackedTensors
from torchyard_roles.exchange.listener import ConnectionServer
from torchyard_roles.exchange.tensor_connection import Connection
from torchyard_roles.strategies.diloco.error_feedback import ErrorFeedbackCodec
from torchyard_roles.strategies.diloco.outer_step import NOT_BEGUN, OuterParameters

SERVICE = "diloco"
KEPT_EPOCHS = 8
"""Number of epochs for which the count of averages is kept. A thread may notice late that its epoch was complete."""
LOOK_EVERY_S = 0.5
STATE_WAIT_S = 5.0
"""Longest time in seconds for which a returning group waits until a member has taken the outer step of the round."""


@dataclass
class Contribution:
    """One group's contribution to the average of a slice."""

    weight: float
    has_finished: bool
    square: float = 0.0
    """The sum of the squared elements of the group's pseudo-gradients, without buffers."""
    messages: list[torch.Tensor] = field(default_factory=list)
    """The messages of pseudo-gradients that have arrived, encoded by the wire codec that all groups use."""


class Totals(NamedTuple):
    """Totals over all groups' contributions to a round."""

    weight: float
    """The sum of the weights."""
    square: float
    """The weighted mean of `Contribution.square`, or 0 if all weights are 0."""
    has_finished: bool
    """Whether all groups have finished training."""

    @classmethod
    def of(cls, contributions: Iterable[Contribution]) -> Totals:
        found = list(contributions)
        weight = sum(each.weight for each in found)
        square = sum(each.weight * each.square for each in found) / weight if weight else 0.0
        return cls(weight, square, all(each.has_finished for each in found))


class Mailbox:
    """For each epoch, the contributions to the slice that this process averages, and the averages of the slice.

    The slice is divided into messages. The average of a message is sent as soon as all members have contributed to it,
    so sums are computed while the network is busy, and groups receive averages while they are still sending
    pseudo-gradients.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Notified of each message and average, and of other events that the averaging thread waits for."""
        self._contributions: dict[int, dict[int, Contribution]] = {}
        self._averages: dict[int, list[torch.Tensor]] = {}
        self._connections: dict[int, dict[int, Connection]] = {}
        self._published: dict[int, int] = {}
        """The number of published averages by epoch, which is kept for KEPT_EPOCHS epochs."""
        self._epoch = 0
        self._closed = False

    def advance(self, epoch: int) -> None:
        """Abandons all epochs before `epoch`."""
        with self.changed:
            self._epoch = epoch
            for by_epoch in (self._contributions, self._averages, self._connections):
                for number in [number for number in by_epoch if number < epoch]:
                    del by_epoch[number]
            self._published = {number: each for number, each in self._published.items() if number > epoch - KEPT_EPOCHS}
            self.changed.notify_all()

    def put(self, epoch: int, group: int, contribution: Contribution, connection: Connection | None = None) -> None:
        """Sets or replaces a group's contribution to an epoch. Has no effect if the epoch is abandoned.

        Args:
            connection: The connection on which the group receives the averages, or None for this process's own group.
        """
        with self.changed:
            if epoch < self._epoch:
                return
            self._contributions.setdefault(epoch, {})[group] = contribution
            if connection is not None:
                self._connections.setdefault(epoch, {})[group] = connection
                for average in self._averages.get(epoch, ()):
                    connection.post({}, average)
            self.changed.notify_all()

    def deliver(self, contribution: Contribution, message: torch.Tensor) -> None:
        """Adds a message to a contribution."""
        with self.changed:
            contribution.messages.append(message)
            self.changed.notify_all()

    def contributions(self, epoch: int) -> dict[int, Contribution]:
        with self.changed:
            return dict(self._contributions.get(epoch, {}))

    def due(self, epoch: int, members: int) -> list[tuple[float, torch.Tensor]] | None:
        """Returns the contributions to the next message to average, or None if a member has not yet sent this message.

        Each contribution is the group's share of the sum of all weights, and the group's encoded pseudo-gradients.
        Contributions are sorted by group, so that the average does not depend on the order of arrival.
        """
        with self.changed:
            found = self._contributions.get(epoch, {})
            number = len(self._averages.get(epoch, ()))
            if len(found) < members or any(len(each.messages) <= number for each in found.values()):
                return None
            total = sum(each.weight for each in found.values()) or 1.0
            return [(found[group].weight / total, found[group].messages[number]) for group in sorted(found)]

    def publish(self, epoch: int, average: torch.Tensor) -> None:
        """Sends the average of the next message to all members. The tensor must not change afterwards."""
        with self.changed:
            self._averages.setdefault(epoch, []).append(average)
            self._published[epoch] = self._published.get(epoch, 0) + 1
            for connection in self._connections.get(epoch, {}).values():
                connection.post({}, average)
            self.changed.notify_all()

    def wait_for_averages(self, epoch: int, messages: int) -> bool:
        """Waits until all averages of an epoch are published. Returns False if the epoch is abandoned."""

        def is_complete() -> bool:
            return self._published.get(epoch, 0) >= messages

        with self.changed:
            self.changed.wait_for(lambda: is_complete() or epoch < self._epoch or self._closed)
            return is_complete()

    def totals(self, epoch: int, messages: int, members: int, is_wanted: Callable[[], bool]) -> Totals | None:
        """Returns the totals of an epoch, once all members have contributed and all of its averages are published.

        Returns None if the epoch is abandoned, close() has been called, or `is_wanted` returns False.
        """

        def is_complete() -> bool:
            has_averages = self._published.get(epoch, 0) >= messages
            return has_averages and len(self._contributions.get(epoch, {})) >= members

        with self.changed:
            while not self.changed.wait_for(lambda: is_complete() or epoch < self._epoch or self._closed, LOOK_EVERY_S):
                if not is_wanted():
                    return None
            return Totals.of(self._contributions[epoch].values()) if is_complete() else None

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()


class SliceServer(ConnectionServer):
    """Handles requests of other groups, with one thread per connection. The constructor starts the server.

    Args:
        rest: Frozen parameters and buffers that are not averaged, which returning groups also receive.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        name: str,
        mailbox: Mailbox,
        outer: OuterParameters,
        rest: PackedTensors,
        wire: ErrorFeedbackCodec,
    ) -> None:
        self.process = ""
        """The ID of this process. Callers that expect another ID, such as the one before a restart, are refused."""
        self._wire = wire
        self._mailbox = mailbox
        self._outer = outer
        self._rest = rest
        super().__init__(listener, key, name)
        self.start()

    def close(self) -> None:
        self._mailbox.close()
        super().close()

    def _serve(self, connection: Connection, introduction: dict[str, Any]) -> None:
        # If a group is lost, each group detects this through its own connection to that group.
        if introduction.get("service") != SERVICE:
            connection.refuse(f"{self.name} averages worker groups, and offers no other service.")
        elif introduction.get("process") not in (None, self.process):
            connection.refuse(f"{self.name} was restarted.")
        else:
            connection.answer({"name": self.name})
            group = int(introduction["group"])
            while True:
                self._answer(connection, group, connection.receive())

    def _answer(self, connection: Connection, group: int, header: dict[str, Any]) -> None:
        operation = header.get("op")
        if operation == "slice":
            self._average(connection, group, header)
        elif operation == "state":
            self._send_state(connection, int(header["round"]))
        elif operation == "about":
            connection.send({"has_begun": self._outer.round != NOT_BEGUN})
        else:
            raise ProtocolError(f"{operation!r} is not an operation")

    def _average(self, connection: Connection, group: int, header: dict[str, Any]) -> None:
        epoch, number, of = int(header["epoch"]), int(header["number"]), int(header["of"])
        if not 0 <= number < of:
            raise ProtocolError(f"there is no slice {number} of {of}")
        messages = self._wire.messages(self._outer.numbers(header.get("fragment")), number, of)
        own = Contribution(float(header["weight"]), bool(header["has_finished"]), float(header["square"]))
        self._mailbox.put(epoch, group, own, connection)
        for message in messages:
            connection.receive()
            encoded = torch.empty(self._wire.size(message), dtype=torch.uint8, device="cpu")
            connection.receive_into(encoded)
            self._mailbox.deliver(own, encoded)
        if not self._mailbox.wait_for_averages(epoch, len(messages)):
            connection.send({"abandoned": True})

    def _send_state(self, connection: Connection, round_: int) -> None:
        outer = self._outer
        with outer.changed:
            outer.changed.wait_for(lambda: outer.round >= round_ or self._closed, STATE_WAIT_S)
        found, theta, momentum = outer.copies()
        if found != round_:
            connection.send({"empty": True})
            return
        connection.send({"round": found})
        send_tensors(connection, [*theta, *momentum])
        connection.send({}, self._rest.packed() if self._rest.bytes else None)


def send_tensors(connection: Connection, tensors: Sequence[torch.Tensor]) -> None:
    for number, tensor in enumerate(tensors):
        if tensor.numel():
            connection.send({"tensor": number}, tensor)


def receive_tensors(connection: Connection, tensors: Sequence[torch.Tensor]) -> None:
    for number, tensor in enumerate(tensors):
        if tensor.numel():
            header = connection.receive()
            if header.get("tensor") != number:
                raise ProtocolError(f"tensor {number} was due, not {header.get('tensor')!r}")
            connection.receive_into(tensor)
