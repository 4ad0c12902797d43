"""Links from a rank to one reducer, over a connection or within the same process."""

from __future__ import annotations

import sys
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from torchyard_roles.errors import PeerLost, ProtocolError, RolesError
from torchyard_roles.exchange.tensor_connection import Connection, Peer
from torchyard_roles.strategies.reduction_server.chunk_sum import At
from torchyard_roles.strategies.reduction_server.reducer import Reducer, Terms, use_one_thread


class Operation:
    """A tensor that is being reduced."""

    def __init__(self, flat: torch.Tensor, step: int, bucket: int) -> None:
        self.flat = flat
        self.step = step
        self.bucket = bucket
        self.future: Future[torch.Tensor] = Future()
        self.future.set_running_or_notify_cancel()  # From here on, the caller of reduce() cannot cancel the future.
        self.left = 0
        self.lock = threading.Lock()


@dataclass(eq=False)
class Chunk:
    """The part of an operation that one reducer sums in one message."""

    operation: Operation
    at: At
    start: int
    end: int
    kept: torch.Tensor | None = None
    """A copy of the contribution. It is made before sending, because the sum overwrites the contribution."""
    done: bool = False

    @property
    def target(self) -> torch.Tensor:
        return self.operation.flat[self.start : self.end]

    def keep(self, memory: Memory) -> torch.Tensor:
        if self.kept is None:
            self.kept = memory.take(self.target)
            self.kept.copy_(self.target)
        return self.kept


class Memory:
    """A pool of buffers for copies of chunks, because allocating new memory takes longer than copying."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._spare: deque[torch.Tensor] = deque()

    def resize(self, chunk_bytes: int) -> None:
        """Changes the size of chunks. Buffers of the old size are dropped when they are returned."""
        self._chunk_bytes = chunk_bytes
        self._spare = deque()

    def take(self, like: torch.Tensor) -> torch.Tensor:
        size = like.numel() * like.element_size()
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = torch.empty(0, dtype=torch.uint8, device="cpu")
        if memory.numel() < size:
            memory = torch.empty(max(size, self._chunk_bytes), dtype=torch.uint8, device="cpu")
        return memory[:size].view(like.dtype)

    def give_back(self, kept: torch.Tensor) -> None:
        whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(kept.untyped_storage())
        if whole.numel() == self._chunk_bytes:
            self._spare.append(whole)


class LinkOwner(Protocol):
    """The interface of a client that its links use."""

    name: str
    rank: int
    terms: Terms
    window: int
    reconnect_s: float
    memory: Memory

    def finished(self, chunk: Chunk, waited_s: float) -> None: ...

    def fail(self, error: RolesError) -> None: ...


class RemoteLink:
    """A connection to one reducer, with the chunks of the current step."""

    def __init__(self, client: LinkOwner, peer: Peer, key: bytes, connect_s: float) -> None:
        self._client = client
        self._peer = peer
        self._key = key
        self._changed = threading.Condition()
        self._waiting: deque[Chunk] = deque()  # The chunks to send, in order.
        self._history: dict[At, Chunk] = {}  # The chunks to send again if the reducer is replaced, in order.
        self._credit = client.window
        self._parked = False  # True while the connection is being replaced. Sending is then paused.
        self._ended = False
        self._why: RolesError | None = None  # The error that ended the sending thread.
        self.connection = self._connect(connect_s)
        self._threads = [
            threading.Thread(target=work, name=f"{what} {peer.name}", daemon=True)
            for work, what in ((self._send, "to"), (self._receive, "from"))
        ]
        for thread in self._threads:
            thread.start()

    def _connect(self, deadline_s: float) -> Connection:
        terms = self._client.terms._asdict()
        introduction = {"name": self._client.name, "rank": self._client.rank, **terms}
        connection, _ = Connection.connect(self._peer, self._key, introduction, deadline_s)
        return connection

    def give(self, chunks: list[Chunk]) -> None:
        with self._changed:
            self._history.update((chunk.at, chunk) for chunk in chunks)
            self._waiting.extend(chunks)
            self._changed.notify_all()

    def forget(self, step: int) -> None:
        with self._changed:
            past = [chunk for at, chunk in self._history.items() if at[0] < step]
            for chunk in past:
                del self._history[chunk.at]
                if chunk.kept is not None:
                    self._client.memory.give_back(chunk.kept)
            if past:  # After a replacement, the queue may contain finished chunks.
                self._waiting = deque(chunk for chunk in self._waiting if chunk.at[0] >= step)

    def close(self, *, goodbye: bool = True, cause: PeerLost | None = None) -> None:
        """Disconnects. If `goodbye` is false, the reducer records the loss of this rank or, if given, `cause`."""
        with self._changed:
            if self._ended:
                return
            self._ended = True
            is_connected = not self._parked
            self._changed.notify_all()
        with suppress(RolesError):  # The reducer may already have exited.
            if goodbye:
                self.connection.send({"bye": 1})
            elif cause is not None and is_connected:
                self.connection.send({"ends": cause.name, "host": cause.host, "why": cause.why})
                # The receiving thread ends when the reducer has read the message. If this rank closed the connection
                # before reading all sums, the connection would be reset.
                self._threads[1].join(timeout=5)
        self.connection.cut()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5)
        self.connection.close()

    def _send(self) -> None:
        while True:
            with self._changed:
                while not self._ended and (self._parked or not self._waiting or self._credit <= 0):
                    self._changed.wait()
                if self._ended:
                    return
                chunk = self._waiting.popleft()
                self._credit -= 1
                connection = self.connection
            header: dict[str, Any] = {"chunk": chunk.at}
            if chunk.done:
                header["done"] = 1
                if self._client.terms.order == "arrival":
                    header["final"] = 1
            try:
                connection.send(header, chunk.keep(self._client.memory))
            except RolesError as error:
                # The receiving thread reconnects and sends the step again.
                with self._changed:
                    if connection is self.connection:
                        self._parked = True
                        self._why = error
                connection.cut()
            except Exception as error:  # Any other error, such as torch's out-of-memory error, ends the exchange.
                self._give_up(_unexpected(error))
                return

    def _receive(self) -> None:
        use_one_thread()
        while True:
            try:
                self._receive_all()
            except PeerLost as lost:
                if self._ended:
                    return
                if lost.name != self._peer.name:  # The reducer is reachable, but reported the loss of another rank.
                    self._give_up(lost)
                    return
                try:
                    self._replace(lost)
                except RolesError as error:
                    if not self._ended:
                        self._give_up(error)
                    return
            except RolesError as error:
                self._give_up(error)
                return
            except (KeyError, TypeError, ValueError) as error:
                self._give_up(ProtocolError(f"{self._peer.name} sent an invalid sum: {error!r}."))
                return
            except Exception as error:  # Any other error ends the exchange, as in the sending thread.
                self._give_up(_unexpected(error))
                return

    def _receive_all(self) -> None:
        connection = self.connection
        while True:
            header = connection.receive()
            if "lost" in header:
                raise PeerLost(str(header["lost"]), str(header["host"]), str(header["why"]))
            if "error" in header:
                raise ProtocolError(str(header["error"]))
            at = tuple(header["chunk"])
            with self._changed:
                chunk = self._history.get(at)
            if chunk is not None and not chunk.done and "bytes" in header:
                connection.receive_into(chunk.target)
                if self._client.terms.order == "arrival" and chunk.kept is not None:
                    # The sum is kept for a replacement of the reducer. Computing it again, in another order of arrival,
                    # could change its bits.
                    chunk.kept.copy_(chunk.target)
                chunk.done = True
                self._credited()
                self._client.finished(chunk, float(header["wait"]))
            else:
                connection.discard()
                self._credited()

    def _credited(self) -> None:
        with self._changed:
            self._credit += 1
            if self._waiting:
                self._changed.notify_all()

    def _replace(self, lost: PeerLost) -> None:
        """Connects to the replacement of a lost reducer, and sends the current step again."""
        with self._changed:
            self._parked = True
            why, self._why = self._why or lost, None
        self.connection.close()
        print(f"torchyard: {why.message} Waiting for it to come back.", file=sys.stderr, flush=True)
        connection = self._connect(self._client.reconnect_s)
        with self._changed:
            connection.sent_bytes += self.connection.sent_bytes
            connection.received_bytes += self.connection.received_bytes
            self.connection = connection
            self._waiting = deque(self._history.values())
            self._credit = self._client.window
            self._parked = False
            self._changed.notify_all()
        if self._ended:
            connection.close()
        print(f"torchyard: {self._peer.name} is back.", file=sys.stderr, flush=True)

    def _give_up(self, error: RolesError) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self.connection.close()
        self._client.fail(error)


class LocalLink:
    """A link to a reducer in the same process. It uses a thread instead of a connection, and has no credit window."""

    def __init__(self, client: LinkOwner, reducer: Reducer) -> None:
        self._client = client
        self._reducer = reducer
        self._changed = threading.Condition()
        self._waiting: deque[Chunk] = deque()
        self._ended = False
        self._thread = threading.Thread(target=self._contribute, name=f"to own {reducer.name}", daemon=True)
        self._thread.start()

    def give(self, chunks: list[Chunk]) -> None:
        with self._changed:
            self._waiting.extend(chunks)
            self._changed.notify_all()

    def forget(self, step: int) -> None:
        pass  # Nothing is kept, because a reducer in this process is never replaced.

    def close(self, *, goodbye: bool = True, cause: PeerLost | None = None) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _contribute(self) -> None:
        use_one_thread()
        while True:
            with self._changed:
                while not self._ended and not self._waiting:
                    self._changed.wait()
                if self._ended:
                    return
                chunk = self._waiting.popleft()

            def deliver(_: At, result: torch.Tensor, waited_s: float, chunk: Chunk = chunk) -> None:
                chunk.target.copy_(result)
                chunk.done = True
                self._client.finished(chunk, waited_s)

            try:
                # The part and the result may share memory: the result is written only after the part has been added.
                self._reducer.contribute(self._client.terms, self._client.rank, chunk.at, chunk.target, deliver)
            except RolesError as error:
                self._client.fail(error)
                return
            except Exception as error:  # Any other error ends the exchange, as in RemoteLink.
                self._client.fail(_unexpected(error))
                return


def _unexpected(error: Exception) -> RolesError:
    """Creates the error that the training thread raises if a thread of the exchange fails unexpectedly."""
    found = RolesError(f"The exchange of gradients failed: {error or type(error).__name__}.")
    found.__cause__ = error
    return found
