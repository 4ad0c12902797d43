"""The server's side of a worker's connection, which executes the worker's requests and sends the answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from torchyard_roles.errors import PeerLost, ProtocolError
from torchyard_roles.exchange.tensor_connection import Connection
from torchyard_roles.strategies.parameter_server import messages, remote_optimizer
from torchyard_roles.strategies.parameter_server.buffers_and_constants import ServerBuffers
from torchyard_roles.strategies.parameter_server.chunk_state import Delivery
from torchyard_roles.strategies.parameter_server.messages import Refusal
from torchyard_roles.strategies.parameter_server.push_acceptance import LATE
from torchyard_roles.strategies.parameter_server.shard import Shard

REST_S = 60.0
"""Longest time in seconds until the server answers a worker that is waiting for the other groups."""


class Server(Protocol):
    """The interface of a ServerPair that its sessions use."""

    name: str
    shard: Shard | None
    rows: ServerBuffers
    fail: Callable[[Exception], None]

    def begin(self, session: Session, description: dict[str, Any]) -> bool: ...
    def join(self, session: Session, description: dict[str, Any]) -> None: ...
    def open(self) -> None: ...
    def add(self, session: Session, description: dict[str, Any]) -> list[int]: ...
    def added(self, chunks: Sequence[int]) -> None: ...
    def check_added(self, session: Session, number: int) -> None: ...
    def deliver(self, deliveries: list[Delivery]) -> None: ...
    def take_buffers(self, session: Session, values: torch.Tensor, *, with_push: bool) -> None: ...
    def warmed(self) -> None: ...
    def save(self, step: int | None, kept: Sequence[int] = ()) -> None: ...
    def restore(self, session: Session, step: int) -> bool: ...
    def restored(self, generation: int) -> None: ...
    def wait_restored(self, generation: int) -> None: ...
    def wait_for_other_groups(self, session: Session, within_s: float) -> tuple[list[int], list[int], float]: ...
    def goodbye(self, session: Session) -> None: ...
    def lost(self, session: Session, error: PeerLost) -> None: ...


class Session:
    """The connection of one worker. Its thread receives messages, and never waits for messages to be sent."""

    def __init__(
        self, server: Server, connection: Connection, group: int, rank: int, size: int, generation: int
    ) -> None:
        self.group = group
        self.rank = rank
        self.size = size
        self.generation = generation
        self.said_goodbye = False
        self.buffers_seen = 0
        self.added: set[int] = set()
        """Chunks of parameters that were added to this worker's optimizer."""
        self._server = server
        self._connection = connection

    @property
    def name(self) -> str:
        return self._connection.peer

    @property
    def host(self) -> str:
        return self._connection.host

    def post(self, header: dict[str, Any], payload: torch.Tensor | None = None) -> None:
        """Queues a message for sending. The payload must not change afterwards."""
        self._connection.post(header, payload)

    def cut(self) -> None:
        """Waits up to 2 s for queued messages to be sent, then shuts the connection down.

        run() closes the connection.
        """
        self._connection.flush(2)
        self._connection.cut()

    def run(self) -> None:
        """Handles requests until the worker has left."""
        try:
            while not self.said_goodbye:
                self._handle(self._connection.receive())
            self._server.goodbye(self)
        except PeerLost as error:
            self._server.lost(self, error)
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            message = f"torchyard: {self._server.name} closes the connection to {self.name}: {error}"
            print(message, file=sys.stderr, flush=True)
            self._server.lost(self, PeerLost(self.name, self.host, f"it sent an invalid message ({error})"))
        except Exception as error:
            # An unexpected error, such as out of memory, may leave the shard inconsistent.
            self._server.fail(error)
        self.cut()
        self._connection.close()

    def _handle(self, header: dict[str, Any]) -> None:
        op = str(header.get("op"))
        if op == "push":
            self._push(header)
        elif op == "pull":
            self._server.deliver([self._shard.pull(self.group, self.rank, int(header["chunk"]))])
        elif op == "scale":
            self._scale(int(header["round"]), float(header["factor"]))
        else:
            self._command(op, header)

    def _scale(self, number: int, factor: float) -> None:
        """Takes the optimizer step with the gradient sums that the server holds, one chunk after another.

        Sending one chunk overlaps with computing the next chunk.
        """
        before = self._shard.ledger.is_warm
        for chunk in self._shard.numbers:
            self._server.deliver(self._shard.scale(self.group, self.rank, self.generation, number, chunk, factor))
        if not before:
            self._server.warmed()

    def _push(self, header: dict[str, Any]) -> None:
        push = messages.push_of(header, self.group, self.rank, self.generation)
        self._server.check_added(self, push.round)
        gradient = None
        if not push.void and not push.bare:
            if self._shard.expects(push):
                gradient = self._shard.buffer(push.chunk)
                self._connection.receive_into(gradient)
            else:
                self._connection.discard()
        elif "bytes" in header:
            raise ValueError("a push without gradients has a payload")
        before = self._shard.ledger.is_warm
        deliveries = self._shard.push(push, gradient)
        if any(one.header.get("outcome") != LATE for one in deliveries):
            # A delivery in answer to a push that is not late means that a chunk of the group's round is complete.
            self._server.rows.end_round(self.group)
        self._server.deliver(deliveries)
        if not before:
            self._server.warmed()

    @property
    def _shard(self) -> Shard:
        if self._server.shard is None:
            raise ValueError("the chief has not begun")
        return self._server.shard

    def _command(self, op: str, header: dict[str, Any]) -> None:
        try:
            answer = self._answer(op, header)
        except Refusal as refusal:
            answer = {"op": "failed", "message": str(refusal)}
        except OSError as error:
            answer = {"op": "failed", "message": f"{self._server.name} could not {op}: {error}."}
        if answer is not None:
            self.post(answer)

    def _answer(self, op: str, header: dict[str, Any]) -> dict[str, Any] | None:
        server = self._server
        if op == "bye":
            self.said_goodbye = True
        elif op == "ends":
            raise PeerLost(str(header["name"]), str(header["host"]), str(header["why"]))
        elif op == "begin":
            try:
                return {"op": "begun", "keeps": server.begin(self, messages.receive_text(self._connection, header))}
            except ValueError as error:
                raise Refusal(f"{server.name} cannot serve this model: {error}.") from error
        elif op == "join":
            server.join(self, messages.receive_text(self._connection, header))
            return {"op": "joined", "round": self._shard.ledger.closed_round(self.group)}
        elif op == "assign":
            values = self._shard.buffer(int(header["chunk"]))
            self._connection.receive_into(values)
            self._shard.assign(int(header["chunk"]), values)
        elif op == "set":
            values = self._shard.buffer(int(header["chunk"]))
            self._connection.receive_into(values)
            number = header.get("round")
            self._shard.set(int(header["chunk"]), values, self.group, None if number is None else int(number))
        elif op == "open":
            server.open()
            return {"op": "opened"}
        elif op == "add":
            try:
                return {"op": "add", "assign": server.add(self, messages.receive_text(self._connection, header))}
            except ValueError as error:
                raise Refusal(f"{server.name} cannot serve what the optimizer was given later: {error}.") from error
        elif op == "added":
            server.added(header["chunks"])
            return {"op": "added"}
        elif op == "options":
            received = messages.receive_text(self._connection, header)
            self._shard.set_options(self.group, self.rank, remote_optimizer.from_wire(received))
        elif op in ("buffers", "constants"):
            values = server.rows.empty(op)
            self._connection.receive_into(values)
            if op == "buffers":
                server.take_buffers(self, values, with_push=bool(header.get("with_push")))
            else:  # The chief sends the frozen parameters before it opens the server to other workers.
                server.rows.constants = values
        elif op == "save":
            server.save(int(header["step"]), [int(step) for step in header.get("kept", ())])
            return {"op": "saved"}
        elif op == "restore":
            return {"op": "restored", "found": server.restore(self, int(header["step"]))}
        elif op == "restored":
            server.restored(self.generation)
            return {"op": "ready"}
        elif op == "await":
            server.wait_restored(self.generation)
            return {"op": "ready"}
        elif op == "rest":
            waiting, here, away_s = server.wait_for_other_groups(self, min(REST_S, float(header["within_s"])))
            return {"op": "rest", "waiting": waiting, "here": here, "away_s": away_s}
        else:
            raise ValueError(f"no such message: {op}")
        return None
