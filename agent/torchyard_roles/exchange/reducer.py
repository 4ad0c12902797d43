"""The side that sums: takes each chunk from every rank, and gives the sum back as soon as the last one is there.

It keeps nothing that outlives a step, so one that has died can be replaced by another at the same address: the
clients send the unfinished step again (reduce_client). Any process may host one.

What a chunk's message says: step, bucket, chunk as "at"; "done" where the sender has the sum already and sends only
for those that have not (after a replacement): then the bytes are its contribution in rank order, where the sum is
the same again bit by bit, or, with "final", the sum itself, since another arrival order would give other bits.

Two threads per connection: one receives and adds, one sends. Sums of 16-bit floats are made in 32 bits.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch

from torchyard_roles.errors import PeerLost, ProtocolError
from torchyard_roles.exchange.connections import Connections
from torchyard_roles.exchange.wire import Connection, dtype_name

MAX_CHUNK = 4 * 1024 * 1024
"""Bytes; a larger chunk is refused before it is received."""
COMES_BACK_S = 1.0
"""How long a lost connection may take to be replaced before the other ranks are told of the loss."""
DTYPES = {dtype_name(each): each for each in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
DTYPES.update({dtype_name(each): each for each in (torch.complex64, torch.complex128)})
WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
ORDERS = ("rank", "arrival")

At = tuple[int, int, int]
Deliver = Callable[[At, torch.Tensor, float], None]
"""(which chunk, the sum, seconds that this rank's part waited for the last one)"""


class Terms(NamedTuple):
    """What all ranks of a generation must agree on."""

    generation: int
    world: int
    order: str
    chunk_bytes: int


class _Sum:
    """One chunk on its way to a sum. Everything under the lock of its own."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.size = size
        self.dtype = dtype
        self.lock = threading.Lock()
        self.total: torch.Tensor | None = None
        self.next_rank = 0
        self.early: dict[int, torch.Tensor] = {}  # rank order: those that came before their turn
        self.arrived: dict[int, float] = {}
        self.takers: dict[int, list[Deliver]] = {}
        self.result: torch.Tensor | None = None

    def add(self, rank: int, part: torch.Tensor, order: str, *, owned: bool) -> None:
        if order == "arrival":
            self._accumulate(part, owned=owned)
            return
        self.early[rank] = part
        while self.next_rank in self.early:
            mine = self.next_rank == rank
            self._accumulate(self.early.pop(self.next_rank), owned=owned if mine else False)
            self.next_rank += 1

    def _accumulate(self, part: torch.Tensor, *, owned: bool) -> None:
        if self.total is None:
            self.total = part.to(WIDER.get(self.dtype, self.dtype), copy=not owned)
        else:
            self.total.add_(part)


class _Round:
    """What belongs to one generation of trainers."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.sums: dict[At, _Sum] = {}
        self.links: dict[int, _Link] = {}
        self.step = -1  # of the newest chunk that all have contributed to: everything older is done everywhere
        self.waited = (-1, 0.0)  # a step, and how long the first rank's part of a chunk waited for the last one's

    @property
    def all_left(self) -> bool:
        """Whether every rank came and said goodbye. With the reducer's lock held."""
        return len(self.links) == self.terms.world and all(link.said_bye for link in self.links.values())


class _Link:
    """A rank's connection, with the queue of what is to be sent over it."""

    def __init__(self, connection: Connection, rank: int) -> None:
        self.connection = connection
        self.rank = rank
        self.outgoing: queue.SimpleQueue[tuple[dict[str, Any], torch.Tensor | None] | None] = queue.SimpleQueue()
        self.said_bye = False

    def send_all(self) -> None:
        """The sending thread."""
        with suppress(PeerLost):
            while True:
                message = self.outgoing.get()
                if message is None:
                    return
                self.connection.send(*message)

    def deliver(self, at: At, result: torch.Tensor, waited_s: float) -> None:
        self.outgoing.put(({"at": at, "wait": round(waited_s, 6)}, result))

    def acknowledge(self, at: At) -> None:
        """For one that has the sum: it gets back its credit alone."""
        self.outgoing.put(({"at": at}, None))


class Reducer:
    """Sums for all ranks that come with the key. `listener` is a listening socket, which close() closes."""

    def __init__(self, listener: socket.socket, key: bytes, name: str = "reducer-0") -> None:
        self.name = name
        self._listener = listener
        self._key = key
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        """Notified when a rank has said goodbye, and at the end."""
        self._round: _Round | None = None
        self._connections = Connections()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def start(self) -> Reducer:
        """Serve in threads of this process until close()."""
        self._spawn(self.serve_forever, "accept")
        return self

    def serve_forever(self) -> None:
        """Take in ranks until close() is called or the process ends."""
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.05)  # such as too many open files: those who have a connection go on
                continue
            # A thread for each handshake, so that a silent stranger keeps nobody waiting.
            self._spawn(partial(self._serve, sock), "peer")

    def close(self) -> None:
        """End all connections. The ranks that still want something see a lost peer."""
        with self._left:
            self._closed = True
            self._left.notify_all()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self._connections.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5)

    def finish(self, within_s: float) -> None:
        """close(), once no rank is connected, so that each has its last sums; at most `within_s` later."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if not self._connections:
                break
            time.sleep(0.01)
        self.close()

    def serve_until_all_left(self) -> None:
        """Serve until every rank of the newest generation has said goodbye, or finish_soon() has closed it."""
        self.start()
        with self._left:
            self._left.wait_for(lambda: self._closed or (self._round is not None and self._round.all_left))
        self.close()

    def finish_soon(self, within_s: float) -> None:
        """End once no rank is connected any more, at most `within_s` later. For a signal handler."""
        threading.Thread(target=self.finish, args=(within_s,), name=f"{self.name} stop", daemon=True).start()

    def contribute(
        self,
        terms: Terms,
        rank: int,
        at: At,
        part: torch.Tensor,
        deliver: Deliver,
        *,
        final: bool = False,
        owned: bool = False,
    ) -> None:
        """Add `part` (1-D) as `rank`'s to the chunk's sum; `deliver` gets the sum, on the thread that completes it.

        `owned`: the caller has no more use for `part`, which may become the sum. Else it must stay as it is until
        then. Raises ProtocolError for terms, a size or a dtype that the other ranks do not have.
        """
        current = self._join(terms, rank)
        chunk = self._sum(current, at, part.numel() * part.element_size(), part.dtype, rank)
        now = time.monotonic()
        with chunk.lock:
            again = rank in chunk.arrived  # over a new connection, while this reducer has lived on
            arrived = chunk.arrived
            arrived.setdefault(rank, now)
            # Each of a rank's connections: what came over an old one may be heard only after the new one's.
            chunk.takers.setdefault(rank, []).append(deliver)
            if chunk.result is None:
                if final:
                    chunk.result = part
                elif not again:
                    chunk.add(rank, part, terms.order, owned=owned)
                if chunk.result is None and len(arrived) == terms.world:
                    assert chunk.total is not None
                    chunk.result = chunk.total.to(chunk.dtype)
                if chunk.result is None:
                    return
                chunk.total = None
                chunk.early.clear()
            takers, chunk.takers = chunk.takers, {}
            result, complete = chunk.result, len(arrived) == terms.world
        for taker, gives in takers.items():
            for give in gives:
                give(at, result, max(0.0, now - arrived[taker]))
        self._note_wait(current, at[0], now - min(arrived.values()))
        if complete:
            self._settle(current, at)

    def _note_wait(self, current: _Round, step: int, waited_s: float) -> None:
        with self._lock:
            newest, before = current.waited
            if step >= newest:
                current.waited = step, max(waited_s, before) if step == newest else waited_s

    def figures(self) -> dict[str, float]:
        """What there is to report: see `report.METRICS`."""
        found = {"clients": float(len(self._connections))}
        if self._round is not None:
            found["wait_s"] = self._round.waited[1]
        return found

    def traffic(self) -> int:
        """Bytes sent and received so far, over all connections."""
        return sum(self._connections.traffic())

    def _settle(self, current: _Round, at: At) -> None:
        """All ranks have begun this chunk's step, so every older step is done everywhere."""
        with self._lock:
            if at[0] > current.step:
                current.step = at[0]
                for old in [each for each in current.sums if each[0] < at[0]]:
                    del current.sums[old]

    def _join(self, terms: Terms, rank: int) -> _Round:
        if not 0 <= rank < terms.world or terms.order not in ORDERS:
            raise ProtocolError(f"{self.name} has no rank {rank} of {terms.world} with the order {terms.order!r}.")
        with self._lock:
            current = self._round
            if current is None or terms.generation > current.terms.generation:
                gone = list(current.links.values()) if current else []
                current = self._round = _Round(terms)
                for link in gone:
                    link.connection.close()
            elif terms != current.terms:
                if terms.generation < current.terms.generation:
                    raise ProtocolError(f"Generation {terms.generation} of the trainers was replaced by a newer one.")
                raise ProtocolError(
                    f"{self.name} sums for {current.terms}, but rank {rank} comes with {terms}: "
                    "all trainers must run the same topology and version."
                )
            return current

    def _sum(self, current: _Round, at: At, size: int, dtype: torch.dtype, rank: int) -> _Sum:
        with self._lock:
            chunk = current.sums.get(at)
            if chunk is None:
                chunk = current.sums[at] = _Sum(size, dtype)
        if (chunk.size, chunk.dtype) != (size, dtype):
            raise ProtocolError(
                f"Rank {rank} has {size} bytes of {dtype_name(dtype)} for chunk {at}, but others have {chunk.size} "
                f"bytes of {dtype_name(chunk.dtype)}: the trainers' models differ."
            )
        return chunk

    def _serve(self, sock: socket.socket) -> None:
        """One connection, from its handshake to its end."""
        try:
            connection, said = Connection.accept(sock, self._key)
        except (ProtocolError, PeerLost):
            return
        self._connections.add(connection)
        try:
            self._serve_rank(connection, said)
        except (PeerLost, ValueError, KeyError, TypeError):
            pass
        finally:
            self._connections.remove(connection)
            connection.close()

    def _serve_rank(self, connection: Connection, said: dict[str, Any]) -> None:
        try:
            rank = int(said["rank"])
            terms = Terms(int(said["generation"]), int(said["world"]), str(said["order"]), int(said["chunk_bytes"]))
            current = self._join(terms, rank)
        except ProtocolError as error:
            connection.refuse(error.message)
            return
        except (KeyError, ValueError, TypeError):
            connection.refuse(f"{self.name} sums gradients, which {connection.peer} did not ask for.")
            return
        use_one_thread()
        link = _Link(connection, rank)
        with self._lock:
            before = current.links.get(rank)
            current.links[rank] = link
        if before is not None:
            before.connection.close()  # the same rank again: its old connection is as good as lost
        connection.answer({"name": self.name})
        sender = self._spawn(link.send_all, f"to {connection.peer}")
        try:
            self._receive(link, terms)
        except ProtocolError as error:
            self._tell(current, {"error": error.message})
        except PeerLost as error:
            self._miss(current, link, error)
        finally:
            link.outgoing.put(None)
            sender.join(timeout=5)
            connection.drain()

    def _receive(self, link: _Link, terms: Terms) -> None:
        connection = link.connection
        while True:
            header = connection.receive()
            if "bye" in header:
                with self._left:
                    link.said_bye = True
                    self._left.notify_all()
                return
            at: At = tuple(header["at"])
            dtype, size = DTYPES.get(header["dtype"]), header["bytes"]
            if dtype is None or size > min(MAX_CHUNK, terms.chunk_bytes) or size % dtype.itemsize or len(at) != 3:
                raise ProtocolError(f"{connection.peer} sent {size} bytes of {header['dtype']} as a chunk.")
            self._sum(self._join(terms, link.rank), at, size, dtype, link.rank)  # before a byte is received
            part = torch.empty(size // dtype.itemsize, dtype=dtype)
            connection.receive_into(part)
            if done := bool(header.get("done")):
                # At once: ranks that have begun the next step do not send this one again, and its sum never comes.
                link.acknowledge(at)
            deliver = _to_nobody if done else link.deliver
            self.contribute(terms, link.rank, at, part, deliver, final=bool(header.get("final")), owned=True)

    def _miss(self, current: _Round, link: _Link, error: PeerLost) -> None:
        """Tell the others of a rank that is gone, unless it comes back in a moment (or all of this is over)."""
        deadline = time.monotonic() + COMES_BACK_S
        while True:
            is_late = time.monotonic() >= deadline  # and then a last look: this thread may have slept far too long
            if self._closed or current.links.get(link.rank) is not link or current is not self._round:
                return
            if is_late:
                break
            time.sleep(0.05)
        self._tell(current, {"lost": error.name, "host": error.host, "why": error.why})

    def _tell(self, current: _Round, message: dict[str, Any]) -> None:
        with self._lock:
            links = list(current.links.values())
        for link in links:
            if not link.said_bye:
                link.outgoing.put((message, None))

    def _spawn(self, work: Callable[[], None], what: str) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"{self.name} {what}", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)
        thread.start()
        return thread


def _to_nobody(at: At, result: torch.Tensor, waited_s: float) -> None:
    """The sender has it."""


def use_one_thread() -> None:
    """Additions of a chunk on this thread alone: a team of OpenMP threads for every connection would spin in vain.

    torch's setting is the calling thread's own and the default of threads to come, so the default is put back by
    another thread.
    """
    before = torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
        restorer = threading.Thread(target=torch.set_num_threads, args=(before,))
        restorer.start()
        restorer.join()
