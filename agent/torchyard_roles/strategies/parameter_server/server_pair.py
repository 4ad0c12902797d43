"""One pair of model and optimizer on a parameter server: who is connected, who may begin, when it has ended.

What is computed is in shard.py; the process around the pairs is in parameter_server.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchyard_roles.errors import PeerLost
from torchyard_roles.exchange.parameter_layout import Chunk, Entry, Layout, added_chunks, words
from torchyard_roles.exchange.tensor_connection import Connection
from torchyard_roles.strategies.parameter_server import memory_check, model_description, remote_optimizer
from torchyard_roles.strategies.parameter_server.chunk_state import Delivery
from torchyard_roles.strategies.parameter_server.messages import Refusal
from torchyard_roles.strategies.parameter_server.push_rounds import Rules
from torchyard_roles.strategies.parameter_server.replicated_state import ReplicatedState
from torchyard_roles.strategies.parameter_server.server_checkpoint import ServerCheckpoint
from torchyard_roles.strategies.parameter_server.shard import Shard
from torchyard_roles.strategies.parameter_server.worker_session import Session

BEGIN_S = 660.0
"""How long workers wait for their chief's word: longer than a keeper waits for the chief's host, should it be lost."""


@dataclass
class Added:
    """A chunk of a parameter that an optimizer was given later."""

    entry: Entry
    checksum: int | None
    """Of what it began with; None where it went on from a checkpoint, or the server came back empty."""
    is_ready: bool


class ServerPair:
    """A pair's part on the server `index` of `count`, for each pair a shard, sessions and files of its own.

    `keeps`: asynchronous, so that it stays as it is when workers are started again. `parts`: what it keeps on disk;
    without one nothing is saved. `saves_itself`: of its own accord too. `available` is asked for the bytes that are
    left. `on_end` is called when every worker of every group has said goodbye, and `on_failure` with what has ended a
    connection's thread in the midst of a step.
    """

    def __init__(
        self,
        name: str,
        index: int,
        count: int,
        rules: Rules,
        *,
        keeps: bool,
        parts: ServerCheckpoint | None,
        saves_itself: bool,
        available: Callable[[], int],
        begin_s: float,
        on_end: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.name = name
        self.rules = rules
        self.shard: Shard | None = None
        self.rows = ReplicatedState({})
        self.fail = on_failure
        self._index = index
        self._count = count
        self._keeps = keeps
        self._parts = parts
        self._saves_itself = saves_itself
        self._available = available
        self._begin_s = begin_s
        self._on_end = on_end
        self._layout: Layout | None = None
        self._description: dict[str, Any] = {}
        self._added: dict[int, Added] = {}
        self._reserved = 0
        self._is_open = False
        self._restored = -1  # for which generation of the chief's group
        self._begun = -1  # by which generation of it
        self._sessions: dict[tuple[int, int], Session] = {}
        self._away_since: dict[int, float] = {}  # groups of which the last connection has broken
        self._changed = threading.Condition()
        self._ends = False

    @property
    def has_ended(self) -> bool:
        """Whether every worker of every group has said goodbye."""
        return self.shard is not None and self.shard.ledger.all_left

    @property
    def clients(self) -> set[tuple[int, int]]:
        """Group and rank of each worker that is connected."""
        return set(self._sessions)

    @property
    def reserved(self) -> int:
        """Bytes that the first steps will take: the optimizer's state and gradients."""
        return 0 if self.shard is None or self.shard.version else self._reserved

    def stop(self) -> None:
        """Release the threads that wait for other workers; from any thread, twice is once."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()

    def end_sessions(self) -> None:
        for session in list(self._sessions.values()):
            session.cut()

    def save_for_itself(self) -> None:
        """What an asynchronous server has done since it was last saved, should it die or the run be taken up again."""
        if self._saves_itself and self._is_open:
            try:
                self.save(None)
            except OSError as error:
                print(f"torchyard: {self.name} could not save its shard: {error}", flush=True)

    def admit(self, connection: Connection, said: dict[str, Any]) -> Session:
        """The session of a worker that has introduced itself. Raises Refusal, and KeyError, TypeError or ValueError for
        what is no introduction."""
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
            before.cut()
        closed = 0 if self.shard is None else self.shard.ledger.closed_round(group)
        connection.answer({"name": self.name, "ready": opened, "round": closed})
        return session

    def lost(self, session: Session, error: PeerLost) -> None:
        """A worker is gone without a goodbye: its group cannot go on, and hears who it was, or because of whom."""
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
                other.post({"op": "lost", "name": error.name, "host": error.host, "why": error.why})

    def goodbye(self, session: Session) -> None:
        deliveries = []
        if self.shard is not None:
            deliveries = self.shard.leave(session.group, session.rank, session.generation)
        with self._changed:
            if self._sessions.get((session.group, session.rank)) is session:
                del self._sessions[session.group, session.rank]
            self._changed.notify_all()
        if self.has_ended:
            self._on_end()
        if deliveries:  # rounds that only waited for this one
            self.rows.end_round(session.group)
        self.deliver(deliveries)
        self.save_for_itself()  # else a server that dies now would come back and wait for a goodbye for ever

    # Beginning

    def begin(self, session: Session, said: dict[str, Any]) -> bool:
        """The chief describes model and optimizer. Whether this server goes on with the parameters that it has."""
        layout = Layout.read(said["layout"])
        options = remote_optimizer.from_wire(said["options"])
        rows = model_description.row_sizes(said)
        with self._changed:
            if self._layout is not None and self._keeps and self._is_open and session.generation > 0:
                self._compare(session, layout, said)
                return True
            whole = layout.chunks(self._count, said.get("chunk_bytes"))
            chunks = [chunk for chunk in whole if chunk.shard == self._index]
            if not chunks or chunks[0].shard != whole[0].shard:
                rows = dict.fromkeys(rows, 0)  # the first server that has chunks hands them round
            workers = sum(one.size for one in {session.group: session for session in self._sessions.values()}.values())
            needed = model_description.needs(said, rows, chunks, workers, self.rules.groups)
            sentence = memory_check.shortage(self.name, needed, self._available())
            if sentence:
                raise Refusal(sentence)
            self._make(layout, model_description.kept(said, rows), chunks, options)
            self._reserved = needed["optimizer"] + needed["gradients"]
            self._begun = session.generation
        return False

    def _make(self, layout: Layout, said: dict[str, Any], chunks: list[Any], options: list[Any]) -> None:
        """A shard of zeros; called with the lock held."""
        self._is_open = False
        self._restored = -1
        self._layout = layout
        self._description = said
        self._added = {}
        self.rows = ReplicatedState(said["rows"])
        self.shard = Shard(layout, chunks, said["optimizer"], options, self.rules)
        for session in self._sessions.values():
            self.shard.enter(session.group, session.rank, session.size, session.generation)

    def add(self, session: Session, said: dict[str, Any]) -> list[int]:
        """A worker's optimizer was given more parameters: its chunks that this one, the first of its group, is to
        assign. Waits for that on all others. Raises ValueError."""
        layout, options = Layout.read(said["layout"]), remote_optimizer.from_wire(said["options"])
        checksums = {int(number): int(value) for number, value in said["checksums"].items()}
        with self._changed:
            shard = self.shard
            if shard is None:
                raise Refusal(f"{self.name} has nothing yet.")
            own: dict[int, tuple[Entry, Chunk]] = {}
            for entry in layout.entries:
                chunk_bytes = self._description["chunk_bytes"]
                for chunk in added_chunks(entry, self._count, chunk_bytes, whole=layout.whole_parameters):
                    if chunk.shard == self._index:
                        own[chunk.number] = entry, chunk
            session.added.update(own)
            shard.expect(session.group, own)
            shard.set_options(session.group, session.rank, options)
            for rank in shard.ledger.pushing(session.group):
                other = self._sessions.get((session.group, rank))
                if other is not None and len(other.added) < len(session.added):
                    self._refuse_without(other)
            new = [number for number in own if number not in shard.numbers] if session.rank == 0 else []
            no_rows = dict.fromkeys(("buffers", "constants"), 0)
            chunks = [own[number][1] for number in new]
            needed = model_description.needs(self._description, no_rows, chunks, session.size, self.rules.groups)
            sentence = memory_check.shortage(self.name, needed, self._available())
            if sentence:
                raise Refusal(sentence)
            assigned = []
            for number in new:
                entry, chunk = own[number]
                has = shard.add(chunk, Layout((entry,), layout.whole_parameters), options)
                self._added[number] = Added(entry, None if has else checksums.get(number), is_ready=has)
                if not has:
                    assigned.append(number)
            self._changed.notify_all()  # for what is ready at once
            if assigned:
                return assigned
            self._wait_for_the_chief(
                lambda: all(number in self._added and self._added[number].is_ready for number in own)
            )
            for number, (entry, _) in own.items():
                self._compare_added(session, self._added[number], entry, checksums.get(number))
        return []

    def _compare_added(self, session: Session, known: Added, entry: Entry, checksum: int | None) -> None:
        if known.entry != entry:
            raise Refusal(
                f"The optimizer of {session.name} was given {words(entry)} later where another worker's was given "
                f"{words(known.entry)}."
            )
        # A worker that was started again begins with a checkpoint's.
        if session.generation == 0 and None not in (checksum, known.checksum) and checksum != known.checksum:
            raise Refusal(
                f"{entry.name}, which the optimizer of {session.name} was given later, differs there from what "
                "another worker has in it. Make it on all workers from the same random numbers, or before distribute()."
            )

    def added(self, chunks: Sequence[int]) -> None:
        """What add() has asked for is assigned."""
        with self._changed:
            for number in chunks:
                self._added[int(number)].is_ready = True
            self._changed.notify_all()

    def check_added(self, session: Session, number: int) -> None:
        """Before a round in which a member pushes other chunks than its group, which would then wait for ever."""
        if self.shard is None or len(session.added) == len(self.shard.ledger.added(session.group)):
            return
        if number <= self.shard.ledger.closed_round(session.group):
            return  # it comes too late for that one
        self._refuse_without(session)

    def _refuse_without(self, session: Session) -> None:
        """Tell a group that this member's optimizer lacks parameters which another's was given."""
        header = {
            "op": "refused",
            "message": f"Another worker's optimizer was given parameters that the optimizer of {session.name} was not.",
            "hint": "Call add_param_group(), or unfreeze parameters, on all workers at the same step.",
        }
        for one in list(self._sessions.values()):
            if one.group == session.group:
                one.post(header)

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
        difference = model_description.difference(self._description, self._layout, said, layout)
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
        """As ServerCheckpoint.write(). Raises OSError, and Refusal where there is nothing to save or no folder."""
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
            layout, _ = Layout.read(said["layout"]), model_description.row_sizes(said)
            chunks = [c for c in layout.chunks(self._count, said.get("chunk_bytes")) if c.shard == self._index]
            with self._changed:
                self._make(layout, said, chunks, remote_optimizer.from_wire(said["options"]))
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
