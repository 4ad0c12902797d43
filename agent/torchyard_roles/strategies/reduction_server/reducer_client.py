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
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from torchyard_roles.errors import PeerLost, RolesError
from torchyard_roles.exchange.tensor_connection import Peer
from torchyard_roles.strategies.reduction_server.reducer import MAX_CHUNK, Reducer, Terms
from torchyard_roles.strategies.reduction_server.reducer_link import Chunk, LocalLink, Memory, Operation, RemoteLink

CHUNK_BYTES = 128 * 1024
"""To begin with: see fitting_chunk()."""
SMALLEST_CHUNK, LARGEST_CHUNK = 48 * 1024, 4 * 1024 * 1024
CHUNK_S = 0.0025
WINDOW = 4
SMALL_BYTES = 32 * 1024
"""A tensor of so few bytes goes to one reducer whole."""
CONNECT_S = 60.0
RECONNECT_S = 660.0
"""Longer than the keeper waits for a lost host: whether to go on without a reducer is the keeper's decision."""


def fitting_chunk(bytes_a_second: float) -> int:
    """Bytes of a chunk where a rank's exchange goes at this rate: what it carries in 2.5 ms, within bounds.

    On a slow network small chunks win, for those of all connections queue up before one cable: 60 MB among 4 workers
    and 2 reducers at 200 Mbit/s took 3.2 s in chunks of 48 KB and 3.6 to 3.9 s in larger ones. On a fast one each
    chunk's own cost in Python counts: 3 workers and 3 reducers without a limit took 0.8 s in chunks of 48 KB, 0.2 s in
    those of 1 MB.
    """
    return min(LARGEST_CHUNK, max(SMALLEST_CHUNK, int(bytes_a_second * CHUNK_S) // 4096 * 4096))


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


class ReduceClient:
    """A rank's connections to all reducers. Made once; connects at once, and waits until all of them listen.

    `peers` and `weights` (shares of every tensor, any scale, 0 for none) are the same on every rank, in this order.
    `local` has the reducers of this very process, by their number among the peers. `chunk_bytes` is the same on all
    ranks too (the reducers see to it); `resize` changes it later. Sums are divided by `divisor`: the number of ranks
    makes them means. A step's futures must be done before the next step's first reduce().
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
        self.terms = Terms(generation, world, order, max(chunk_bytes, LARGEST_CHUNK))
        self._chunk_bytes = chunk_bytes
        self.window = window
        self.divisor = divisor
        self.reconnect_s = reconnect_s
        self._weights = list(weights)
        self._lock = threading.Lock()
        self.failure: RolesError | None = None
        """Why nothing more can be exchanged."""
        self.failed = threading.Event()
        self._running: set[Operation] = set()
        self.memory = Memory(chunk_bytes)
        self._settled = -1
        self._began_at = 0.0
        self._times = {"step": -1.0, "bytes": 0.0, "busy": 0.0, "wait": 0.0}
        self.closed = False
        self._links: list[RemoteLink | LocalLink | None] = []
        try:
            for number, (peer, weight) in enumerate(zip(peers, weights)):
                if weight <= 0:
                    self._links.append(None)
                elif local and number in local:
                    self._links.append(LocalLink(self, local[number]))
                else:
                    self._links.append(RemoteLink(self, peer, key, connect_s))
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
        operation = Operation(flat, step, bucket)
        if not flat.numel():
            operation.future.set_result(flat)
            return operation.future
        with self._lock:
            if self.failure is not None:
                operation.future.set_exception(self.failure)
                return operation.future
            if self._times["step"] != step:
                self._times = {"step": step, "bytes": 0.0, "busy": 0.0, "wait": 0.0}
            self._times["bytes"] += flat.numel() * flat.element_size()
            if not self._running:
                self._began_at = time.monotonic()
            self._running.add(operation)
        shares = self._chunks(operation)
        operation.left = sum(map(len, shares))
        for link, share in zip(self._links, shares):
            if link is not None and share:
                link.give(share)
        return operation.future

    def _chunks(self, operation: Operation) -> list[list[Chunk]]:
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
            length = max(1, int(self._chunk_bytes * min(1.0, weight / heaviest)) // itemsize)
            shares.append(
                [
                    Chunk(operation, (operation.step, operation.bucket, next(number)), at, min(at + length, end))
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

    def resize(self, chunk_bytes: int) -> None:
        """Cut what is reduced from now on into chunks of so many bytes. Between the same two steps on all ranks."""
        if not 0 < chunk_bytes <= self.terms.chunk_bytes:
            raise ValueError(f"a chunk has at most {self.terms.chunk_bytes} bytes here")
        if chunk_bytes != self._chunk_bytes:
            self._chunk_bytes = chunk_bytes
            self.memory.resize(chunk_bytes)

    @property
    def bytes_a_second(self) -> float:
        """Of gradients, in the newest step; 0 before the first is through."""
        with self._lock:
            return self._times["bytes"] / self._times["busy"] if self._times["busy"] else 0.0

    @property
    def sent_bytes(self) -> int:
        """Over all connections since the start, headers included."""
        return sum(link.connection.sent_bytes for link in self._links if isinstance(link, RemoteLink))

    @property
    def received_bytes(self) -> int:
        return sum(link.connection.received_bytes for link in self._links if isinstance(link, RemoteLink))

    def close(self, *, goodbye: bool = True) -> None:
        """Say goodbye to all reducers, if this rank has done its part; what is still in exchange fails.

        Without a goodbye the other ranks hear of the process whose loss ended the exchange, or else of this one.
        """
        self.closed = True
        cause = self.failure if isinstance(self.failure, PeerLost) else None
        for link in self._links:
            if link is not None:
                link.close(goodbye=goodbye, cause=cause)
        self.fail(PeerLost(self.name, "this host", "its exchange was closed"))

    # -- what the links call

    def finished(self, chunk: Chunk, waited_s: float) -> None:
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
