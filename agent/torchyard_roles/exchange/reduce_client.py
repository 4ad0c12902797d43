"""The side that has gradients: sums tensors over all ranks, in place, by way of reducers.

Each tensor is cut into a share for every reducer and each share into chunks. Every reducer has a connection with a
thread that sends and one that receives, so that all of them are busy in both directions at once; how many chunks may
be on their way without a sum is bounded for each (the credit window), since an unbounded flood meets at one reducer
(incast). A reducer of this very process is given its share without any network.

A reducer that dies may be replaced at the same address: what was sent in this step is kept, and sent again. Kept
means one more copy in memory of what goes to reducers of other processes, chunk by chunk, until the first sum of the
next step says that all have theirs; then the next step's chunks take its place.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from torchyard_roles.errors import PeerLost, ProtocolError, RolesError
from torchyard_roles.exchange.reducer import MAX_CHUNK, At, Reducer, Terms, use_one_thread
from torchyard_roles.exchange.wire import Connection, Peer

CHUNK_BYTES = 128 * 1024
WINDOW = 4
SMALL_BYTES = 32 * 1024
"""A tensor of so few bytes goes to one reducer whole."""
CONNECT_S = 60.0
RECONNECT_S = 660.0
"""Longer than the keeper waits for a lost host: whether to go on without a reducer is the keeper's decision."""


def split(count: int, weights: Sequence[float], itemsize: int, first: int) -> list[tuple[int, int]]:
    """(start, end) of each reducer's share of `count` elements, by weight; a small tensor is all `first`'s.

    Pure, and the same on every rank.
    """
    if count * itemsize <= SMALL_BYTES:
        heavy = [each for each, weight in enumerate(weights) if weight > 0]
        chosen = heavy[first % len(heavy)]
        return [(0, count) if each == chosen else (0, 0) for each in range(len(weights))]
    total = sum(weights)
    edges = [round(count * below / total) for below in itertools.accumulate(weights, initial=0.0)]
    return list(zip(edges, edges[1:]))


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step: with something in exchange (without the waiting), and waiting for the slowest rank."""

    step: int
    exchange_s: float
    wait_s: float


class _Operation:
    """One tensor in exchange."""

    def __init__(self, flat: torch.Tensor, step: int, bucket: int) -> None:
        self.flat = flat
        self.step = step
        self.bucket = bucket
        self.future: Future[torch.Tensor] = Future()
        self.future.set_running_or_notify_cancel()  # nobody but its client ends it: what is on its way arrives
        self.left = 0
        self.lock = threading.Lock()


@dataclass(eq=False)
class _Chunk:
    """A piece of an operation that one reducer sums."""

    operation: _Operation
    at: At
    start: int
    end: int
    kept: torch.Tensor | None = None
    """The contribution as it was before the sum took its place, once it is sent to another process."""
    done: bool = False

    @property
    def target(self) -> torch.Tensor:
        return self.operation.flat[self.start : self.end]

    def keep(self, memory: _Memory) -> torch.Tensor:
        if self.kept is None:
            self.kept = memory.take(self.target)
            self.kept.copy_(self.target)
        return self.kept


class _Memory:
    """For copies of chunks. Used again and again: new pages would cost more time than what is copied to them."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._spare: deque[torch.Tensor] = deque()

    def take(self, like: torch.Tensor) -> torch.Tensor:
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = torch.empty(self._chunk_bytes, dtype=torch.uint8)
        return memory[: like.numel() * like.element_size()].view(like.dtype)

    def give_back(self, kept: torch.Tensor) -> None:
        whole = torch.empty(0, dtype=torch.uint8).set_(kept.untyped_storage())
        self._spare.append(whole)


class ReduceClient:
    """A rank's connections to all reducers. Made once; connects at once, and waits until all of them listen.

    `peers` and `weights` (shares of every tensor, any scale, 0 for none) are the same on every rank, in this order.
    `local` has the reducers of this very process, by their number among the peers. `chunk_bytes` is the same on all
    ranks too (the reducers see to it). Sums are divided by `divisor`: the number of ranks makes them means. A step's
    futures must be done before the next step's first reduce().
    Raises PeerLost or ProtocolError where a reducer cannot be reached or refuses.
    """

    def __init__(
        self,
        peers: Sequence[Peer],
        weights: Sequence[float],
        key: bytes,
        me: int,
        world: int,
        order: str = "rank",
        *,
        name: str = "",
        generation: int = 0,
        divisor: int = 1,
        local: Mapping[int, Reducer] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        window: int = WINDOW,
        connect_s: float = CONNECT_S,
        reconnect_s: float = RECONNECT_S,
    ) -> None:
        if len(peers) != len(weights) or not any(weight > 0 for weight in weights):
            raise ValueError("each reducer has a weight, and one is not 0")
        if not 0 < chunk_bytes <= MAX_CHUNK:
            raise ValueError(f"a chunk has at most {MAX_CHUNK} bytes")
        self.name = name or f"worker-{me}"
        self.rank = me
        self.terms = Terms(generation, world, order, chunk_bytes)
        self.window = window
        self.divisor = divisor
        self.reconnect_s = reconnect_s
        self._weights = list(weights)
        self._lock = threading.Lock()
        self.failure: RolesError | None = None
        """Why nothing more can be exchanged."""
        self.failed = threading.Event()
        self._running: set[_Operation] = set()
        self.memory = _Memory(chunk_bytes)
        self._settled = -1
        self._began_at = 0.0
        self._times = {"step": -1.0, "busy": 0.0, "wait": 0.0}
        self.closed = False
        self._links: list[_RemoteLink | _LocalLink | None] = []
        try:
            for number, (peer, weight) in enumerate(zip(peers, weights)):
                if weight <= 0:
                    self._links.append(None)
                elif local and number in local:
                    self._links.append(_LocalLink(self, local[number]))
                else:
                    self._links.append(_RemoteLink(self, peer, key, connect_s))
        except BaseException:
            self.close()
            raise

    def reduce(self, flat: torch.Tensor, step: int, bucket: int) -> Future[torch.Tensor]:
        """Sum `flat` (1-D, contiguous, CPU) over all ranks, in place.

        (step, bucket) names it, the same on all ranks; step never decreases. The future is done when `flat` holds
        the sum (its result is `flat`), or has PeerLost or ProtocolError. Callbacks run on a thread of the exchange.
        """
        if flat.dim() != 1 or not flat.is_contiguous() or flat.device.type != "cpu":
            raise ValueError("only contiguous tensors of one dimension on the CPU are reduced")
        operation = _Operation(flat, step, bucket)
        if not flat.numel():
            operation.future.set_result(flat)
            return operation.future
        with self._lock:
            if self.failure is not None:
                operation.future.set_exception(self.failure)
                return operation.future
            if self._times["step"] != step:
                self._times = {"step": step, "busy": 0.0, "wait": 0.0}
            if not self._running:
                self._began_at = time.monotonic()
            self._running.add(operation)
        shares = self._chunks(operation)
        operation.left = sum(map(len, shares))
        for link, share in zip(self._links, shares):
            if link is not None and share:
                link.give(share)
        return operation.future

    def _chunks(self, operation: _Operation) -> list[list[_Chunk]]:
        """The chunks of each reducer: smaller ones where the share is smaller, so that all shares get on alike.

        Else a mixed exchange loses a quarter of its time: connections divide a cable evenly, the workers' small
        shares would be through early, and only then could the reducers' cables be filled.
        """
        itemsize = operation.flat.element_size()
        shares, number = [], itertools.count()
        heaviest = max(self._weights)
        for weight, (start, end) in zip(
            self._weights, split(operation.flat.numel(), self._weights, itemsize, operation.bucket)
        ):
            length = max(1, int(self.terms.chunk_bytes * min(1.0, weight / heaviest)) // itemsize)
            shares.append(
                [
                    _Chunk(operation, (operation.step, operation.bucket, next(number)), at, min(at + length, end))
                    for at in range(start, end, length)
                ]
            )
        return shares

    def times(self) -> StepTimes:
        """Of the newest step so far."""
        with self._lock:
            times = dict(self._times)
        wait = min(times["wait"], times["busy"])
        return StepTimes(int(times["step"]), times["busy"] - wait, wait)

    @property
    def sent_bytes(self) -> int:
        """Over all connections since the start, headers included."""
        return sum(link.connection.sent_bytes for link in self._links if isinstance(link, _RemoteLink))

    @property
    def received_bytes(self) -> int:
        return sum(link.connection.received_bytes for link in self._links if isinstance(link, _RemoteLink))

    def close(self, *, goodbye: bool = True) -> None:
        """Say goodbye to all reducers, if this rank has done its part; what is still in exchange fails."""
        self.closed = True
        for link in self._links:
            if link is not None:
                link.close(goodbye=goodbye)
        self.fail(PeerLost(self.name, "this host", "its exchange was closed"))

    # -- what the links call

    def finished(self, chunk: _Chunk, waited_s: float) -> None:
        """A chunk's sum is in its place."""
        operation = chunk.operation
        if self.divisor != 1:
            chunk.target.div_(self.divisor)
        if chunk.at[0] > self._settled:
            self._settle(chunk.at[0])
        with operation.lock:
            operation.left -= 1
            last = operation.left == 0
        with self._lock:
            if chunk.at[0] == self._times["step"]:
                self._times["wait"] = max(self._times["wait"], waited_s)
            # Whoever takes it from the running ones ends its future: else fail(), on another thread, might do so too.
            last = last and operation in self._running
            if last:
                self._running.discard(operation)
                if not self._running:
                    self._times["busy"] += time.monotonic() - self._began_at
        if last:
            operation.future.set_result(operation.flat)

    def _settle(self, step: int) -> None:
        """The first sum of a step: all ranks have finished the steps before it, so nobody wants those again."""
        with self._lock:
            self._settled = max(self._settled, step)
        for link in self._links:
            if link is not None:
                link.forget(step)

    def fail(self, error: RolesError) -> None:
        """Nothing more can be exchanged."""
        with self._lock:
            if self.failure is None:
                self.failure = error
                self.failed.set()
            running, self._running = self._running, set()
        for operation in running:
            operation.future.set_exception(error)


class _RemoteLink:
    """The connection to one reducer, and what was sent over it."""

    def __init__(self, client: ReduceClient, peer: Peer, key: bytes, connect_s: float) -> None:
        self._client = client
        self._peer = peer
        self._key = key
        self._changed = threading.Condition()
        self._waiting: deque[_Chunk] = deque()  # to be sent
        self._history: dict[At, _Chunk] = {}  # handed in for a step that may still be wanted, in order
        self._credit = client.window
        self._parked = False  # while the connection is being replaced
        self._ended = False
        self._why: RolesError | None = None  # what the sending thread met
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

    def give(self, chunks: list[_Chunk]) -> None:
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
            if past:  # after a replacement some may still be on their way to it, for which nobody waits any longer
                self._waiting = deque(chunk for chunk in self._waiting if chunk.at[0] >= step)

    def close(self, *, goodbye: bool = True) -> None:
        with self._changed:
            if self._ended:
                return
            self._ended = True
            self._changed.notify_all()
        with suppress(RolesError):  # it may be gone already
            if goodbye:
                self.connection.send({"bye": 1})
        self.connection.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5)

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
            header: dict[str, Any] = {"at": chunk.at}
            if chunk.done:
                header["done"] = 1
                if self._client.terms.order == "arrival":
                    header["final"] = 1
            try:
                connection.send(header, chunk.keep(self._client.memory))
            except RolesError as error:
                # The receiving thread replaces the connection, and all that was handed in is sent again.
                with self._changed:
                    if connection is self.connection:
                        self._parked = True
                        self._why = error
                connection.close()
            except Exception as error:  # such as torch's own, for want of memory
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
                if lost.name != self._peer.name:  # another rank, as the reducer says
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
                self._give_up(ProtocolError(f"{self._peer.name} sent what is no sum: {error!r}."))
                return
            except Exception as error:
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
            at = tuple(header["at"])
            with self._changed:
                chunk = self._history.get(at)
            if chunk is not None and not chunk.done and "bytes" in header:
                connection.receive_into(chunk.target)
                if self._client.terms.order == "arrival" and chunk.kept is not None:
                    chunk.kept.copy_(chunk.target)  # no other order would give these bits again
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
        """Meet the reducer's next incarnation, and send it all of this step again."""
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


class _LocalLink:
    """The way to a reducer of this very process: its own thread, no network, no credit."""

    def __init__(self, client: ReduceClient, reducer: Reducer) -> None:
        self._client = client
        self._reducer = reducer
        self._changed = threading.Condition()
        self._waiting: deque[_Chunk] = deque()
        self._ended = False
        self._thread = threading.Thread(target=self._contribute, name=f"to own {reducer.name}", daemon=True)
        self._thread.start()

    def give(self, chunks: list[_Chunk]) -> None:
        with self._changed:
            self._waiting.extend(chunks)
            self._changed.notify_all()

    def forget(self, step: int) -> None:
        pass  # a reducer of this process cannot be lost without it

    def close(self, *, goodbye: bool = True) -> None:
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

            def deliver(_: At, result: torch.Tensor, waited_s: float, chunk: _Chunk = chunk) -> None:
                chunk.target.copy_(result)
                chunk.done = True
                self._client.finished(chunk, waited_s)

            try:
                # The sum takes this memory only when nobody needs what is there now.
                self._reducer.contribute(self._client.terms, self._client.rank, chunk.at, chunk.target, deliver)
            except RolesError as error:
                self._client.fail(error)
                return
            except Exception as error:
                self._client.fail(_unexpected(error))
                return


def _unexpected(error: Exception) -> RolesError:
    """What the training thread is to raise where a thread of the exchange could not go on."""
    found = RolesError(f"The exchange of gradients failed: {error or type(error).__name__}.")
    found.__cause__ = error
    return found
