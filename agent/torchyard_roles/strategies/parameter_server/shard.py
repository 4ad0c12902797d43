"""A server's shard: its parameters in chunks, their optimizers, and the sums of pushed gradients.

The shard has neither sockets nor threads. Its methods take pushes, and return the messages to send. Any thread may
push. Each chunk has its own lock, so chunks are summed in parallel.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

import torch

from torchyard_roles.exchange.parameter_layout import ADDED, Chunk, Layout
from torchyard_roles.strategies.parameter_server import remote_optimizer
from torchyard_roles.strategies.parameter_server.chunk_state import ChunkState, Contribution, Delivery, Sum
from torchyard_roles.strategies.parameter_server.push_acceptance import ACCEPTED, LATE, NEWEST, Ledger, Push, Rules

POOLED = 64
"""Maximum number of unused buffers that are kept for each size."""
LOW_PRECISION = (torch.float16, torch.bfloat16)
"""Dtypes that are summed in float32."""


class Shard:
    """The chunks of one pair on one server.

    Args:
        options: The options of the optimizer, one entry per parameter group.
    """

    def __init__(
        self,
        layout: Layout,
        chunks: Sequence[Chunk],
        optimizer: str,
        options: Sequence[remote_optimizer.Arguments],
        rules: Rules,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.optimizer = optimizer
        self.rules = rules
        self.ledger = Ledger(rules, len(chunks))
        self._clock = clock
        # Protects ledger, options and pool. It is acquired after a chunk's lock.
        self._lock = threading.Lock()
        self._chunks = {chunk.number: ChunkState(chunk, layout, optimizer, options[chunk.group]) for chunk in chunks}
        # The keys are members, as (group, rank).
        self._options: dict[tuple[int, int], list[remote_optimizer.Arguments]] = {}
        self._first_options = list(options)
        self._waited: tuple[tuple[int, int], float] = ((0, 0), 0.0)
        self._saved: dict[int, dict[str, Any]] = {}
        """Chunks of added parameters from a checkpoint, until the parameters are added again."""
        self._pool: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}

    @property
    def version(self) -> int:
        return self.ledger.version

    @property
    def waited_s(self) -> float:
        """The longest time in seconds from the first to the last member's push of a chunk, in the newest round."""
        return self._waited[1]

    @property
    def numbers(self) -> list[int]:
        """The numbers of the shard's chunks."""
        return list(self._chunks)

    def enter(self, group: int, rank: int, size: int, generation: int) -> None:
        """Adds a member. If it is the first of a new generation, earlier pushes of its group are discarded."""
        with self._lock:
            newer = self.ledger.enter(group, size, generation)
            self._options.pop((group, rank), None)
        if newer:
            for state in self._chunks.values():
                with state.lock:
                    for entries in (state.sums, state.changes):
                        for key in [key for key in entries if key[0] == group]:
                            del entries[key]

    def leave(self, group: int, rank: int, generation: int) -> list[Delivery]:
        """Removes a member, and returns the deliveries of rounds that were waiting only for this member."""
        with self._lock:
            self.ledger.leave(group, rank, generation)
        deliveries: list[Delivery] = []
        for state in self._chunks.values():
            with state.lock:
                for key in sorted(key for key in state.sums if key[0] == group):
                    deliveries += self._complete_if_all_there(state, key)
        return deliveries

    def set_options(self, group: int, rank: int, options: list[remote_optimizer.Arguments]) -> None:
        """Sets a member's optimizer options for its next pushes. A round uses the options of its lowest rank."""
        if len(options) < len(self._first_options):
            raise ValueError(f"{len(options)} parameter groups, but there are {len(self._first_options)}")
        with self._lock:
            self._options[group, rank] = options

    def expect(self, group: int, chunks: Iterable[int]) -> None:
        """Adds chunks of new parameters, which all members of the group also push from their next round on."""
        with self._lock:
            self.ledger.add(group, chunks)

    def add(self, chunk: Chunk, layout: Layout, options: list[remote_optimizer.Arguments]) -> bool:
        """Adds a chunk of a new parameter, and returns whether it was restored from a checkpoint."""
        if chunk.group >= len(options):
            raise ValueError(f"a parameter of group {chunk.group}, but there are {len(options)}")
        state = ChunkState(chunk, layout, self.optimizer, options[chunk.group])
        saved = self._saved.pop(chunk.number, None)
        if saved is not None:
            state.load(saved)
        with self._lock:
            # The dict is replaced instead of changed, because other threads may be iterating over it.
            self._chunks = {**self._chunks, chunk.number: state}
        return saved is not None

    def expects(self, push: Push) -> bool:
        """Returns whether the gradient of a push would be used.

        If it would not be used, the caller receives and discards the gradient.
        """
        with self._lock:
            return self.ledger.round_for(push) is not None

    def buffer(self, chunk: int) -> torch.Tensor:
        """Returns a tensor into which the chunk's gradient can be received. Raises KeyError if the chunk is unknown."""
        state = self._chunks[chunk]
        with self._lock:
            kept = self._pool.get((state.chunk.elements, state.parameters.dtype))
            if kept:
                return kept.pop()
        return torch.empty_like(state.parameters)

    def push(self, push: Push, gradient: torch.Tensor | None) -> list[Delivery]:
        """Adds one chunk of a member's push. `gradient` is 1-D, or None if the push is void or bare.

        Returns:
            The deliveries to all members of the round if this was the last contribution, or to this member if its push
            is late. In all other cases, there are no deliveries.

        Raises:
            KeyError: The chunk is unknown.
        """
        state = self._chunks[push.chunk]
        now = self._clock()
        with state.lock:
            with self._lock:
                one = self.ledger.begin(push)
            if one is None:
                self._give_back(gradient)
                return [self._late(state, push)]
            key = (push.group, one.number)
            total = state.sums.get(key)
            if total is None:
                total = state.sums[key] = Sum(one)
            if any(each.push.rank == push.rank for each in total.arrived):
                self._give_back(gradient)
                return []  # The sum already contains this member's gradient.
            self._add(total, Contribution(push, gradient, now))
            return self._complete_if_all_there(state, key)

    def pull(self, group: int, rank: int, chunk: int) -> Delivery:
        """Returns a delivery of a chunk's newest parameters to a member."""
        state = self._chunks[chunk]
        with state.lock:
            with self._lock:
                version, closed = self.ledger.version, self.ledger.closed_round(group)
            header = {"op": "params", "chunk": chunk, "round": closed, "version": version, "outcome": NEWEST}
            return Delivery(group, rank, header, state.parameters.clone())

    def assign(self, chunk: int, values: torch.Tensor) -> None:
        """Sets a chunk's parameters, and resets its optimizer."""
        state = self._chunks[chunk]
        with state.lock, torch.no_grad():
            state.parameters.copy_(values)
            state.reset_optimizer()

    def set(self, chunk: int, values: torch.Tensor, group: int, number: int | None) -> None:
        """Sets the parameters of a chunk that the script changed. The optimizer's state is kept.

        The parameters are set immediately if `number` is None. Otherwise they are set when round `number` of the group
        is complete, because a slow member may still pull the old parameters.
        """
        state = self._chunks[chunk]
        with state.lock:
            if number is not None:
                state.changes[group, number] = values
                return
            with torch.no_grad():
                state.parameters.copy_(values)
        self._give_back(values)

    def _add(self, total: Sum, contribution: Contribution) -> None:
        total.arrived.append(contribution)
        if not self.rules.in_rank_order or self.rules.backup_workers:
            # If there are backup workers, the contributing members are known only later, and _complete_if_all_there()
            # sums their gradients.
            if self.rules.in_rank_order:
                total.waiting[contribution.push.rank] = contribution
            else:
                self._sum(total, contribution.gradient)
            return
        total.waiting[contribution.push.rank] = contribution
        while total.counted in total.waiting:
            self._sum(total, total.waiting.pop(total.counted).gradient)

    def _sum(self, total: Sum, gradient: torch.Tensor | None) -> None:
        total.counted += 1
        if gradient is None:
            return
        if total.total is None:
            total.total = gradient.float() if gradient.dtype in LOW_PRECISION else gradient
            if total.total is not gradient:
                self._give_back(gradient)
        else:
            total.total.add_(gradient)
            self._give_back(gradient)

    def _complete_if_all_there(self, state: ChunkState, key: tuple[int, int]) -> list[Delivery]:
        total = state.sums[key]
        if total.is_held:
            return []
        with self._lock:
            complete = self.ledger.is_complete(total.round, len(total.arrived))
        if not complete:
            return []
        for rank in sorted(total.waiting):
            self._sum(total, total.waiting[rank].gradient)
        total.waiting.clear()
        if len({each.push.changed for each in total.arrived}) > 1:
            return _refusals(
                total,
                "The script has changed parameters outside optimizer.step(), differently on the workers: "
                f"{' or '.join(state.names)}.",
                "Make the same change on every worker, from the same random numbers.",
            )
        if len({each.push.clip for each in total.arrived}) > 1:
            return _refusals(
                total,
                "clip_gradients(value=…) was not called in the same way by all workers of the group before a step.",
                "Call it on every worker, with the same value.",
            )
        changed = state.changes.pop(key, None)
        if changed is not None:
            with torch.no_grad():
                state.parameters.copy_(changed)
            self._give_back(changed)
        self._clip(total)
        if any(each.push.hold for each in total.arrived):
            return self._hold(state, total)
        del state.sums[key]
        return self._step(state, total, 1.0)

    def _clip(self, total: Sum) -> None:
        """Clips the elements of the mean gradient by limiting the elements of the sum."""
        clip = total.arrived[0].push.clip
        if clip is not None and total.total is not None:
            bound = clip * sum(not each.push.void for each in total.arrived)
            total.total.clamp_(-bound, bound)

    def _hold(self, state: ChunkState, total: Sum) -> list[Delivery]:
        """Holds a chunk's gradient sum until scale(), and returns messages with the mean gradient's squared norm."""
        total.is_held = True
        counted = sum(not each.push.void for each in total.arrived)
        if total.total is not None:
            norm = float(torch.linalg.vector_norm(total.total, dtype=torch.float64))
            total.square = (norm / counted) ** 2
        now = self._clock()
        total.waited = now - min(each.arrived_at for each in total.arrived)
        header = {"op": "held", "chunk": state.chunk.number, "round": total.round.number, "square": total.square}
        return [
            Delivery(push.group, push.rank, {**header, "waited": round(now - arrived_at, 6)}, None)
            for push, _, arrived_at in total.arrived
        ]

    def scale(self, group: int, rank: int, generation: int, number: int, chunk: int, factor: float) -> list[Delivery]:
        """Takes a chunk's optimizer step with its held gradient sum times `factor`, at the request of a member.

        All members compute the same factor, so the factor of the first request is used. Each member receives the new
        parameters only after its own request.
        """
        state = self._chunks[chunk]
        with state.lock:
            total = state.sums.get((group, number))
            with self._lock:
                members = self.ledger.group(group)
            if total is None or not total.is_held or members.generation != generation:
                return []
            if total.ready is None:
                total.ready = {delivery.rank: delivery for delivery in self._step(state, total, factor)}
            given = total.ready.pop(rank, None)
            if not total.ready:
                del state.sums[group, number]
            return [given] if given is not None else []

    def _step(self, state: ChunkState, total: Sum, factor: float) -> list[Delivery]:
        one, pushes = total.round, [each.push for each in total.arrived]
        group, chunk = pushes[0].group, state.chunk
        with self._lock:
            outcome = self.ledger.decide(group, one)
            self.ledger.chunk_done(group, one)
            options = self._options.get((group, min(push.rank for push in pushes)), self._first_options)
        counted = [push for push in pushes if not push.void]
        if outcome == ACCEPTED and total.total is not None:
            gradient = total.total.div_(len(counted)) if len(counted) > 1 else total.total
            if factor != 1.0:
                gradient.mul_(factor)
            every = frozenset(range(len(chunk.pieces)))
            absent = frozenset.intersection(*(every if push.bare else push.absent for push in counted))
            state.step(gradient.to(state.parameters.dtype), absent, options[chunk.group])
        if total.total is not None and total.total.dtype == state.parameters.dtype:
            self._give_back(total.total)
        now = self._clock()
        waited = total.waited if total.is_held else now - min(each.arrived_at for each in total.arrived)
        with self._lock:
            newest, before = self._waited
            at = (group, one.number)
            self._waited = (at, max(waited, before) if newest == at else waited)
        values = state.parameters.clone() if any(push.wants for push in pushes) else None
        return [
            Delivery(
                group,
                each.push.rank,
                {
                    "op": "params",
                    "chunk": chunk.number,
                    "round": one.number,
                    "version": one.version,
                    "outcome": outcome,
                    "staleness": one.staleness,
                    "waited": round(now - each.arrived_at, 6),
                },
                values if each.push.wants else None,
            )
            for each in total.arrived
        ]

    def _late(self, state: ChunkState, push: Push) -> Delivery:
        with self._lock:
            version, closed = self.ledger.version, self.ledger.closed_round(push.group)
        header = {"op": "params", "chunk": push.chunk, "round": closed, "version": version, "outcome": LATE}
        return Delivery(push.group, push.rank, header, state.parameters.clone() if push.wants else None)

    def _give_back(self, buffer: torch.Tensor | None) -> None:
        if buffer is not None:
            with self._lock:
                kept = self._pool.setdefault((buffer.numel(), buffer.dtype), [])
                if len(kept) < POOLED:
                    kept.append(buffer)

    def state(self) -> dict[str, Any]:
        """Returns a copy of parameters, optimizer states, version and counts, for torch.load(weights_only=True).

        Each chunk is consistent. If groups are asynchronous, chunks may be from different rounds.
        """
        chunks: dict[int, dict[str, Any]] = dict(self._saved)
        for number, state in self._chunks.items():
            with state.lock:
                chunks[number] = {
                    "parameters": state.parameters.clone(),
                    "optimizer": deepcopy(state.optimizer.state_dict()["state"]),
                }
        with self._lock:
            counts = self.ledger.counts
            return {
                "version": self.ledger.version,
                "counts": [counts.accepted, counts.stale, counts.late, counts.void],
                "by_group": dict(counts.by_group),
                "optimizer": self.optimizer,
                "chunks": chunks,
            }

    def load(self, saved: dict[str, Any]) -> None:
        """Restores the state that state() returned.

        Raises:
            ValueError: The state belongs to another shard. The shard is then unchanged.
        """
        try:
            chunks = saved["chunks"]
            first = {number for number in chunks if number < ADDED}
            fits = saved["optimizer"] == self.optimizer and first == self._chunks.keys()
            fits = fits and all(
                chunks[number]["parameters"].shape == state.parameters.shape
                and chunks[number]["parameters"].dtype == state.parameters.dtype
                for number, state in self._chunks.items()
            )
            version, counts, by_group = int(saved["version"]), list(saved["counts"]), dict(saved["by_group"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a shard's state: {error}") from error
        if not fits:
            raise ValueError("it is another shard's, or of another optimizer")
        for number, state in self._chunks.items():
            with state.lock:
                state.load(chunks[number])
        self._saved = {number: chunk for number, chunk in chunks.items() if number >= ADDED}
        with self._lock:
            self.ledger.version = version
            seen = self.ledger.counts
            seen.accepted, seen.stale, seen.late, seen.void = counts
            seen.by_group = by_group


def _refusals(total: Sum, message: str, hint: str) -> list[Delivery]:
    header = {"op": "refused", "message": message, "hint": hint}
    return [Delivery(push.group, push.rank, header, None) for push, _, _ in total.arrived]
