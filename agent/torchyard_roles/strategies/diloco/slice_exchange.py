"""The exchange of one slice with the process that owns it, in threads that also detect the loss of the owner.

Slices are sent to all owners at the same rate (`EqualProgress`). TCP alone may divide a link unequally for seconds. A
slice that gets less bandwidth then arrives last, and its average is late for all groups. For 60 MB between four groups
at 200 Mbit/s, a round took 4.4 s without equal rates and takes 4.0 s with equal rates. The minimum is 3.77 s.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any, Callable, NamedTuple

import torch

from torchyard_roles.errors import PeerLost, ProtocolError
from torchyard_roles.exchange.listener import Connections
from torchyard_roles.exchange.tensor_connection import Connection, Peer
from torchyard_roles.strategies.diloco.slice_server import SERVICE

CONNECT_S = 0.4
"""Timeout in seconds for connecting. A running host's kernel accepts connections even if its processes are busy."""


UNSENT_BYTES = 128 * 1024
"""Maximum number of unsent bytes of a slice in the kernel's send buffer. More would let one slice run ahead."""
LEAD = 2
"""Maximum number of messages by which a slice may be ahead of the other slices."""


class Owner(NamedTuple):
    """A process that averages a slice."""

    peer: Peer
    process: str
    """The ID of the process, which differs after a restart."""


class EqualProgress:
    """Keeps every slice that a group is sending at most LEAD messages ahead of the slowest one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sent: dict[object, int] = {}

    def begin(self, slice_: object) -> None:
        with self._changed:
            self._sent[slice_] = 0

    def wait_for_turn(self, slice_: object, sent: int) -> bool:
        """Records that `sent` messages of a slice have been sent, and waits until the slice may send its next message.

        Returns False if end() has been called for the slice.
        """
        with self._changed:
            if slice_ in self._sent:
                self._sent[slice_] = sent
            self._changed.notify_all()
            self._changed.wait_for(lambda: slice_ not in self._sent or sent <= min(self._sent.values()) + LEAD)
            return slice_ in self._sent

    def end(self, slice_: object) -> None:
        """Removes a slice that has been sent or whose exchange has ended. The other slices no longer wait for it."""
        with self._changed:
            self._sent.pop(slice_, None)
            self._changed.notify_all()


class Calls:
    """One group's connections to the owners of slices. The connections stay open between rounds."""

    def __init__(self, key: bytes, own: Peer, group: int) -> None:
        self._key = key
        self._introduction = {"name": own.name, "service": SERVICE, "group": group}
        self._lock = threading.Lock()
        self._open = Connections()
        self._idle: dict[Owner, Connection] = {}
        self._closed = False
        self.progress = EqualProgress()

    def connect(self, peer: Peer, process: str | None = None) -> Connection:
        """Opens a new connection to a peer. If `process` is given, connects only to the process with this ID.

        Raises PeerLost or ProtocolError if connecting fails.
        """
        introduction = {**self._introduction, "process": process}
        connection, _ = Connection.connect(peer, self._key, introduction, CONNECT_S)
        return connection

    def take(self, owner: Owner) -> Connection:
        """Returns an idle connection to an owner, or a new connection if there is none.

        Raises PeerLost or ProtocolError if connecting fails, for example because the owner was restarted.
        """
        with self._lock:
            connection = self._idle.pop(owner, None)
        if connection is not None:
            if not is_readable(connection):
                return connection
            self.end(connection)  # An owner sends nothing between rounds, so a readable connection has been closed.
        connection = self.connect(*owner)
        self._open.add(connection)
        return connection

    def keep(self, owner: Owner, connection: Connection) -> None:
        """Keeps an idle connection for the next round."""
        with self._lock:
            surplus = connection if self._closed else self._idle.get(owner)
            if surplus is not connection:
                self._idle[owner] = connection
        if surplus is not None:
            self.end(surplus)

    def end(self, connection: Connection) -> None:
        connection.close()
        self._open.remove(connection)

    def end_all_but(self, owners: Iterable[Owner]) -> None:
        """Closes the idle connections to all processes except `owners`."""
        kept = set(owners)
        with self._lock:
            surplus = [self._idle.pop(owner) for owner in list(self._idle) if owner not in kept]
        for connection in surplus:
            self.end(connection)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self.end_all_but(())

    def traffic(self) -> tuple[int, int]:
        """Returns the numbers of bytes sent and received for slices so far."""
        return self._open.traffic()

    def has_begun(self, peer: Peer) -> bool | None:
        """Returns whether a group has outer parameters, or None if the group is unreachable."""
        try:
            with closing(self.connect(peer)) as connection:
                connection.send({"op": "about"})
                return bool(connection.receive()["has_begun"])
        except (PeerLost, ProtocolError):
            return None


class SliceExchange:
    """Sends a slice of pseudo-gradients to its owner, receives the average, and watches the connection until cancel().

    Args:
        header: The header of the slice, or None if `owner` averages no slice and is only watched.
        outgoing: The messages of the slice, which must not change.
        incoming: Tensors into which the messages of the slice's average are received.
        changed: Called when the average has arrived, and when the owner is lost.
    """

    def __init__(
        self,
        calls: Calls,
        owner: Owner,
        header: dict[str, Any] | None,
        outgoing: Sequence[torch.Tensor],
        incoming: Sequence[torch.Tensor],
        changed: Callable[[], None],
    ) -> None:
        self.owner = owner
        self.has_received = header is None
        self.lost: PeerLost | ProtocolError | None = None
        self.totals: list[Any] = []
        """The fields of the `slice_server.Totals` that a reducer sent."""
        self._calls = calls
        self._header = header
        self._outgoing = outgoing
        self._incoming = incoming
        self._changed = changed
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._is_cancelled = False
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"diloco to {owner.peer.name}", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Ends the thread. If the average has been received, the connection is kept for the next round."""
        with self._lock:
            self._is_cancelled = True
            if self._connection is not None and not self.has_received:
                self._connection.cut()
        os.write(self._wake, b"1")
        self._thread.join(5)
        if not self._thread.is_alive():
            os.close(self._woken)
            os.close(self._wake)

    def _run(self) -> None:
        error: PeerLost | ProtocolError | None = None
        for _ in range(2):  # The owner is considered lost only if a second connection fails too.
            try:
                connection = self._calls.take(self.owner)
            except (PeerLost, ProtocolError) as found:
                error = found
                break
            try:
                self._exchange_and_watch(connection)
            except (PeerLost, ProtocolError) as found:
                error = found
            if self._is_cancelled:
                return
        if not self._is_cancelled:
            self.lost = error
            self._changed()

    def _exchange_and_watch(self, connection: Connection) -> None:
        is_intact = False
        turn = object()
        try:
            with self._lock:
                if self._is_cancelled:
                    return
                self._connection = connection
            if not self.has_received:
                assert self._header is not None
                connection.limit_unsent(UNSENT_BYTES)
                self._calls.progress.begin(turn)
                sending = threading.Thread(
                    target=self._send, args=(connection, turn), name=f"slice to {self.owner.peer.name}", daemon=True
                )
                sending.start()
                if self._receive_averages(connection, has_totals="members" in self._header):
                    with self._lock:
                        self.has_received = True
                    self._changed()
            is_intact = self._watch(connection)
        finally:
            self._calls.progress.end(turn)
            with self._lock:
                self._connection = None
            if is_intact:
                self._calls.keep(self.owner, connection)
            else:
                self._calls.end(connection)

    def _send(self, connection: Connection, turn: object) -> None:
        """Sends the slice. A broken connection is ignored, because the receiving thread detects it too."""
        progress = self._calls.progress
        try:
            connection.send(self._header or {})
            for number, message in enumerate(self._outgoing):
                if not progress.wait_for_turn(turn, number):
                    return
                connection.send({}, message)
        except PeerLost:
            return
        finally:
            progress.end(turn)

    def _receive_averages(self, connection: Connection, *, has_totals: bool) -> bool:
        """Receives all averages and, from a reducer, the totals. Returns False if the owner abandoned the exchange."""
        for message in self._incoming:
            if "abandoned" in connection.receive():
                return False
            connection.receive_into(message)
        if has_totals:
            self.totals = connection.receive().get("totals", [])
            return bool(self.totals)
        return True

    def _watch(self, connection: Connection) -> bool:
        """Waits for cancel(), and returns whether the connection can be used again.

        Raises PeerLost if the owner is lost.
        """
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if connection.fileno() in ready:
            # The owner sends nothing at this time, so the connection is readable only because it was closed.
            connection.receive()
            return False
        return self.has_received


def is_readable(connection: Connection) -> bool:
    """Returns whether a message has arrived, or the connection is broken."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
