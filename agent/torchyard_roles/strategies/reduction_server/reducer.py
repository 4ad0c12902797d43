"""The side that sums: takes each chunk from every rank, and gives the sum back as soon as the last one is there.

It keeps nothing that outlives a step, so one that has died can be replaced by another at the same address: the
clients send the unfinished step again (reduce_client). Any process may host one.

What a chunk's message says: step, bucket, chunk as "chunk"; "done" where the sender has the sum already and sends only
for those that have not (after a replacement): then the bytes are its contribution in rank order, where the sum is
the same again bit by bit, or, with "final", the sum itself, since another arrival order would give other bits.

One thread receives from all ranks, adds, and sends a sum when it is complete: threads of their own for each connection
spent as much time on taking turns at the interpreter's lock as on all else. Sums of 16-bit floats are made in 32 bits.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch

from torchyard_roles.errors import PeerLost, ProtocolError
from torchyard_roles.exchange.listener import Admission, Connections
from torchyard_roles.exchange.tensor_connection import Connection, dtype_name

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


class _Part(NamedTuple):
    """A rank's contribution to a chunk. `owned`: by the reducer, from its memory."""

    values: torch.Tensor
    owned: bool


class _Memory:
    """For parts and sums. Used again and again: new pages would cost more time than what is received into them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}

    def take(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        with self._lock:
            spare = self._spare.get((size, dtype))
            if spare:
                return spare.pop()
        return torch.empty(size // dtype.itemsize, dtype=dtype)

    def give_back(self, part: _Part) -> None:
        if part.owned:
            with self._lock:
                self._spare.setdefault((part.values.nbytes, part.values.dtype), []).append(part.values)

    def give_back_all(self, sums: list[_Sum]) -> None:
        """Those of a step that is over. Memory of sizes that it did not need is let go."""
        with self._lock:
            self._spare = {kind: self._spare.get(kind, []) for kind in {(each.size, each.dtype) for each in sums}}
            for each in sums:
                if each.result is not None:
                    self._spare[each.size, each.dtype].append(each.result)


class _Sum:
    """One chunk on its way to a sum. Everything under the lock of its own."""

    __slots__ = ("arrived", "dtype", "early", "lock", "next_rank", "result", "size", "takers", "total")

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.size = size
        self.dtype = dtype
        self.lock = threading.Lock()
        self.total: torch.Tensor | None = None
        self.next_rank = 0
        self.early: dict[int, _Part] = {}  # rank order: those that came before their turn
        self.arrived: dict[int, float] = {}
        self.takers: dict[int, list[Deliver]] = {}
        self.result: torch.Tensor | None = None

    def add(self, rank: int, part: _Part, order: str, memory: _Memory) -> None:
        if order == "arrival":
            self._accumulate(part, memory)
            return
        self.early[rank] = part
        while self.next_rank in self.early:
            self._accumulate(self.early.pop(self.next_rank), memory)
            self.next_rank += 1

    def _accumulate(self, part: _Part, memory: _Memory) -> None:
        if self.total is not None:
            self.total.add_(part.values)
            memory.give_back(part)
        elif self.dtype in WIDER:
            self.total = part.values.to(WIDER[self.dtype])
            memory.give_back(part)
        elif part.owned:
            self.total = part.values
        else:
            self.total = memory.take(self.size, self.dtype).copy_(part.values)

    def finish(self) -> torch.Tensor:
        """The sum of all parts."""
        assert self.total is not None
        self.result = self.total.to(self.dtype) if self.dtype in WIDER else self.total
        self.total = None
        self.early.clear()
        return self.result


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


class _Incoming(NamedTuple):
    """A chunk whose bytes are being received."""

    chunk: _Sum
    at: At
    part: torch.Tensor
    done: bool
    final: bool


class _Link:
    """A rank's connection."""

    def __init__(self, connection: Connection, rank: int) -> None:
        self.connection = connection
        self.rank = rank
        self.said_bye = False
        self.incoming: _Incoming | None = None

    def deliver(self, at: At, result: torch.Tensor, waited_s: float) -> None:
        self.connection.post({"chunk": at, "wait": round(waited_s, 6)}, result)

    def acknowledge(self, at: At) -> None:
        """For one that has the sum: it gets back its credit alone."""
        self.connection.post({"chunk": at})


class Reducer:
    """Sums for all ranks that come with the key. `listener` is a listening socket, which close() closes."""

    def __init__(self, listener: socket.socket, key: bytes, name: str = "reducer-0") -> None:
        self.name = name
        self._listener = listener
        self._admission = Admission(listener, key, name)
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        """Notified when a rank has said goodbye, and at the end."""
        self._round: _Round | None = None
        self._memory = _Memory()
        self._connections = Connections()
        self._selector: selectors.BaseSelector | None = None
        self._bell, self._ear = socket.socketpair()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def start(self) -> Reducer:
        """Serve in threads of this process until close()."""
        self._spawn(self.serve_forever, "accept")
        return self

    def serve_forever(self) -> None:
        """Take in ranks until close() is called or the process ends."""
        while not self._closed:
            try:
                sock = self._admission.accept()
            except OSError:
                return
            if sock is None:
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
        self._bell.close()  # wakes the thread that receives
        deadline = time.monotonic() + 5
        for thread in self._others():  # the receiving one first, which starts those that end connections
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        for thread in self._others():
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        if not self._others():
            self._ear.close()

    def _others(self) -> list[threading.Thread]:
        return [each for each in self._threads if each.is_alive() and each is not threading.current_thread()]

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
    ) -> None:
        """Add `part` (1-D) as `rank`'s to the chunk's sum; `deliver` gets the sum, on the thread that completes it.

        The part must stay as it is until then, and the sum is valid until the rank's first part of the next step.
        Raises ProtocolError for terms, a size or a dtype that the other ranks do not have.
        """
        current = self._join(terms, rank)
        chunk = self._sum(current, at, part.nbytes, part.dtype, rank)
        self._add(current, chunk, rank, at, _Part(part, owned=False), deliver)

    def _add(
        self, current: _Round, chunk: _Sum, rank: int, at: At, part: _Part, deliver: Deliver, *, final: bool = False
    ) -> None:
        """contribute() to a chunk of this round. `final`: the part is the sum that the others lack."""
        world = current.terms.world
        now = time.monotonic()
        with chunk.lock:
            again = rank in chunk.arrived  # over a new connection, while this reducer has lived on
            arrived = chunk.arrived
            arrived.setdefault(rank, now)
            # Each of a rank's connections: what came over an old one may be heard only after the new one's.
            chunk.takers.setdefault(rank, []).append(deliver)
            result = chunk.result
            if result is not None or (again and not final):
                self._memory.give_back(part)
            elif final:
                result = chunk.result = part.values
            else:
                chunk.add(rank, part, current.terms.order, self._memory)
                if len(arrived) == world:
                    result = chunk.finish()
            if result is None:
                return
            takers, chunk.takers = chunk.takers, {}
            complete = len(arrived) == world
        for taker, gives in takers.items():
            for give in gives:
                give(at, result, max(0.0, now - arrived[taker]))
        waited_s, step = now - min(arrived.values()), at[0]
        with self._lock:
            newest, before = current.waited
            if step >= newest:
                current.waited = step, max(waited_s, before) if step == newest else waited_s
            if complete and step > current.step:
                # All ranks have begun this step, so every older one is done everywhere.
                current.step = step
                self._memory.give_back_all([current.sums.pop(old) for old in list(current.sums) if old[0] < step])

    def figures(self) -> dict[str, float]:
        """What there is to report: see `report.METRICS`."""
        found = {"clients": float(len(self._connections))}
        if self._round is not None:
            found["wait_s"] = self._round.waited[1]
        return found

    def traffic(self) -> int:
        """Bytes sent and received so far, over all connections."""
        return sum(self._connections.traffic())

    def _join(self, terms: Terms, rank: int) -> _Round:
        if not 0 <= rank < terms.world or terms.order not in ORDERS:
            raise ProtocolError(f"{self.name} has no rank {rank} of {terms.world} with the order {terms.order!r}.")
        with self._lock:
            current = self._round
            if current is None or terms.generation > current.terms.generation:
                gone = list(current.links.values()) if current else []
                current = self._round = _Round(terms)
                for link in gone:
                    link.connection.cut()
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
        """A caller's handshake; then its connection is the receiving thread's."""
        admitted = self._admission.authenticate(sock)
        if admitted is None:
            return
        connection, said = admitted
        self._connections.add(connection)
        try:
            link, current = self._admit(connection, said)
            self._watch(link, current)
        except PeerLost:
            self._drop(connection)
        except ProtocolError as error:
            with suppress(PeerLost):
                connection.refuse(error.message)
            self._drop(connection)

    def _admit(self, connection: Connection, said: dict[str, Any]) -> tuple[_Link, _Round]:
        try:
            rank = int(said["rank"])
            terms = Terms(int(said["generation"]), int(said["world"]), str(said["order"]), int(said["chunk_bytes"]))
        except (KeyError, ValueError, TypeError):
            raise ProtocolError(f"{self.name} sums gradients, which {connection.peer} did not ask for.") from None
        current = self._join(terms, rank)
        link = _Link(connection, rank)
        with self._lock:
            before = current.links.get(rank)
            current.links[rank] = link
        if before is not None:
            before.connection.cut()  # the same rank again: its old connection is as good as lost
        connection.answer({"name": self.name})
        return link, current

    def _watch(self, link: _Link, current: _Round) -> None:
        with self._lock:
            if self._closed:
                raise PeerLost(self.name, "this host", "it was closed")
            if self._selector is None:
                self._selector = selectors.DefaultSelector()
                self._selector.register(self._ear, selectors.EVENT_READ)
                self._spawn(partial(self._receive_all, self._selector), "receive")
            self._selector.register(link.connection, selectors.EVENT_READ, (link, current))

    def _drop(self, connection: Connection) -> None:
        self._connections.remove(connection)
        connection.close()

    def _receive_all(self, selector: selectors.BaseSelector) -> None:
        """The receiving thread: until the reducer is closed and all connections have ended."""
        use_one_thread()
        while selector.get_map():
            for key, _ in selector.select():
                if key.data is None:
                    selector.unregister(key.fileobj)  # close() has rung
                    continue
                link, current = key.data
                ended: Callable[[], None] | None = None
                try:
                    if self._receive(link, current):
                        continue
                except ProtocolError as error:
                    ended = partial(self._tell, current, {"error": error.message})
                except PeerLost as error:
                    ended = partial(self._miss, current, link, error)
                except (ValueError, KeyError, TypeError):
                    pass  # not a message of a rank: its connection ends
                selector.unregister(key.fileobj)
                self._spawn(partial(self._part, link, ended), "end")
        selector.close()

    def _part(self, link: _Link, tell: Callable[[], None] | None) -> None:
        """The end of a connection, with what the other ranks are to know of it."""
        if tell is not None:
            tell()
        link.connection.flush(5)
        link.connection.drain()
        self._drop(link.connection)

    def _receive(self, link: _Link, current: _Round) -> bool:
        """All that a rank has sent by now. False after its goodbye."""
        connection = link.connection
        while True:
            if link.incoming is None:
                header = connection.receive_now()
                if header is None:
                    return True
                if "bye" in header:
                    with self._left:
                        link.said_bye = True
                        self._left.notify_all()
                    return False
                if "ends" in header:
                    raise PeerLost(str(header["ends"]), str(header["host"]), str(header["why"]))
                link.incoming = self._expect(link, current, header)
            chunk, at, part, done, final = link.incoming
            if not connection.receive_into_now(part):
                return True
            link.incoming = None
            if done:
                # At once: ranks that have begun the next step do not send this one again, and its sum never comes.
                link.acknowledge(at)
            deliver = _to_nobody if done else link.deliver
            self._add(current, chunk, link.rank, at, _Part(part, owned=True), deliver, final=final)

    def _expect(self, link: _Link, current: _Round, header: dict[str, Any]) -> _Incoming:
        """What a chunk's header announces, checked before a byte of it is received."""
        at: At = tuple(header["chunk"])
        dtype, size = DTYPES.get(header["dtype"]), header["bytes"]
        if dtype is None or size > min(MAX_CHUNK, current.terms.chunk_bytes) or size % dtype.itemsize or len(at) != 3:
            raise ProtocolError(f"{link.connection.peer} sent {size} bytes of {header['dtype']} as a chunk.")
        chunk = self._sum(current, at, size, dtype, link.rank)
        part = self._memory.take(size, dtype)
        return _Incoming(chunk, at, part, "done" in header, "final" in header)

    def _miss(self, current: _Round, link: _Link, error: PeerLost) -> None:
        """Tell the others of a rank that is gone, unless it comes back in a moment (or all of this is over). One that
        has named whose loss ended it does not come back, and the others hear of that loss."""
        deadline = time.monotonic() + (COMES_BACK_S if error.name == link.connection.peer else 0.0)
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
                link.connection.post(message)

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
