"""A reducer receives each chunk from every rank, and returns the sum when the last part has arrived.

A reducer keeps no state after a step, so a lost reducer can be replaced at the same address: clients send the
unfinished step again (`reducer_client`). Any process may contain a reducer.

The header of a chunk contains its (step, bucket, number) as "chunk". After a reducer is replaced, a rank that already
has the sum of a chunk sends the chunk again, marked "done", because other ranks may need the sum. If sums are computed
in rank order, the rank sends its own part, because the same order gives the same bits. Otherwise the rank sends the sum
itself, marked "final".

If trainers continue without lost trainers, each membership has its own connections and sums. The first connection of a
newer membership discards the incomplete sums of the earlier membership.

One thread receives from all ranks, adds the parts, and sends complete sums. With one thread per connection, half of the
time was spent waiting for the GIL.
"""

from __future__ import annotations

import gc
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch

from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem, PeerLost, ProtocolError
from torchyard_roles.exchange.listener import Admission, Connections
from torchyard_roles.exchange.tensor_connection import Connection, dtype_name, listen_at
from torchyard_roles.server_reports import ServerReports
from torchyard_roles.strategies.reduction_server import reduction_plan
from torchyard_roles.strategies.reduction_server.chunk_sum import At, ChunkSum, Deliver, Part, PartMemory

MAX_CHUNK = 4 * 1024 * 1024
"""Largest size of a chunk in bytes. A larger chunk is refused before it is received."""
REJOIN_S = 1.0
"""A lost rank may reconnect within this many seconds. After that, the other ranks are informed of the loss."""
DTYPES = {dtype_name(each): each for each in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
DTYPES.update({dtype_name(each): each for each in (torch.complex64, torch.complex128)})
ORDERS = ("rank", "arrival")
EXIT_RESERVE_S = 1.0
"""Time in seconds reserved for the exit at the end of the grace period after SIGTERM."""


class Terms(NamedTuple):
    """The parameters of the exchange that must be equal on all ranks of a membership."""

    generation: int
    world: int
    order: str
    chunk_bytes: int
    membership: int = 0
    """The number of the membership in the generation, or 0 if trainers do not continue without lost trainers."""

    @property
    def epoch(self) -> tuple[int, int]:
        """The generation and membership. Terms with a later epoch replace those with an earlier one."""
        return self.generation, self.membership


class _Round:
    """The state of one generation of trainers, or of one of its memberships."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.sums: dict[At, ChunkSum] = {}
        self.links: dict[int, _Link] = {}
        self.step = -1
        """The step of the newest complete chunk. All ranks have finished earlier steps."""
        self.waited = (-1, 0.0)
        """The newest step, and the longest time in seconds between the first and the last part of one of its chunks."""

    @property
    def all_left(self) -> bool:
        """Whether all ranks have connected and disconnected properly. The caller must hold the reducer's lock."""
        return len(self.links) == self.terms.world and all(link.said_bye for link in self.links.values())


class _Incoming(NamedTuple):
    """A chunk whose payload is being received."""

    chunk: ChunkSum
    at: At
    part: torch.Tensor
    done: bool
    final: bool


class _Link:
    """The reducer's connection to one rank."""

    def __init__(self, connection: Connection, rank: int) -> None:
        self.connection = connection
        self.rank = rank
        self.said_bye = False
        self.incoming: _Incoming | None = None

    def deliver(self, at: At, result: torch.Tensor, waited_s: float) -> None:
        self.connection.post({"chunk": at, "wait": round(waited_s, 6)}, result)

    def acknowledge(self, at: At) -> None:
        """Returns the credit for a chunk to a rank that already has the sum."""
        self.connection.post({"chunk": at})


class Reducer:
    """A server that sums chunks over all ranks. Clients must have the key. close() also closes `listener`."""

    def __init__(self, listener: socket.socket, key: bytes, name: str = "reducer-0") -> None:
        self.name = name
        self._listener = listener
        self._admission = Admission(listener, key, name)
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        """Notified when a rank disconnects properly, and by close()."""
        self._round: _Round | None = None
        self._memory = PartMemory()
        self._connections = Connections()
        self._selector: selectors.BaseSelector | None = None
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def start(self) -> Reducer:
        """Starts handling requests in background threads, until close() is called."""
        self._spawn(self.serve_forever, "accept")
        return self

    def serve_forever(self) -> None:
        """Accepts connections of ranks until close() is called."""
        while not self._closed:
            try:
                sock = self._admission.accept()
            except OSError:
                return
            if sock is None:
                continue
            # Each handshake has its own thread, so that a client that does not respond delays no other client.
            self._spawn(partial(self._serve, sock), "peer")

    def close(self) -> None:
        """Closes all connections. Ranks that wait for sums raise PeerLost."""
        with self._left:
            self._closed = True
            self._left.notify_all()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # shutdown() wakes the thread that waits in accept().
        self._listener.close()
        self._connections.close()
        self._wake_sender.close()  # Closing this socket wakes the receiving thread.
        deadline = time.monotonic() + 5
        for thread in self._others():
            # The receiving thread is joined first, because it starts the threads that end connections.
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        for thread in self._others():
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        if self._selector is None:  # If there is a selector, the receiving thread closes this socket.
            self._wake_receiver.close()

    def _others(self) -> list[threading.Thread]:
        return [each for each in self._threads if each.is_alive() and each is not threading.current_thread()]

    def finish(self, within_s: float) -> None:
        """Closes the reducer once no rank is connected, or after `within_s` seconds.

        If no rank is connected, all ranks have received their last sums.
        """
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if not self._connections:
                break
            time.sleep(0.01)
        self.close()

    def serve_until_all_left(self) -> None:
        """Handles requests until all ranks of the newest generation have disconnected properly or close() is called."""
        self.start()
        with self._left:
            self._left.wait_for(lambda: self._closed or (self._round is not None and self._round.all_left))
        self.close()

    def finish_soon(self, within_s: float) -> None:
        """Runs finish() in a separate thread. A signal handler may call this method."""
        threading.Thread(target=self.finish, args=(within_s,), name=f"{self.name} stop", daemon=True).start()

    def contribute(self, terms: Terms, rank: int, at: At, part: torch.Tensor, deliver: Deliver) -> None:
        """Adds the part of a rank in this process, a 1-D tensor, to a chunk.

        The thread that completes the sum calls `deliver`.

        The part must not change until `deliver` is called. The sum is valid until the rank's first part of the next
        step. Raises ProtocolError if the terms, size or dtype differ from those of other ranks.
        """
        current = self._join(terms, rank)
        chunk = self._sum(current, at, part.nbytes, part.dtype, rank)
        self._add(current, chunk, rank, at, Part(part, owned=False), deliver)

    def _add(
        self, current: _Round, chunk: ChunkSum, rank: int, at: At, part: Part, deliver: Deliver, *, final: bool = False
    ) -> None:
        """Adds a part to a chunk.

        Args:
            final: Whether the part is the complete sum, sent for ranks that do not yet have it.
        """
        world = current.terms.world
        now = time.monotonic()
        with chunk.lock:
            again = rank in chunk.arrived  # The rank may send its part again over a new connection.
            arrived = chunk.arrived
            arrived.setdefault(rank, now)
            # A rank may have several `deliver` functions, because parts of its old connection may be handled after
            # those of its new connection.
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
                # All ranks have begun this step, so all earlier steps are finished.
                current.step = step
                self._memory.give_back_all([current.sums.pop(old) for old in list(current.sums) if old[0] < step])

    def figures(self) -> dict[str, float]:
        """Returns this reducer's metrics by their names in `metrics_report.METRICS`."""
        found = {"clients": float(len(self._connections))}
        if self._round is not None:
            found["wait_s"] = self._round.waited[1]
        return found

    def traffic(self) -> int:
        """Returns the number of bytes sent and received so far."""
        return sum(self._connections.traffic())

    def _join(self, terms: Terms, rank: int) -> _Round:
        if not 0 <= rank < terms.world or terms.order not in ORDERS:
            raise ProtocolError(f"{self.name} has no rank {rank} of {terms.world} with the order {terms.order!r}.")
        with self._lock:
            current = self._round
            if current is None or terms.epoch > current.terms.epoch:
                gone, current = current, _Round(terms)
                self._round = current
                if gone is not None:
                    gone.sums.clear()
                    if terms.generation > gone.terms.generation:
                        for link in gone.links.values():
                            link.connection.cut()
                    # Connections of an earlier membership are not cut: its members disconnect when the keeper
                    # announces the new membership.
            elif terms != current.terms:
                if terms.epoch < current.terms.epoch:
                    what = "Generation" if terms.generation < current.terms.generation else "Membership"
                    number = terms.generation if what == "Generation" else terms.membership
                    raise ProtocolError(f"{what} {number} of the trainers was replaced by a newer one.")
                raise ProtocolError(
                    f"{self.name} sums for {current.terms}, but rank {rank} comes with {terms}: "
                    "all trainers must run the same topology and version."
                )
            return current

    def _sum(self, current: _Round, at: At, size: int, dtype: torch.dtype, rank: int) -> ChunkSum:
        with self._lock:
            chunk = current.sums.get(at)
            if chunk is None:
                chunk = current.sums[at] = ChunkSum(size, dtype)
        if (chunk.size, chunk.dtype) != (size, dtype):
            raise ProtocolError(
                f"Rank {rank} has {size} bytes of {dtype_name(dtype)} for chunk {at}, but others have {chunk.size} "
                f"bytes of {dtype_name(chunk.dtype)}: the trainers' models differ."
            )
        return chunk

    def _serve(self, sock: socket.socket) -> None:
        """Authenticates a client, and passes its connection to the receiving thread."""
        admitted = self._admission.authenticate(sock)
        if admitted is None:
            return
        connection, introduction = admitted
        self._connections.add(connection)
        try:
            link, current = self._admit(connection, introduction)
            self._watch(link, current)
        except PeerLost:
            self._drop(connection)
        except ProtocolError as error:
            with suppress(PeerLost):
                connection.refuse(error.message)
            self._drop(connection)

    def _admit(self, connection: Connection, introduction: dict[str, Any]) -> tuple[_Link, _Round]:
        try:
            rank, generation, world, chunk_bytes, membership = (
                int(introduction[name]) for name in ("rank", "generation", "world", "chunk_bytes", "membership")
            )
            terms = Terms(generation, world, str(introduction["order"]), chunk_bytes, membership)
        except (KeyError, ValueError, TypeError):
            raise ProtocolError(f"{self.name} sums gradients, which {connection.peer} did not ask for.") from None
        current = self._join(terms, rank)
        link = _Link(connection, rank)
        with self._lock:
            before = current.links.get(rank)
            current.links[rank] = link
        if before is not None:
            before.connection.cut()  # The rank has reconnected, so its old connection is closed.
        connection.answer({"name": self.name})
        return link, current

    def _watch(self, link: _Link, current: _Round) -> None:
        with self._lock:
            if self._closed:
                raise PeerLost(self.name, "this host", "it was closed")
            if self._selector is None:
                self._selector = selectors.DefaultSelector()
                self._selector.register(self._wake_receiver, selectors.EVENT_READ)
                self._spawn(partial(self._receive_all, self._selector), "receive")
            self._selector.register(link.connection, selectors.EVENT_READ, (link, current))

    def _drop(self, connection: Connection) -> None:
        self._connections.remove(connection)
        connection.close()

    def _receive_all(self, selector: selectors.BaseSelector) -> None:
        """Receives from all ranks until the reducer is closed and all connections have ended."""
        use_one_thread()
        while selector.get_map():
            for key, _ in selector.select():
                if key.data is None:
                    # close() has closed the other end of this socket pair.
                    selector.unregister(key.fileobj)
                    self._wake_receiver.close()
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
                    pass  # After an invalid message the connection is closed, but the other ranks are not informed.
                selector.unregister(key.fileobj)
                self._spawn(partial(self._part, link, ended), "end")
        selector.close()

    def _part(self, link: _Link, tell: Callable[[], None] | None) -> None:
        """Ends a connection. If `tell` is given, calls it first, to inform the other ranks."""
        if tell is not None:
            tell()
        link.connection.flush(5)
        link.connection.drain()
        self._drop(link.connection)

    def _receive(self, link: _Link, current: _Round) -> bool:
        """Handles all data that a rank has sent so far. Returns False after the rank's last message."""
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
                # The sum of this chunk may never be complete, because ranks that have begun the next step do not send
                # it. Therefore the credit is returned immediately.
                link.acknowledge(at)
            deliver = _drop_sum if done else link.deliver
            self._add(current, chunk, link.rank, at, Part(part, owned=True), deliver, final=final)

    def _expect(self, link: _Link, current: _Round, header: dict[str, Any]) -> _Incoming:
        """Checks the header of a chunk, and prepares to receive its payload."""
        at: At = tuple(header["chunk"])
        dtype, size = DTYPES.get(header["dtype"]), header["bytes"]
        if dtype is None or size > min(MAX_CHUNK, current.terms.chunk_bytes) or size % dtype.itemsize or len(at) != 3:
            raise ProtocolError(f"{link.connection.peer} sent {size} bytes of {header['dtype']} as a chunk.")
        chunk = self._sum(current, at, size, dtype, link.rank)
        part = self._memory.take(size, dtype)
        return _Incoming(chunk, at, part, "done" in header, "final" in header)

    def _miss(self, current: _Round, link: _Link, error: PeerLost) -> None:
        """Informs the other ranks of a lost rank, unless it reconnects within REJOIN_S or a newer membership has begun.

        A rank that exited because of another rank's loss does not reconnect. In this case, the other ranks are informed
        of the loss of that other rank.
        """
        deadline = time.monotonic() + (REJOIN_S if error.name == link.connection.peer else 0.0)
        while True:
            # The clock is read first, so the condition is checked once more after the deadline.
            is_late = time.monotonic() >= deadline
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


def _drop_sum(at: At, result: torch.Tensor, waited_s: float) -> None:
    """Ignores a sum. This is the `deliver` function for a rank that already has the sum."""


def use_one_thread() -> None:
    """Disables OpenMP threads for torch operations of this thread, because they would only compete for the cores.

    torch.set_num_threads() applies to the calling thread and also sets the default for new threads. Another thread
    therefore restores the default.
    """
    before = torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
        restorer = threading.Thread(target=torch.set_num_threads, args=(before,))
        restorer.start()
        restorer.join()


def serve(environment: Environment) -> None:
    """Runs this process as a reducer until all trainers have disconnected properly.

    After SIGTERM the process exits once no trainer is connected, because stopped trainers still finish their step. If
    the plan uses the ring of workers, this function returns immediately. Raises EnvironmentProblem if the reducer
    cannot start.
    """
    places = [place for place in environment.peers.reducer if place.name == environment.replica]
    if not places or environment.strategy != "reduction_server":
        raise EnvironmentProblem(
            f"{environment.replica or 'This process'} has nothing to sum: TORCHYARD_PEERS names the reducers "
            f"{', '.join(place.name for place in environment.peers.reducer) or 'of none'}, in the strategy "
            f"{environment.strategy}.",
            "Set strategy.kind to reduction_server, or remove the pool of reducers.",
        )
    trainers = len(environment.peers.trainers) or environment.world_size
    plan = reduction_plan.choose(trainers, len(environment.peers.reducer))
    if plan.kind == "ring":
        print(f"torchyard: {environment.replica} has nothing to sum. {plan.sentence}", flush=True)
        return
    # The receiving thread sums the chunks. Additional torch threads would only compete with it.
    torch.set_num_threads(1)
    gc.freeze()  # freeze() exempts torch's objects from garbage collection.
    reducer = Reducer(listen_at(places[0]), environment.key, environment.replica)

    def stop(signum: int, frame: FrameType | None) -> None:
        reducer.finish_soon(environment.stop_grace_s - EXIT_RESERVE_S)

    signal.signal(signal.SIGTERM, stop)
    try:
        with ServerReports(environment, reducer.figures, reducer.traffic):
            reducer.serve_until_all_left()
    finally:
        # Another SIGTERM must not interrupt the exit.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
