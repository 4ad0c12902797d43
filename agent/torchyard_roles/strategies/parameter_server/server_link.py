"""A worker's end of its connection to one parameter server: commands one at a time, exchanges chunk by chunk.

Two threads a link, so that sending never waits for receiving. At most IN_FLIGHT chunks are under way: without such a
window all workers' gradients would pile up before the server (incast), with too small a one the link runs dry. At
200 Mbit/s with 4 workers and 4 servers, 4 × 128 KiB took 1.14 of the bound where 8 × 234 KiB took 1.23 (on two busy
cores).
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
from torchyard_roles.strategies.parameter_server.push_rounds import LATE, NEWEST, Outcomes, Push


@dataclass
class Exchange:
    """What is to be brought to all servers and back: once a step. The callables come from the link's threads."""

    gradient: Callable[[Chunk], Gradient] | None
    """None where nothing is pushed."""
    target: Callable[[Chunk], torch.Tensor] | None
    """Where a chunk's new parameters are received to, 1-D on the CPU; None where none are wanted."""
    arrived: Callable[[Chunk], None] = lambda chunk: None
    void: bool = False
    hold: bool = False
    """Ends as soon as all servers have told the norms of their sums; scale() goes on with it."""
    clip: float | None = None
    """What the servers bring the elements of the mean gradient to, at most, before all else."""
    changed: Mapping[int, int] = field(default_factory=dict)
    """Of chunks that the script has changed by itself since the last step, by number: their checksums."""
    values: Callable[[Chunk], torch.Tensor] | None = None
    """What such a chunk holds now, from the one worker that brings it to the servers; None on the others."""


class Completion:
    """The end of an exchange over several links; the first error ends the waiting."""

    def __init__(self, parts: int) -> None:
        self._condition = threading.Condition()
        self._left = parts
        self._error: Exception | None = None
        self.lost: list[ServerLink] = []
        """Links whose server is gone, where that is borne."""

    def done(self) -> None:
        with self._condition:
            self._left -= 1
            self._condition.notify_all()

    def failed(self, error: Exception) -> None:
        with self._condition:
            self._error = self._error or error
            self._left -= 1
            self._condition.notify_all()

    def lose(self, link: ServerLink) -> None:
        with self._condition:
            self.lost.append(link)
            self._left -= 1
            self._condition.notify_all()

    def wait(self) -> None:
        """Raises the first link's error as soon as it is there."""
        with self._condition:
            self._condition.wait_for(lambda: self._error is not None or self._left <= 0)
            if self._error is not None:
                raise self._error


@dataclass
class Figures(Outcomes):
    """Of a link's exchanges so far; `waited` and `staleness` of the last."""

    waited: float = 0.0
    """Seconds the server waited for the group's other members, at most for any chunk."""
    staleness: int = 0
    lost: int = 0
    """Pushes that a server took along when it died."""


class Job:
    """An exchange over one link, while it is under way."""

    def __init__(self, exchange: Exchange, completion: Completion, left: int, base: int) -> None:
        self.exchange = exchange
        self.base = base
        self.completion = completion
        self.left = left
        self.in_flight = 0
        self.waited = 0.0
        self.squares: dict[int, float] = {}
        """Of chunks that are held: the squared norms of their mean gradients."""
        self.is_held = False
        """Whether it has come to its half: all chunks are held."""
        self.round = 0
        self.version: int | None = None
        self.outcome = ""
        self.staleness = 0


class ServerLink:
    """`chunks`: those of this server's shard. `outlives`: whether a dead server is waited for instead of raised."""

    def __init__(
        self,
        peer: Peer,
        key: bytes,
        introduction: dict[str, Any],
        *,
        outlives: bool = False,
    ) -> None:
        self.peer = peer
        self.figures = Figures()
        self.chunks: Sequence[Chunk] = ()
        self.round = 0
        """The last one this member took part in, or was told of."""
        self.version = 0
        """The server's, that the parameters which are installed here are at least of."""
        self._received = 0
        """The same of what has been received."""
        self._base: int | None = None
        """The oldest version that gradients which were not pushed yet were computed from."""
        self.is_ready = False
        """Whether the server had parameters when this worker came."""
        self._key = key
        self._introduction = introduction
        self._outlives = outlives
        self.rows: dict[str, tuple[int, Callable[[torch.Tensor], None]]] = {}
        """Rows of bytes that the server hands round beside the parameters: how many, and who takes them."""
        self._by_number: dict[int, Chunk] = {}
        self._connection: Connection | None = None
        self._answers: queue.SimpleQueue[dict[str, Any] | Exception] = queue.SimpleQueue()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._flow = threading.Condition()
        self._job: Job | None = None
        self._held: Job | None = None
        """One whose gradients the server has summed, and waits for the factor."""
        self._completion: Completion | None = None
        """Of the newest exchange with all servers; this one's part of it may be done."""
        self._error: Exception | None = None
        self._parts = False
        self._threads: list[threading.Thread] = []

    # The connection

    def connect(self, deadline_s: float) -> dict[str, Any]:
        """The server's answer. Raises PeerLost or ProtocolError; called again after a loss it begins anew."""
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
        """Who is gone, where that ends training: this server, or who ended it elsewhere, as this server says."""
        error = self._error
        return error if isinstance(error, PeerLost) and not self.bears(error) else None

    def close(self, *, goodbye: bool, cause: PeerLost | None = None) -> None:
        """`goodbye`: this worker has done its part. Else the server takes it for dead, or for ended by `cause`."""
        if self._connection is None:
            return
        last: dict[str, Any] | None = {"op": "bye"} if goodbye else None
        if cause is not None and not goodbye:
            last = {"op": "ends", "name": cause.name, "host": cause.host, "why": cause.why}
        self._parts = True
        if last is not None and self._error is None:
            try:
                self._connection.send(last)
                self._threads[1].join(timeout=5)  # until the server has read it and parts
            except PeerLost:
                pass  # it was faster
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

    # Commands

    def command(self, header: dict[str, Any], payload: torch.Tensor | None = None) -> dict[str, Any]:
        """Ask, and wait for the answer. Raises UsageProblem with the server's sentence where it refuses."""
        self.tell(header, payload)
        answer = self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        if answer.get("op") == "failed":
            raise UsageProblem(str(answer.get("message", "")))
        return answer

    def tell(self, header: dict[str, Any], payload: torch.Tensor | None = None) -> None:
        """Say what has no answer."""
        if self._error is not None:
            raise self._error
        assert self._connection is not None
        self._connection.send(header, payload)

    # Exchanges

    def note_gradients(self) -> None:
        """A step's gradients are there, of the parameters that are installed now."""
        if self._base is None:
            self._base = self.version

    def installed(self) -> None:
        """What was received is in the model."""
        self.version = self._received

    def begin(self, exchange: Exchange, completion: Completion) -> None:
        """Start bringing all chunks there and back; one exchange at a time."""
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
        """The squared norm of the mean gradient over this server's shard, where it is held."""
        squares = self._held.squares if self._held is not None else {}
        return sum(squares[number] for number in sorted(squares))

    def scale(self, factor: float, completion: Completion) -> None:
        """Let the server step with what it holds, times `factor`, and send the new parameters."""
        with self._flow:
            job, self._held = self._held, None
            self._completion = completion
            if job is not None:
                job.completion, job.left = completion, len(job.squares)
                if self._error is None:
                    self._job = job
            broken = self._error is not None
        if job is None:  # a server without chunks, or one that was lost meanwhile and has come back
            completion.done()
        elif broken:
            self._fail(job)
        else:
            with suppress(PeerLost):  # the receiving thread sees it too, and ends the job
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
                return  # the receiving thread sees it too, and ends the job
            except Exception as error:  # such as torch's own, of a GPU: the training thread raises it
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
                group=0,  # the server knows whose connection it is
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
            self._break(ProtocolError(f"{self.peer.name} sent what cannot be: {error}."))
            connection.close()
        except Exception as error:  # as in _send
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
            values = torch.empty(size, dtype=torch.uint8)
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
            raise ValueError("parameters that nobody asked for")
        if "bytes" in header:
            if job.exchange.target is None:
                raise ValueError("parameters that nobody wants")
            connection.receive_into(job.exchange.target(chunk))
            job.exchange.arrived(chunk)
        version = int(header["version"])
        # The oldest of the chunks' versions is what the parameters are at least of.
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
            raise ValueError("a norm that nobody asked for")
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
        # Before the first pull of parameters a group's rounds go on counting from where the server is.
        self.round = max(self.round, job.round) if job.outcome != NEWEST else job.round
        if job.exchange.target is not None:
            self._received = job.version or 0

    def _break(self, error: Exception) -> None:
        """The connection is of no use any more: end what waits for it."""
        with self._flow:
            self._error = self._error or error
            job, self._job = self._job, None
            self._flow.notify_all()
        self._answers.put(error)
        if job is not None:
            self._fail(job)
        elif self._completion is not None and not self.bears(error):
            self._completion.failed(error)  # else it is waited for what other servers never send

    def _fail(self, job: Job) -> None:
        error = self._error
        assert error is not None
        if self.bears(error):
            self.figures.lost += job.exchange.gradient is not None
            job.completion.lose(self)
        else:
            job.completion.failed(error)

    def bears(self, error: Exception) -> bool:
        """Whether training goes on without the server until it is back: its own death, not that of a fellow worker."""
        return self._outlives and isinstance(error, PeerLost) and error.name == self.peer.name and not self._parts
