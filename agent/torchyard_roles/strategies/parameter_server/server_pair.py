"""One pair of a model and an optimizer on a parameter server, from its start to the departure of all workers.

The module `shard` contains the computation, and `server_process` the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchyard_roles import host_memory
from torchyard_roles.errors import PeerLost
from torchyard_roles.exchange.parameter_layout import Chunk, Entry, Layout, added_chunks, words
from torchyard_roles.exchange.tensor_connection import Connection
from torchyard_roles.strategies.parameter_server import model_description, remote_optimizer, server_checkpoint
from torchyard_roles.strategies.parameter_server.buffers_and_constants import ServerBuffers
from torchyard_roles.strategies.parameter_server.chunk_state import Delivery
from torchyard_roles.strategies.parameter_server.messages import Refusal
from torchyard_roles.strategies.parameter_server.push_acceptance import Rules
from torchyard_roles.strategies.parameter_server.server_checkpoint import ServerCheckpoint
from torchyard_roles.strategies.parameter_server.shard import Shard
from torchyard_roles.strategies.parameter_server.worker_session import Session

BEGIN_S = 660.0
"""Longest time in seconds for which workers wait for the chief.

It exceeds the time for which a keeper waits for a lost host.
"""


@dataclass
class Added:
    """A chunk of a parameter that was added after distribute()."""

    entry: Entry
    checksum: int | None
    """The checksum of the parameter's initial value, or None if that is unknown because the chunk was restored."""
    is_ready: bool


@dataclass(frozen=True)
class ServerSettings:
    """The settings of server `index` of `count`."""

    name: str
    index: int
    count: int
    rules: Rules
    keeps: bool = False
    """Whether the server keeps its parameters when workers restart, as in asynchronous strategies."""
    folder: Path | None = None
    """The folder for checkpoints, or None if the server saves nothing."""
    run: str = ""
    """The ID of the run."""
    save_every_s: float = 0.0
    """Interval of the server's own saves in seconds, or 0 to disable them."""
    begin_s: float = BEGIN_S
    available: Callable[[], int] = host_memory.available
    """A function that returns the free memory in bytes."""


class ServerPair:
    """Pair `number` on one server, with its shard, sessions and checkpoint files.

    Args:
        available: Returns the free memory in bytes for this pair.
        on_end: Called when all workers of all groups have left.
        on_failure: Called with an error that ended a session in the middle of a step.
    """

    def __init__(
        self,
        settings: ServerSettings,
        number: int,
        *,
        available: Callable[[], int],
        on_end: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.name = settings.name
        self.rules = settings.rules
        self.shard: Shard | None = None
        self.rows = ServerBuffers({})
        self.fail = on_failure
        self._settings = settings
        self._index, self._count = settings.index, settings.count
        self._parts: ServerCheckpoint | None = None
        if settings.folder is not None:
            part = server_checkpoint.name_of(settings.name, number)
            self._parts = ServerCheckpoint(settings.folder, part, settings.index, settings.count, settings.run)
        self._available = available
        self._on_end = on_end
        self._layout: Layout | None = None
        self._description: dict[str, Any] = {}
        self._added: dict[int, Added] = {}
        self._reserved = 0
        self._is_open = False
        self._restored = -1  # The chief's generation in which the shard was restored, or -1.
        self._begun = -1  # The newest generation of the chief's group that has begun. -1 if no generation has begun.
        self._sessions: dict[tuple[int, int], Session] = {}
        # The groups that have no connections, with the times at which each group lost its last connection.
        self._away_since: dict[int, float] = {}
        self._changed = threading.Condition()
        self._ends = False

    @property
    def has_ended(self) -> bool:
        """Whether all workers of all groups have left."""
        return self.shard is not None and self.shard.ledger.all_left

    @property
    def clients(self) -> set[tuple[int, int]]:
        """The group and rank of each connected worker."""
        return set(self._sessions)

    @property
    def reserved(self) -> int:
        """The memory in bytes that the first steps will allocate for optimizer states and gradients."""
        return 0 if self.shard is None or self.shard.version else self._reserved

    def stop(self) -> None:
        """Wakes the threads that wait for other workers. This method is thread-safe and may be called repeatedly."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()

    def end_sessions(self) -> None:
        for session in list(self._sessions.values()):
            session.cut()

    def save_for_itself(self) -> None:
        """Saves the state that this server needs for its own restart, if the strategy is asynchronous."""
        if self._parts is not None and self._settings.save_every_s > 0 and self._is_open:
            try:
                self.save(None)
            except OSError as error:
                print(f"torchyard: {self.name} could not save its shard: {error}", flush=True)

    def admit(self, connection: Connection, description: dict[str, Any]) -> Session:
        """Creates the session of a new worker.

        Raises:
            Refusal: The worker's introduction does not match this server's settings.
            KeyError, TypeError, ValueError: The introduction is invalid.
        """
        group, rank, size, generation = (int(description[key]) for key in ("group", "rank", "size", "generation"))
        place = (int(description["shard"]), int(description["shards"]), int(description["groups"]))
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
                raise Refusal(f"{connection.peer} is of an earlier generation of its group.")
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
        """Handles the loss of a worker. Sends the cause to the other workers of its group, which cannot continue."""
        with self._changed:
            if self._sessions.get((session.group, session.rank)) is not session:
                return  # The worker has a newer session, so it is not lost.
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
        if deliveries:  # Rounds that waited only for this worker are now complete.
            self.rows.end_round(session.group)
        self.deliver(deliveries)
        # A restarted server would wait forever for this worker to leave if the departure were not saved.
        self.save_for_itself()

    def begin(self, session: Session, description: dict[str, Any]) -> bool:
        """Begins training with the chief's model.

        Returns whether this server keeps its own parameters instead of the chief's.
        """
        layout = Layout.read(description["layout"])
        options = remote_optimizer.from_wire(description["options"])
        rows = model_description.row_sizes(description)
        with self._changed:
            if self._layout is not None and self._settings.keeps and self._is_open and session.generation > 0:
                self._compare(session, layout, description)
                return True
            whole = layout.chunks(self._count, description.get("chunk_bytes"))
            chunks = [chunk for chunk in whole if chunk.shard == self._index]
            if not chunks or chunks[0].shard != whole[0].shard:
                rows = dict.fromkeys(rows, 0)  # The first server with chunks distributes buffers and constants.
            workers = sum(one.size for one in {session.group: session for session in self._sessions.values()}.values())
            needed = model_description.needs(description, rows, chunks, workers, self.rules.groups)
            sentence = host_memory.shortage(self.name, needed, self._available())
            if sentence:
                raise Refusal(sentence)
            self._make(layout, model_description.kept(description, rows), chunks, options)
            self._reserved = needed["optimizer"] + needed["gradients"]
            self._begun = session.generation
        return False

    def _make(self, layout: Layout, description: dict[str, Any], chunks: list[Any], options: list[Any]) -> None:
        """Creates a shard whose parameters are 0. The caller must hold the lock."""
        self._is_open = False
        self._restored = -1
        self._layout = layout
        self._description = description
        self._added = {}
        self.rows = ServerBuffers(description["rows"])
        self.shard = Shard(layout, chunks, description["optimizer"], options, self.rules)
        for session in self._sessions.values():
            self.shard.enter(session.group, session.rank, session.size, session.generation)

    def add(self, session: Session, description: dict[str, Any]) -> list[int]:
        """Adds parameters that the script has added to a worker's optimizer.

        Raises ValueError or Refusal if the parameters cannot be added.

        Returns:
            The chunks whose values this worker must send, if it is the first of its group. Other workers wait for these
            values.
        """
        layout, options = Layout.read(description["layout"]), remote_optimizer.from_wire(description["options"])
        checksums = {int(number): int(value) for number, value in description["checksums"].items()}
        with self._changed:
            shard = self.shard
            if shard is None:
                raise Refusal(f"{self.name} has no parameters yet.")
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
            sentence = host_memory.shortage(self.name, needed, self._available())
            if sentence:
                raise Refusal(sentence)
            assigned = []
            for number in new:
                entry, chunk = own[number]
                has = shard.add(chunk, Layout((entry,), layout.whole_parameters), options)
                self._added[number] = Added(entry, None if has else checksums.get(number), is_ready=has)
                if not has:
                    assigned.append(number)
            self._changed.notify_all()  # Threads may be waiting for the chunks that have just been restored.
            if assigned:
                return assigned
            self._wait_for_chief(lambda: all(number in self._added and self._added[number].is_ready for number in own))
            for number, (entry, _) in own.items():
                self._compare_added(session, self._added[number], entry, checksums.get(number))
        return []

    def _compare_added(self, session: Session, first: Added, entry: Entry, checksum: int | None) -> None:
        if first.entry != entry:
            raise Refusal(
                f"The optimizer of {session.name} was given {words(entry)} later where another worker's was given "
                f"{words(first.entry)}."
            )
        # The checksum of a restarted worker is not compared, because its values come from a checkpoint.
        if session.generation == 0 and None not in (checksum, first.checksum) and checksum != first.checksum:
            raise Refusal(
                f"The values of {entry.name}, which was added later to the optimizer of {session.name}, differ from "
                "those "
                "of another worker. Create it on all workers with the same random numbers, or before distribute()."
            )

    def added(self, chunks: Sequence[int]) -> None:
        """Records that the worker sent the values of the chunks that add() returned."""
        with self._changed:
            for number in chunks:
                self._added[int(number)].is_ready = True
            self._changed.notify_all()

    def check_added(self, session: Session, number: int) -> None:
        """Refuses a round whose members push different chunks, because such a round would never be complete."""
        if self.shard is None or len(session.added) == len(self.shard.ledger.added(session.group)):
            return
        if number <= self.shard.ledger.closed_round(session.group):
            return  # The round is already closed, so the push is late and its gradient is dropped.
        self._refuse_without(session)

    def _refuse_without(self, session: Session) -> None:
        """Informs the workers of a group that the worker of `session` does not have the added parameters."""
        header = {
            "op": "refused",
            "message": f"Another worker's optimizer was given parameters that the optimizer of {session.name} was not.",
            "hint": "Call add_param_group(), or unfreeze parameters, on all workers at the same step.",
        }
        for one in list(self._sessions.values()):
            if one.group == session.group:
                one.post(header)

    def open(self) -> None:
        """Lets the other workers join. Called when the chief has sent the values of all chunks."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def join(self, session: Session, description: dict[str, Any]) -> None:
        """Lets a worker join after the chief has begun. Groups other than the chief's also wait for the warm start."""
        with self._changed:
            # If the server keeps its parameters, restarted workers need not wait for the chief.
            self._wait_for_chief(lambda: self._is_open and (self._settings.keeps or self._begun >= session.generation))
            if not self._ends:
                self._compare(session, Layout.read(description["layout"]), description)
            if session.group:
                self._changed.wait_for(lambda: self._ends or (self.shard is not None and self.shard.ledger.is_warm))
            if self._ends:
                raise Refusal(f"{self.name} is stopping.")
            if self.rows.constants is not None:
                session.post({"op": "constants"}, self.rows.constants)

    def _wait_for_chief(self, is_ready: Callable[[], bool]) -> None:
        """Waits for the chief. Raises Refusal after a timeout. The caller must hold the lock.

        A timeout occurs if the server has restarted without its parameters after the chief had left.
        """
        if not self._changed.wait_for(lambda: self._ends or is_ready(), timeout=self._settings.begin_s):
            raise Refusal(
                f"{self.name} has waited {self._settings.begin_s:.0f} s for the chief to bring its parameters. "
                "Start the run again: it continues from the newest checkpoint."
            )

    def _compare(self, session: Session, layout: Layout, description: dict[str, Any]) -> None:
        assert self._layout is not None
        difference = model_description.difference(self._description, self._layout, description, layout)
        if difference:
            raise Refusal(f"The model of {session.name} is not the chief's: it {difference}.")

    def warmed(self) -> None:
        """Wakes the threads that wait for the end of the warm start."""
        if self.rules.warm_start_steps:
            with self._changed:
                self._changed.notify_all()

    def wait_for_other_groups(self, session: Session, within_s: float) -> tuple[list[int], list[int], float]:
        """Waits at most `within_s` until all groups except the session's have left.

        Called after the last step of the chief's group.

        Returns:
            The groups that have not left (none if this server stops), the groups among them that are connected, and for
            how many seconds none of them has been connected.
        """

        def waiting() -> list[int]:
            assert self.shard is not None
            left = self.shard.ledger.has_left
            return [group for group in range(self.rules.groups) if group != session.group and not left(group)]

        with self._changed:
            if self.shard is None:
                raise Refusal(f"{self.name} has no parameters yet.")
            # Groups that wait for the warm start may begin now. Otherwise they and the chief would wait for each other
            # forever.
            self.shard.ledger.is_over = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ends or not waiting(), timeout=within_s)
            connected = {group for group, _ in self._sessions}
            left = [] if self._ends else waiting()
            now = time.monotonic()
            away_s = min((now - self._away_since.get(group, now) for group in left), default=0.0)
            return left, [group for group in left if group in connected], away_s

    def deliver(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            session = self._sessions.get((delivery.group, delivery.rank))
            if session is not None:
                self.rows.bring_buffers(session)
                session.post(delivery.header, delivery.payload)

    def take_buffers(self, session: Session, values: torch.Tensor, *, with_push: bool) -> None:
        """Stores a group's buffers for this group or, if the chief has not sent all values yet, for all groups.

        Args:
            with_push: Whether the buffers become valid after the next round instead of immediately.
        """
        groups = [session.group] if self._is_open else range(self.rules.groups)
        self.rows.take_buffers(session, values, groups)
        for group in groups if not with_push else ():
            self.rows.end_round(group)

    def save(self, step: int | None, kept: Sequence[int] = ()) -> None:
        """Saves the server's part of a checkpoint. The arguments are those of ServerCheckpoint.write().

        Raises OSError, or Refusal if there is no state or no checkpoint folder.
        """
        shard = self.shard
        if shard is None or self._parts is None or not self._is_open:
            raise Refusal(f"{self.name} has nothing to save, or no folder for it.")
        self._parts.write(lambda: self._state(shard), step, kept)

    def _state(self, shard: Shard) -> dict[str, Any]:
        rows, goodbyes = self.rows.state(), shard.ledger.goodbyes()
        return {**shard.state(), "description": dict(self._description), **rows, "goodbyes": goodbyes}

    def restore(self, session: Session, step: int) -> bool:
        """Restores the shard from a checkpoint, and returns whether this succeeded."""
        saved = self._parts.read(step) if self._parts is not None else None
        if saved is None or self.shard is None:
            return False
        try:
            self.shard.load(saved)
        except ValueError as error:
            print(f"torchyard: {self.name} ignores its part of step {step}: {error}", flush=True)
            return False
        self.save_for_itself()  # The restored state is needed if this server restarts before its next save.
        return True

    def restored(self, generation: int) -> None:
        with self._changed:
            self._restored = generation
            self._changed.notify_all()

    def wait_restored(self, generation: int) -> None:
        with self._changed:
            self._wait_for_chief(lambda: self._restored >= generation)

    def resume(self) -> bool:
        """Restores the newest part that this run saved, and returns whether this succeeded. Called after a restart."""
        saved = self._parts.read(None) if self._parts is not None else None
        if saved is None:
            return False
        try:
            description = saved["description"]
            layout, _ = Layout.read(description["layout"]), model_description.row_sizes(description)
            chunks = [c for c in layout.chunks(self._count, description.get("chunk_bytes")) if c.shard == self._index]
            with self._changed:
                self._make(layout, description, chunks, remote_optimizer.from_wire(description["options"]))
                assert self.shard is not None
                self.shard.load(saved)
                self.rows.load(saved)
                self.shard.ledger.set_goodbyes(saved["goodbyes"])
        except (ValueError, KeyError) as error:
            print(f"torchyard: {self.name} ignores its newest part: {error}", flush=True)
            self.shard = None
            return False
        self.open()
        print(f"torchyard: {self.name} resumes at version {self.shard.version}.", flush=True)
        return True
