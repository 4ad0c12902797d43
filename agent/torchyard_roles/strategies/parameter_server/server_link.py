"""A worker's connection to one parameter server, for requests (one at a time) and exchanges of chunks.

Each link has two threads, so sending never waits for receiving. At most IN_FLIGHT chunks are in flight, that is, sent
but not yet answered. Without a limit, the gradients of all workers would congest the server (incast). With a low limit,
the link would be idle at times. At 200 Mbit/s with 4 workers and 4 servers, an exchange took 1.14 times the theoretical
minimum with 4 chunks of 128 KiB in flight, and 1.23 times with 8 chunks of 234 KiB (on two busy cores).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from torchyard_roles.errors import PeerLost, ProtocolError, UsageProblem
from torchyard_roles.exchange.chunk_staging import Gradient
from torchyard_roles.exchange.parameter_layout import Chunk
from torchyard_roles.exchange.tensor_connection import Connection, Peer
from torchyard_roles.strategies.parameter_server import messages
from torchyard_roles.strategies.parameter_server.messages import IN_FLIGHT
from torchyard_roles.strategies.parameter_server.push_acceptance import LATE, NEWEST, Outcomes, Push


@dataclass
class Exchange:
    """One exchange with all servers. The threads of the links call the functions in its fields."""

    gradient: Callable[[Chunk], Gradient] | None
    """A function that returns the gradient of a chunk, or None if the exchange does not push."""
    target: Callable[[Chunk], torch.Tensor] | None
    """A function that returns the 1-D CPU tensor for a chunk's new parameters. None if the exchange does not pull."""
    arrived: Callable[[Chunk], None] = lambda chunk: None
    void: bool = False
    hold: bool = False
    """Whether the exchange stops when all servers have reported the norms of their sums. scale() continues it."""
    clip: float | None = None
    """The limit for elements of the mean gradient, or None if there is none."""
    changed: Mapping[int, int] = field(default_factory=dict)
    """The checksums of the chunks that the script changed since the last step, by chunk number."""
    values: Callable[[Chunk], torch.Tensor] | None = None
    """A function that returns the values of a changed chunk. None on workers that do not send such values."""


class Completion:
    """The completion of an exchange on several links. The first error ends wait()."""

    def __init__(self, parts: int) -> None:
        self._condition = threading.Condition()
        self._left = parts
        self._error: Exception | None = None
        self.lost: list[ServerLink] = []
        """Links whose server is lost, if training may continue without it."""

    def done(self, *, error: Exception | None = None, lost: ServerLink | None = None) -> None:
        """Records that one link has finished its part: successfully, with an error, or with the loss of its server."""
        with self._condition:
            self._left -= 1
            self._error = self._error or error
            if lost is not None:
                self.lost.append(lost)
            self._condition.notify_all()

    def wait(self) -> None:
        """Waits until all links have finished. Raises the first error immediately."""
        with self._condition:
            self._condition.wait_for(lambda: self._error is not None or self._left <= 0)
            if self._error is not None:
                raise self._error


@dataclass
class Figures(Outcomes):
    """Statistics of a link's exchanges. `waited` and `staleness` refer to the last exchange."""

    waited: float = 0.0
    """The longest time in seconds for which the server waited for the other members' gradients of a chunk."""
    staleness: int = 0
    lost: int = 0
    """The number of pushes that were lost because the server was lost."""


class Job:
    """One link's part of an exchange."""

    def __init__(self, exchange: Exchange, completion: Completion, left: int, base: int) -> None:
        self.exchange = exchange
        self.base = base
        self.completion = completion
        self.left = left
        self.in_flight = 0
        self.waited = 0.0
        self.squares: dict[int, float] = {}
        """Squared norms of the mean gradients of held chunks."""
        self.is_held = False
        """Whether the server holds the gradient sums of all chunks."""
        self.round = 0
        self.version: int | None = None
        self.outcome = ""
        self.staleness = 0


class ServerLink:
    """A connection to one parameter server that can be restored after a loss.

    Args:
        outlives: Whether training continues after the loss of the server.
    """

    def __init__(self, peer: Peer, key: bytes, introduction: dict[str, Any], *, outlives: bool = False) -> None:
        self.peer = peer
        self.figures = Figures()
        self.chunks: Sequence[Chunk] = ()
        self.round = 0
        """The last round that this member has pushed or, after connecting or pulling, that its group has closed."""
        self.version = 0
        """The version of the installed parameters on the server. If the chunks' versions differ, it is the oldest."""
        self._received = 0
        """The version of the parameters that were received last. If the chunks' versions differ, it is the oldest."""
        self._base: int | None = None
        """The oldest version from which pending gradients were computed."""
        self.is_ready = False
        """Whether the server had parameters when this worker connected."""
        self._key = key
        self._introduction = introduction
        self._outlives = outlives
        self.rows: dict[str, tuple[int, Callable[[torch.Tensor], None]]] = {}
        """For buffers and constants, by name: the size in bytes, and a function that receives the values."""
        self._by_number: dict[int, Chunk] = {}
        self._connection: Connection | None = None
        self._answers: queue.SimpleQueue[dict[str, Any] | Exception] = queue.SimpleQueue()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._flow = threading.Condition()
        self._job: Job | None = None
        self._held: Job | None = None
        """The job whose sums the server holds."""
        self._completion: Completion | None = None
        """The completion of the newest exchange. This link may already have finished its part of the exchange."""
        self._error: Exception | None = None
        self._parts = False
        self._threads: list[threading.Thread] = []

    def connect(self, deadline_s: float) -> dict[str, Any]:
        """Connects or reconnects, and returns the server's answer.

        Raises PeerLost if the server is unreachable, and ProtocolError if the server refuses this worker.
        """
        if self._connection is not None:
            self._end_threads()
        self._connection, answer = Connection.connect(self.peer, self._key, self._introduction, deadline_s)
        self._error, self._job, self._held, self._completion = None, None, None, None
        self._answers, self._jobs = queue.SimpleQueue(), queue.SimpleQueue()
        self.round = int(answer.get("round", 0))
        self.is_ready = bool(answer.get("ready"))
        self._threads = [
            threading.Thread(target=loop, name=f"{name} {self.peer.name}", daemon=True)
            for loop, name in ((self._send, "to"), (self._receive, "from"))
        ]
        for thread in self._threads:
            thread.start()
        return answer

    def serves(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks
        self._by_number = {chunk.number: chunk for chunk in chunks}

    @property
    def lost(self) -> PeerLost | None:
        """The error that ends training if this server, or a peer that it reported, is lost. Otherwise None."""
        error = self._error
        return error if isinstance(error, PeerLost) and not self.tolerates(error) else None

    def close(self, *, goodbye: bool, cause: PeerLost | None = None) -> None:
        """Disconnects. If `goodbye` is false, the server records the loss of this worker or, if given, `cause`."""
        if self._connection is None:
            return
        last: dict[str, Any] | None = {"op": "bye"} if goodbye else None
        if cause is not None and not goodbye:
            last = {"op": "ends", "name": cause.name, "host": cause.host, "why": cause.why}
        self._parts = True
        if last is not None and self._error is None:
            try:
                self._connection.send(last)
                # The receiving thread ends when the server has read the message and disconnected.
                self._threads[1].join(timeout=5)
            except PeerLost:
                pass  # The server has already disconnected.
        self._end_threads()
        self._connection = None

    def _end_threads(self) -> None:
        assert self._connection is not None
        self._connection.cut()
        self._jobs.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5)
        self._threads = []
        self._connection.close()

    def command(self, header: dict[str, Any], payload: torch.Tensor | None = None) -> dict[str, Any]:
        """Sends a request and waits for the answer.

        Raises UsageProblem with the server's message if the server refuses the request.
        """
        self.tell(header, payload)
        answer = self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        if answer.get("op") == "failed":
            raise UsageProblem(str(answer.get("message", "")))
        return answer

    def tell(self, header: dict[str, Any], payload: torch.Tensor | None = None) -> None:
        """Sends a message without waiting for an answer. Raises the error that broke the connection, if any."""
        if self._error is not None:
            raise self._error
        assert self._connection is not None
        self._connection.send(header, payload)

    def note_gradients(self) -> None:
        """Records that gradients were computed from the installed parameters."""
        if self._base is None:
            self._base = self.version

    def installed(self) -> None:
        """Records that the received parameters have been installed."""
        self.version = self._received

    def begin(self, exchange: Exchange, completion: Completion) -> None:
        """Begins an exchange of all chunks. Only one exchange may be in progress."""
        self._completion = completion
        if not self.chunks:
            completion.done()
            return
        job = Job(exchange, completion, len(self.chunks), self.version if self._base is None else self._base)
        if exchange.gradient is not None:
            self._base = None
        with self._flow:
            if self._error is None:
                self._job = job
                self._jobs.put(job)
                return
        self._fail(job)

    @property
    def square(self) -> float:
        """The squared norm of this server's shard of the held mean gradient."""
        squares = self._held.squares if self._held is not None else {}
        return sum(squares[number] for number in sorted(squares))

    def scale(self, factor: float, completion: Completion) -> None:
        """Continues a held exchange: the server multiplies its gradient sums by `factor` and takes the step."""
        with self._flow:
            job, self._held = self._held, None
            self._completion = completion
            if job is not None:
                job.completion, job.left = completion, len(job.squares)
                if self._error is None:
                    self._job = job
            broken = self._error is not None
        if job is None:  # The server has no chunks, or has restarted in the meantime.
            completion.done()
        elif broken:
            self._fail(job)
        else:
            with suppress(PeerLost):  # The receiving thread handles the lost connection.
                self.tell({"op": "scale", "round": job.round, "factor": factor})

    def _send(self) -> None:
        jobs = self._jobs
        while True:
            job = jobs.get()
            if job is None:
                return
            try:
                self._send_all(job)
            except PeerLost:
                return  # The receiving thread handles the lost connection and ends the job.
            except Exception as error:
                # The training thread raises this error, which may come, for example, from the GPU.
                self._break(error)
                if self._connection is not None:
                    self._connection.cut()
                return

    def _send_all(self, job: Job) -> None:
        connection, exchange = self._connection, job.exchange
        assert connection is not None
        number = self.round + 1
        for chunk in self.chunks:
            with self._flow:
                self._flow.wait_for(lambda: self._error is not None or job.in_flight < IN_FLIGHT)
                if self._error is not None:
                    return
                job.in_flight += 1
            if exchange.gradient is None:
                connection.send({"op": "pull", "chunk": chunk.number})
                continue
            gradient = Gradient(None, frozenset()) if exchange.void else exchange.gradient(chunk)
            changed = exchange.changed.get(chunk.number)
            if changed is not None and exchange.values is not None:
                connection.send({"op": "set", "chunk": chunk.number, "round": number}, exchange.values(chunk))
            push = Push(
                group=0,  # The header does not name the member, because the connection identifies it.
                rank=0,
                generation=0,
                round=number,
                chunk=chunk.number,
                base=job.base,
                void=exchange.void,
                absent=gradient.absent,
                wants=exchange.target is not None,
                bare=gradient.values is None and not exchange.void,
                hold=exchange.hold,
                clip=exchange.clip,
                changed=changed,
            )
            connection.send(messages.header_of(push), gradient.values)

    def _receive(self) -> None:
        connection = self._connection
        assert connection is not None
        try:
            while True:
                self._take(connection, connection.receive())
        except (PeerLost, ProtocolError) as error:
            self._break(error)
        except (KeyError, TypeError, ValueError) as error:
            self._break(ProtocolError(f"{self.peer.name} sent an invalid message: {error}."))
            connection.close()
        except Exception as error:  # The training thread raises this error again.
            self._break(error)
            connection.close()

    def _take(self, connection: Connection, header: dict[str, Any]) -> None:
        op = str(header.get("op"))
        if op == "params":
            self._take_parameters(connection, header)
        elif op == "held":
            self._take_held(header)
        elif op in self.rows:
            size, take = self.rows[op]
            values = torch.empty(size, dtype=torch.uint8, device="cpu")
            connection.receive_into(values)
            take(values)
        elif op == "refused":
            raise UsageProblem(str(header["message"]), str(header["hint"]))
        elif op == "lost":
            raise PeerLost(str(header["name"]), str(header["host"]), str(header["why"]))
        else:
            self._answers.put(header)

    def _take_parameters(self, connection: Connection, header: dict[str, Any]) -> None:
        chunk, job = self._by_number[int(header["chunk"])], self._job
        if job is None:
            raise ValueError("parameters without a request")
        if "bytes" in header:
            if job.exchange.target is None:
                raise ValueError("parameters that were not requested")
            connection.receive_into(job.exchange.target(chunk))
            job.exchange.arrived(chunk)
        version = int(header["version"])
        # Chunks may have different versions. The oldest of them is used as the version of all parameters.
        job.version = version if job.version is None else min(job.version, version)
        job.round = max(job.round, int(header["round"]))
        job.waited = max(job.waited, float(header.get("waited", 0.0)))
        job.staleness = max(job.staleness, int(header.get("staleness", 0)))
        if job.outcome != LATE:
            job.outcome = str(header["outcome"])
        self._chunk_done(job)

    def _take_held(self, header: dict[str, Any]) -> None:
        chunk, job = self._by_number[int(header["chunk"])], self._job
        if job is None or not job.exchange.hold:
            raise ValueError("a norm without a request")
        job.squares[chunk.number] = float(header["square"])
        job.round = max(job.round, int(header["round"]))
        job.waited = max(job.waited, float(header.get("waited", 0.0)))
        self._chunk_done(job)

    def _chunk_done(self, job: Job) -> None:
        with self._flow:
            job.in_flight -= 1
            job.left -= 1
            self._flow.notify_all()
            if job.left:
                return
            self._job = None
            is_half = job.exchange.hold and not job.is_held
            if is_half:
                job.is_held, self._held = True, job
                self.figures.waited = job.waited
        if not is_half:
            self._count(job)
        job.completion.done()

    def _count(self, job: Job) -> None:
        figures = self.figures
        figures.waited = job.waited
        if job.exchange.gradient is not None:
            figures.staleness = job.staleness
        figures.count(job.outcome)
        # A pull sets the round to the server's round. A push never decreases the round.
        self.round = max(self.round, job.round) if job.outcome != NEWEST else job.round
        if job.exchange.target is not None:
            self._received = job.version or 0

    def _break(self, error: Exception) -> None:
        """Passes an error to all threads that wait for this connection, and wakes these threads."""
        with self._flow:
            self._error = self._error or error
            job, self._job = self._job, None
            self._flow.notify_all()
        self._answers.put(error)
        if job is not None:
            self._fail(job)
        elif self._completion is not None and not self.tolerates(error):
            # The whole exchange ends, because its parts on other servers may never be completed.
            self._completion.done(error=error)

    def _fail(self, job: Job) -> None:
        error = self._error
        assert error is not None
        if self.tolerates(error):
            self.figures.lost += job.exchange.gradient is not None
            job.completion.done(lost=self)
        else:
            job.completion.done(error=error)

    def tolerates(self, error: Exception) -> bool:
        """Returns whether training continues after this error, because this server is lost and may be restarted."""
        return self._outlives and isinstance(error, PeerLost) and error.name == self.peer.name and not self._parts
