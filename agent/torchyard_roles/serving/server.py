"""A parameter server's process: who is connected, who may begin, when it ends. What is computed is in shard.py."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from torchyard_roles.errors import PeerLost, ProtocolError, RolesError
from torchyard_roles.exchange.connections import Connections
from torchyard_roles.exchange.wire import Connection
from torchyard_roles.layout import Layout
from torchyard_roles.serving import description, memory, optimizers
from torchyard_roles.serving.chunk import Delivery
from torchyard_roles.serving.parts import Parts
from torchyard_roles.serving.rounds import Rules
from torchyard_roles.serving.rows import Rows
from torchyard_roles.serving.session import Refusal, Session
from torchyard_roles.serving.shard import Shard

BEGIN_S = 660.0
"""How long workers wait for their chief's word: longer than a keeper waits for the chief's host, should it be lost."""
PARTING_S = 5.0
"""For what connections' threads are in the midst of when serving ends, such as the save after a goodbye."""


class ParameterServer:
    """One server of `count`. `keeps`: asynchronous, so that it stays as it is when workers are started again.

    `folder` is where checkpoints are, and `run` the run's ID; without a folder nothing is saved. `save_every_s`: of its
    own accord, 0 never.
    """

    def __init__(
        self,
        name: str,
        index: int,
        count: int,
        key: bytes,
        rules: Rules,
        *,
        keeps: bool = False,
        folder: Path | None = None,
        run: str = "",
        save_every_s: float = 0.0,
        available: Callable[[], int] = memory.available,
        begin_s: float = BEGIN_S,
    ) -> None:
        self.name = name
        self.rules = rules
        self.shard: Shard | None = None
        self.rows = Rows({})
        self._index = index
        self._count = count
        self._key = key
        self._keeps = keeps
        self._parts = Parts(folder, name, index, count, run) if folder is not None else None
        self._save_every_s = save_every_s
        self._available = available
        self._begin_s = begin_s
        self._layout: Layout | None = None
        self._description: dict[str, Any] = {}
        self._is_open = False
        self._restored = -1  # for which generation of the chief's group
        self._begun = -1  # by which generation of it
        self._sessions: dict[tuple[int, int], Session] = {}
        self._away_since: dict[int, float] = {}  # groups of which the last connection has broken
        self._connections = Connections()
        self._changed = threading.Condition()
        self._ends = False
        self._failure: Exception | None = None

    # Serving

    def serve(self, listener: socket.socket) -> None:
        """Until every worker of every group has said goodbye, or stop(). Closes the listener. Raises RolesError where
        this server cannot go on."""
        saver = threading.Thread(target=self._save_now_and_then, name="saver", daemon=True)
        if self._parts is not None and self._save_every_s > 0:
            saver.start()
        listener.settimeout(0.5)
        try:
            while not self._ends:
                try:
                    sock, _ = listener.accept()
                except TimeoutError:
                    continue
                except socket.timeout:  # Python 3.9
                    continue
                sock.settimeout(None)
                threading.Thread(target=self._receive_caller, args=(sock,), daemon=True).start()
        finally:
            listener.close()
            for session in list(self._sessions.values()):
                session.end()
            self._connections.close()
            with self._changed:
                self._changed.wait_for(lambda: not self._connections, timeout=PARTING_S)
        if self._failure is not None:
            raise RolesError(f"{self.name} cannot go on: {self._failure}.") from self._failure

    def fail(self, error: Exception) -> None:
        """From a connection's thread: what it did to the shard did not come to its end. Ends serve() with that."""
        self._failure = self._failure or error
        self.stop()

    def stop(self) -> None:
        """End serve() soon; from any thread, twice is once."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()

    def finish_soon(self, within_s: float) -> None:
        """End serve() once no worker is connected any more, at most `within_s` later. For a signal handler, which may
        not wait for a lock that its own thread holds."""
        threading.Thread(target=self._finish, args=(within_s,), name=f"{self.name} stop", daemon=True).start()

    def _finish(self, within_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ends or not self._connections, timeout=within_s)
        self.stop()

    def save_for_itself(self) -> None:
        """What an asynchronous server has done since it was last saved, should it die or the run be taken up again."""
        if self._parts is not None and self._save_every_s > 0 and self._is_open:
            try:
                self.save(None)
            except OSError as error:
                print(f"torchyard: {self.name} could not save its shard: {error}", flush=True)

    def figures(self) -> dict[str, float]:
        """What there is to report: see `report.METRICS`."""
        found = {"clients": float(len(self._sessions))}
        if self.shard is not None:
            ledger = self.shard.ledger
            found.update(
                version=float(ledger.version),
                staleness=float(ledger.staleness),
                dropped=float(ledger.counts.dropped),
                skipped=float(ledger.counts.void),
                wait_s=self.shard.waited_s,
            )
        return found

    def traffic(self) -> int:
        """Bytes sent and received so far, over all connections."""
        return sum(self._connections.traffic())

    def _receive_caller(self, sock: socket.socket) -> None:
        try:
            connection, introduction = Connection.accept(sock, self._key)
        except (ProtocolError, PeerLost) as error:
            print(f"torchyard: {error.message}", file=sys.stderr, flush=True)
            return
        self._connections.add(connection)
        try:
            session = self._admit(connection, introduction)
        except (KeyError, TypeError, ValueError) as error:
            session = None
            with suppress(PeerLost):
                connection.refuse(f"{self.name} does not understand the introduction: {error}.")
        except Refusal as refusal:
            session = None
            with suppress(PeerLost):
                connection.refuse(str(refusal))
        if session is not None:
            session.run()
        with self._changed:
            self._connections.remove(connection)
            self._changed.notify_all()

    def _admit(self, connection: Connection, said: dict[str, Any]) -> Session:
        group, rank, size, generation = (int(said[key]) for key in ("group", "rank", "size", "generation"))
        place = (int(said["shard"]), int(said["shards"]), int(said["groups"]))
        if place != (self._index, self._count, self.rules.groups):
            raise Refusal(
                f"{self.name} is server {self._index} of {self._count} for {self.rules.groups} worker groups, but "
                f"{connection.peer} takes it for server {place[0]} of {place[1]} for {place[2]}."
            )
        if not 0 <= rank < size or not 0 <= group < self.rules.groups:
            raise Refusal(f"{connection.peer} cannot be rank {rank} of {size} in group {group}.")
        session = Session(self, connection, group, rank, size, generation)
        with self._changed:
            before = self._sessions.get((group, rank))
            if before is not None and before.generation > generation:
                raise Refusal(f"{connection.peer} is of an earlier start of its group than those who train now.")
            self._sessions[group, rank] = session
            self._away_since.pop(group, None)
            if self.shard is not None:
                self.shard.enter(group, rank, size, generation)
            opened = self._is_open
        if before is not None:
            before.end()
        closed = 0 if self.shard is None else self.shard.ledger.closed_round(group)
        connection.answer({"name": self.name, "ready": opened, "round": closed})
        return session

    def lost(self, session: Session, why: str) -> None:
        """A worker is gone without a goodbye: its group cannot go on, and hears who it was."""
        with self._changed:
            if self._sessions.get((session.group, session.rank)) is not session:
                return  # replaced by its next generation
            del self._sessions[session.group, session.rank]
            others = [one for one in self._sessions.values() if one.group == session.group]
            if not others:
                self._away_since[session.group] = time.monotonic()
            if self._ends:
                return
        for other in others:
            if other.generation == session.generation and not other.said_goodbye:
                other.post({"op": "lost", "name": session.name, "host": session.host, "why": why})

    def goodbye(self, session: Session) -> None:
        deliveries = []
        if self.shard is not None:
            deliveries = self.shard.leave(session.group, session.rank, session.generation)
        with self._changed:
            if self._sessions.get((session.group, session.rank)) is session:
                del self._sessions[session.group, session.rank]
            if self.shard is not None and self.shard.ledger.all_left:
                self._ends = True
            self._changed.notify_all()
        if deliveries:  # rounds that only waited for this one
            self.rows.end_round(session.group)
        self.deliver(deliveries)
        self.save_for_itself()  # else a server that dies now would come back and wait for a goodbye for ever

    # Beginning

    def begin(self, session: Session, said: dict[str, Any]) -> bool:
        """The chief describes model and optimizer. Whether this server goes on with the parameters that it has."""
        layout = Layout.read(said["layout"])
        options = optimizers.from_wire(said["options"])
        rows = description.row_sizes(said)
        with self._changed:
            if self._layout is not None and self._keeps and self._is_open and session.generation > 0:
                self._compare(session, layout, said)
                return True
            whole = layout.chunks(self._count, said.get("chunk_bytes"))
            chunks = [chunk for chunk in whole if chunk.shard == self._index]
            if not chunks or chunks[0].shard != whole[0].shard:
                rows = dict.fromkeys(rows, 0)  # the first server that has chunks hands them round
            workers = sum(one.size for one in {session.group: session for session in self._sessions.values()}.values())
            needed = description.needs(said, rows, chunks, workers, self.rules.groups)
            sentence = memory.shortage(self.name, needed, self._available())
            if sentence:
                raise Refusal(sentence)
            self._make(layout, description.kept(said, rows), chunks, options)
            self._begun = session.generation
        return False

    def _make(self, layout: Layout, said: dict[str, Any], chunks: list[Any], options: list[Any]) -> None:
        """A shard of zeros; called with the lock held."""
        self._is_open = False
        self._restored = -1
        self._layout = layout
        self._description = said
        self.rows = Rows(said["rows"])
        self.shard = Shard(layout, chunks, said["optimizer"], options, self.rules)
        for session in self._sessions.values():
            self.shard.enter(session.group, session.rank, session.size, session.generation)

    def open(self) -> None:
        """The chief has assigned all chunks: the others may come in."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def join(self, session: Session, said: dict[str, Any]) -> None:
        """Another worker describes its model: waits until the chief has begun, and (other groups) warmed up."""
        with self._changed:
            self._wait_for_the_chief(lambda: self._is_open_to(session))
            if not self._ends:
                self._compare(session, Layout.read(said["layout"]), said)
            if session.group:
                self._changed.wait_for(lambda: self._ends or (self.shard is not None and self.shard.ledger.is_warm))
            if self._ends:
                raise Refusal(f"{self.name} is stopping.")
            if self.rows.constants is not None:
                session.post({"op": "constants"}, self.rows.constants)

    def _wait_for_the_chief(self, said: Callable[[], bool]) -> None:
        """With the lock held. It may never come: where this server has died and come back empty after the chief said
        goodbye, nobody has its parameters for it."""
        if not self._changed.wait_for(lambda: self._ends or said(), timeout=self._begin_s):
            raise Refusal(
                f"{self.name} has waited {self._begin_s:.0f} s for the chief to bring its parameters. Start the run "
                "again: it goes on from the newest checkpoint."
            )

    def _is_open_to(self, session: Session) -> bool:
        """Trainers that were started again wait for their chief's word, unless servers go on as they are."""
        return self._is_open and (self._keeps or self._begun >= session.generation)

    def _compare(self, session: Session, layout: Layout, said: dict[str, Any]) -> None:
        assert self._layout is not None
        difference = description.difference(self._description, self._layout, said, layout)
        if difference:
            raise Refusal(f"The model of {session.name} is not the chief's: it {difference}.")

    def warmed(self) -> None:
        """Wake who waits for group 0's first steps, where they are done."""
        if self.rules.warm_start_steps:
            with self._changed:
                self._changed.notify_all()

    def wait_for_other_groups(self, session: Session, within_s: float) -> tuple[list[int], list[int], float]:
        """The chief's group has done all its steps. The groups that have not said goodbye, at most `within_s` later,
        those of them that are connected, and for how many seconds all of them have been away. None where this server
        stops."""

        def waiting() -> list[int]:
            assert self.shard is not None
            left = self.shard.ledger.has_left
            return [group for group in range(self.rules.groups) if group != session.group and not left(group)]

        with self._changed:
            if self.shard is None:
                raise Refusal(f"{self.name} has nothing yet.")
            # Else groups that wait for the warm start, and this one for theirs, would wait for a goodbye for ever.
            self.shard.ledger.is_over = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ends or not waiting(), timeout=within_s)
            connected = {group for group, _ in self._sessions}
            left = [] if self._ends else waiting()
            now = time.monotonic()
            away_s = min((now - self._away_since.get(group, now) for group in left), default=0.0)
            return left, [group for group in left if group in connected], away_s

    # Deliveries

    def deliver(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            session = self._sessions.get((delivery.group, delivery.rank))
            if session is not None:
                self.rows.bring_buffers(session)
                session.post(delivery.header, delivery.payload)

    def take_buffers(self, session: Session, values: torch.Tensor, *, with_push: bool) -> None:
        """Of the first of a group (at the beginning: the chief's, for all groups). `with_push`: of the round that it
        pushes next; else they are its group's at once."""
        groups = [session.group] if self._is_open else range(self.rules.groups)
        self.rows.take_buffers(session, values, groups)
        for group in groups if not with_push else ():
            self.rows.end_round(group)

    # Disk

    def save(self, step: int | None, kept: Sequence[int] = ()) -> None:
        """As Parts.write(). Raises OSError where it cannot, and Refusal where there is nothing or no place."""
        shard = self.shard
        if shard is None or self._parts is None or not self._is_open:
            raise Refusal(f"{self.name} has nothing to save, or no folder for it.")
        self._parts.write(lambda: self._state(shard), step, kept)

    def _state(self, shard: Shard) -> dict[str, Any]:
        rows, goodbyes = self.rows.state(), shard.ledger.goodbyes()
        return {**shard.state(), "description": dict(self._description), **rows, "goodbyes": goodbyes}

    def restore(self, session: Session, step: int) -> bool:
        """Whether the shard of that checkpoint is in place again."""
        saved = self._parts.read(step) if self._parts is not None else None
        if saved is None or self.shard is None:
            return False
        try:
            self.shard.load(saved)
        except ValueError as error:
            print(f"torchyard: {self.name} passes over its part of step {step}: {error}", flush=True)
            return False
        self.save_for_itself()  # else one that dies before its first save would come back without its optimizer's state
        return True

    def restored(self, generation: int) -> None:
        with self._changed:
            self._restored = generation
            self._changed.notify_all()

    def wait_restored(self, generation: int) -> None:
        with self._changed:
            self._wait_for_the_chief(lambda: self._restored >= generation)

    def resume(self) -> bool:
        """Take up the newest part of its own, after a death; whether there was one of this run. Before serve()."""
        saved = self._parts.read(None) if self._parts is not None else None
        if saved is None:
            return False
        try:
            said = saved["description"]
            layout, _ = Layout.read(said["layout"]), description.row_sizes(said)
            chunks = [c for c in layout.chunks(self._count, said.get("chunk_bytes")) if c.shard == self._index]
            with self._changed:
                self._make(layout, said, chunks, optimizers.from_wire(said["options"]))
                assert self.shard is not None
                self.shard.load(saved)
                self.rows.load(saved)
                self.shard.ledger.set_goodbyes(saved["goodbyes"])
        except (ValueError, KeyError) as error:
            print(f"torchyard: {self.name} passes over its newest part: {error}", flush=True)
            self.shard = None
            return False
        self.open()
        print(f"torchyard: {self.name} goes on from version {self.shard.version}.", flush=True)
        return True

    def _save_now_and_then(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._ends, timeout=self._save_every_s):
                    return
            self.save_for_itself()
