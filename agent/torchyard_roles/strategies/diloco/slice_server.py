"""The server of a group's first rank, which averages a slice for all groups and sends its state to returning groups.

other group                                   owner of the slice
   | slice: epoch, weight, differences  --->    |  waits for the slices of all members
   | <--- average                               |
returning group                               member
   | state: round                       --->    |
   | <--- θ and m after that round              |
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from torchyard_roles.errors import PeerLost, ProtocolError
from torchyard_roles.exchange.chunk_staging import PackedTensors
from torchyard_roles.exchange.listener import Admission, Connections
from torchyard_roles.exchange.tensor_connection import Connection
from torchyard_roles.exchange.wire_codec import WireCodec
from torchyard_roles.strategies.diloco.outer_step import NOT_BEGUN, OuterParameters

SERVICE = "diloco"
STATE_WAIT_S = 5.0
"""Longest time in seconds for which a returning group waits until a member has taken the outer step of the round."""


class Contribution(NamedTuple):
    """One group's contribution to the average of a slice."""

    weight: float
    has_finished: bool
    differences: list[torch.Tensor]
    """The differences, encoded by the codec that all groups use."""
    square: float = 0.0
    """The sum of the squares of all parameter differences of the group."""


class Mailbox:
    """The contributions of all groups to this group's slice, and the slice's average, by epoch."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Notified of each contribution and average, and of other events that the averaging thread waits for."""
        self._contributions: dict[int, dict[int, Contribution]] = {}
        self._averages: dict[int, list[torch.Tensor]] = {}
        self._epoch = 0
        self._closed = False

    def advance(self, epoch: int) -> None:
        """Abandons all epochs before `epoch`."""
        with self.changed:
            self._epoch = epoch
            self._contributions = {number: each for number, each in self._contributions.items() if number >= epoch}
            self._averages = {number: each for number, each in self._averages.items() if number >= epoch}
            self.changed.notify_all()

    def put(self, epoch: int, group: int, contribution: Contribution) -> None:
        with self.changed:
            if epoch >= self._epoch:
                self._contributions.setdefault(epoch, {})[group] = contribution
                self.changed.notify_all()

    def contributions(self, epoch: int) -> dict[int, Contribution]:
        with self.changed:
            return dict(self._contributions.get(epoch, {}))

    def publish(self, epoch: int, average: list[torch.Tensor]) -> None:
        with self.changed:
            self._averages[epoch] = average
            self.changed.notify_all()

    def average(self, epoch: int) -> list[torch.Tensor] | None:
        """Waits for the average of an epoch. Returns None if the epoch is abandoned or close() has been called."""
        with self.changed:
            self.changed.wait_for(lambda: epoch in self._averages or epoch < self._epoch or self._closed)
            return self._averages.get(epoch)

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()


class SliceServer:
    """A server with one thread per connection. The constructor starts the server.

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
        codec: WireCodec,
    ) -> None:
        self._codec = codec
        self._listener = listener
        self._admission = Admission(listener, key, name)
        self._name = name
        self._mailbox = mailbox
        self._outer = outer
        self._rest = rest
        self._lock = threading.Lock()
        self._connections = Connections()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._spawn(self._accept_all, "diloco")

    def traffic(self) -> tuple[int, int]:
        """Returns the numbers of bytes sent and received by all connections."""
        return self._connections.traffic()

    def close(self) -> None:
        """Closes all connections and ends all threads."""
        with self._lock:
            self._closed = True
        self._mailbox.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # shutdown() wakes the thread that waits in accept().
        self._listener.close()
        self._connections.close()
        for thread in self._threads:
            thread.join(5)

    def _spawn(self, target: Callable[..., None], name: str, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _accept_all(self) -> None:
        while True:
            try:
                sock = self._admission.accept()
            except OSError:
                return
            if sock is not None:
                self._spawn(self._serve, "diloco-caller", sock)

    def _serve(self, sock: socket.socket) -> None:
        admitted = self._admission.authenticate(sock)
        if admitted is None:
            return
        connection, introduction = admitted
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._connections.add(connection)
        try:
            if introduction.get("service") != SERVICE:
                connection.refuse(f"{self._name} averages worker groups, and offers no other service.")
                return
            connection.answer({"name": self._name})
            self._answer_all(connection, int(introduction["group"]))
        except PeerLost:
            return  # This group detects the loss of another group through the connection that it has opened itself.
        except (ProtocolError, KeyError, ValueError, TypeError) as error:
            log(self._name, f"{connection.peer} on {connection.host} was refused: {error}")
        finally:
            connection.close()
            self._connections.remove(connection)

    def _answer_all(self, connection: Connection, group: int) -> None:
        while True:
            header = connection.receive()
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
        fragment = header.get("fragment")
        differences = []
        for flat in (self._outer.flats[each] for each in self._outer.numbers(fragment)):
            cut = self._codec.cut(flat.elements, number, of)
            size = self._codec.size(cut.stop - cut.start, flat.dtype)
            differences.append(torch.empty(size, dtype=torch.uint8, device="cpu"))
        receive_tensors(connection, differences)
        weight, square = float(header["weight"]), float(header["square"])
        self._mailbox.put(epoch, group, Contribution(weight, bool(header["has_finished"]), differences, square))
        average = self._mailbox.average(epoch)
        if average is None:
            connection.send({"abandoned": True})
        else:
            connection.send({"epoch": epoch})
            send_tensors(connection, average)

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


def log(name: str, message: str) -> None:
    """Prints a line to the replica's log."""
    print(f"{name}: {message}", file=sys.stderr, flush=True)
