"""The client of reducers, which sums tensors over all ranks in place.

Each tensor is divided into one part per reducer, and each part into chunks. Each connection has a sending and a
receiving thread, so all connections send and receive at the same time. The credit window limits the number of chunks
whose sums have not been received, to avoid congestion at a reducer (incast). A reducer in the same process receives its
part without a network connection.

A lost reducer may be replaced at the same address, and the current step is then sent again. Therefore the client keeps
copies of all chunks that other processes sum, until the first sum of the next step shows that all ranks have finished
this step.
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
"""Initial size of a chunk in bytes, which is later adapted by fitting_chunk()."""
SMALLEST_CHUNK, LARGEST_CHUNK = 48 * 1024, 4 * 1024 * 1024
CHUNK_S = 0.0025
WINDOW = 4
SMALL_BYTES = 32 * 1024
"""Largest size in bytes of a tensor that is not divided among reducers."""
CONNECT_S = 60.0
RECONNECT_S = 660.0
"""Timeout in seconds for reconnecting to a reducer.

It exceeds the time for which the keeper waits for a lost host, because the keeper decides whether to continue without a
reducer.
"""


def fitting_chunk(bytes_a_second: float) -> int:
    """Returns the chunk size for a rate of exchange: the bytes exchanged in 2.5 ms, limited to a minimum and a maximum.

    On a slow network small chunks are better, because the chunks of all connections share one link: the exchange of 60
    MB among 4 workers and 2 reducers at 200 Mbit/s took 3.2 s in chunks of 48 KB and 3.6 to 3.9 s in larger chunks. On
    a fast network the overhead of each chunk dominates: an exchange among 3 workers and 3 reducers took 0.8 s in chunks
    of 48 KB and 0.2 s in chunks of 1 MB.
    """
    return min(LARGEST_CHUNK, max(SMALLEST_CHUNK, int(bytes_a_second * CHUNK_S) // 4096 * 4096))


def split(count: int, weights: Sequence[float], itemsize: int, first: int) -> list[tuple[int, int]]:
    """Divides `count` elements among the reducers by weight, and returns (start, end) of each reducer's part.

    A small tensor is assigned to a single reducer, which `first` selects. The result is the same on every rank.
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
    """The time in seconds that a step's exchange took without waiting, and the wait for the slowest rank."""

    step: int
    exchange_s: float
    wait_s: float


class ReduceClient:
    """The connections of a rank to all reducers. The constructor waits until all reducers listen, and connects.

    The futures of a step must be done before reduce() is called for the next step.

    Args:
        peers: The reducers, in the same order on every rank.
        weights: The relative sizes of the reducers' parts, the same on every rank. A reducer with weight 0 gets no
            part.
        order: The order of summation, `rank` or `arrival`.
        generation, membership: Reducers discard earlier generations and memberships when a newer one connects.
        divisor: A number by which the sums are divided. If it is the number of ranks, the results are means.
        local: The reducers of this process by their number among the peers.
        chunk_bytes: The chunk size in bytes, the same on all ranks. resize() changes it.

    Raises:
        PeerLost: A reducer cannot be reached.
        ProtocolError: A reducer refuses this rank.
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
        membership: int = 0,
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
        self.terms = Terms(generation, world, order, max(chunk_bytes, LARGEST_CHUNK), membership)
        self._chunk_bytes = chunk_bytes
        self.window = window
        self.divisor = divisor
        self.reconnect_s = reconnect_s
        self._weights = list(weights)
        self._lock = threading.Lock()
        self.failure: RolesError | None = None
        """The error that ended the exchange."""
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
        except BaseException:  # Connections are also closed after KeyboardInterrupt and SystemExit.
            self.close()
            raise

    def reduce(self, flat: torch.Tensor, step: int, bucket: int) -> Future[torch.Tensor]:
        """Sums `flat` (1-D, contiguous, CPU) over all ranks in place.

        Args:
            flat: The tensor, which is also the result of the future.
            step, bucket: Numbers that identify the tensor on all ranks. `step` never decreases.

        Returns:
            A future whose result is `flat`, or whose exception is the RolesError that ended the exchange. Callbacks run
            in a thread of the exchange, or in the calling thread if the future is already done.
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
        """Divides an operation into chunks for each reducer. Their sizes are proportional to the reducers' parts.

        All parts then progress evenly. With chunks of equal size a mixed exchange takes a quarter longer: connections
        share a link evenly, so the small parts of workers finish early, and the reducers' links are not fully used
        until then.
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
        """Returns the times of the newest step."""
        with self._lock:
            times = dict(self._times)
        wait = min(times["wait"], times["busy"])
        return StepTimes(int(times["step"]), times["busy"] - wait, wait)

    def resize(self, chunk_bytes: int) -> None:
        """Changes the chunk size. This method must be called between the same two steps on all ranks."""
        if not 0 < chunk_bytes <= self.terms.chunk_bytes:
            raise ValueError(f"a chunk has at most {self.terms.chunk_bytes} bytes here")
        if chunk_bytes != self._chunk_bytes:
            self._chunk_bytes = chunk_bytes
            self.memory.resize(chunk_bytes)

    @property
    def bytes_a_second(self) -> float:
        """The rate of the newest step's exchange in bytes of gradients per second, or 0 if no part is complete."""
        with self._lock:
            return self._times["bytes"] / self._times["busy"] if self._times["busy"] else 0.0

    @property
    def sent_bytes(self) -> int:
        """The number of bytes sent over all connections, including headers."""
        return sum(link.connection.sent_bytes for link in self._links if isinstance(link, RemoteLink))

    @property
    def received_bytes(self) -> int:
        return sum(link.connection.received_bytes for link in self._links if isinstance(link, RemoteLink))

    def close(self, *, goodbye: bool = True) -> None:
        """Disconnects from all reducers, which makes pending operations fail.

        Args:
            goodbye: Whether this rank has finished training. If not, the other ranks are informed of the loss that
                ended the exchange, or of the loss of this rank.
        """
        self.closed = True
        cause = self.failure if isinstance(self.failure, PeerLost) else None
        for link in self._links:
            if link is not None:
                link.close(goodbye=goodbye, cause=cause)
        self.fail(PeerLost(self.name, "this host", "its exchange was closed"))

    # The following methods are called by the threads of the links.

    def finished(self, chunk: Chunk, waited_s: float) -> None:
        """Handles a chunk whose sum has been received."""
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
            # Only the thread that removes the operation from `_running` completes its future. Otherwise fail() could
            # complete the future a second time.
            last = last and operation in self._running
            if last:
                self._running.discard(operation)
                if not self._running:
                    self._times["busy"] += time.monotonic() - self._began_at
        if last:
            operation.future.set_result(operation.flat)

    def _settle(self, step: int) -> None:
        """Drops the chunks of steps before `step`, which all ranks have finished. Called at the first sum of `step`."""
        with self._lock:
            self._settled = max(self._settled, step)
        for link in self._links:
            if link is not None:
                link.forget(step)

    def fail(self, error: RolesError) -> None:
        """Ends the exchange. All pending operations fail with `error`."""
        with self._lock:
            if self.failure is None:
                self.failure = error
                self.failed.set()
            running, self._running = self._running, set()
        for operation in running:
            operation.future.set_exception(error)
