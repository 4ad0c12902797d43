"""One server's shard: its parameters in chunks, the optimizer of each, and what a push does to them.

No socket and no thread of its own: a push goes in, deliveries come out, so that tests can drive it step by step.
Any number of threads may push; a chunk is locked for itself, so that chunks of one round are summed side by side.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from torchyard_roles.layout import Chunk, Layout, dtype_named
from torchyard_roles.serving import optimizers
from torchyard_roles.serving.rounds import ACCEPTED, LATE, NEWEST, Ledger, Push, Round, Rules

POOLED = 64
"""Buffers of one size that are kept for the next push."""
LOW_PRECISION = (torch.float16, torch.bfloat16)
"""Summed in float32."""


class Delivery(NamedTuple):
    """What is to be sent to one member of a group."""

    group: int
    rank: int
    header: dict[str, Any]
    payload: torch.Tensor | None


class Contribution(NamedTuple):
    push: Push
    gradient: torch.Tensor | None
    arrived_at: float


class _Sum:
    """The gradients of one chunk in one round."""

    def __init__(self, one: Round) -> None:
        self.round = one
        self.total: torch.Tensor | None = None
        self.waiting: dict[int, Contribution] = {}
        """In rank order only: arrived, but an earlier rank has not."""
        self.arrived: list[Contribution] = []
        self.counted = 0
        """Contributions in `total` and those that are void or bare."""


class _ChunkState:
    """One chunk's parameters, a leaf tensor for each of its pieces, and their optimizer."""

    def __init__(self, chunk: Chunk, layout: Layout, optimizer: str, options: optimizers.Arguments) -> None:
        self.chunk = chunk
        self.lock = threading.Lock()
        self.parameters = torch.zeros(chunk.elements, dtype=dtype_named(chunk.dtype))
        self.sums: dict[tuple[int, int], _Sum] = {}
        self._shaped = layout.whole_parameters
        self._layout = layout
        self._name = optimizer
        self.options = options
        self.leaves = [leaf.detach().requires_grad_() for leaf in self.views(self.parameters)]
        self.optimizer = optimizers.build(optimizer, options, self.leaves)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """A flat tensor of the chunk cut into its pieces; in the parameters' shapes where none is cut."""
        views, start = [], 0
        for piece in self.chunk.pieces:
            view = flat[start : start + piece.elements]
            start += piece.elements
            views.append(view.view(self._layout.entries[piece.parameter].shape) if self._shaped else view)
        return views

    def step(self, gradient: torch.Tensor, absent: frozenset[int], options: optimizers.Arguments) -> None:
        if options is not self.options:
            optimizers.apply(self.optimizer, options)
            self.options = options
        for number, (leaf, grad) in enumerate(zip(self.leaves, self.views(gradient))):
            leaf.grad = None if number in absent else grad
        self.optimizer.step()
        for leaf in self.leaves:
            leaf.grad = None

    def forget(self) -> None:
        """The optimizer as new."""
        self.optimizer = optimizers.build(self._name, self.options, self.leaves)


class Shard:
    """The chunks of one server. `options`: the optimizer's, a parameter group each."""

    def __init__(
        self,
        layout: Layout,
        chunks: Sequence[Chunk],
        optimizer: str,
        options: Sequence[optimizers.Arguments],
        rules: Rules,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.optimizer = optimizer
        self.rules = rules
        self.ledger = Ledger(rules, len(chunks))
        self._clock = clock
        self._lock = threading.Lock()  # of the ledger, options and the pool; taken inside a chunk's, never outside
        self._chunks = {chunk.number: _ChunkState(chunk, layout, optimizer, options[chunk.group]) for chunk in chunks}
        self._options: dict[tuple[int, int], list[optimizers.Arguments]] = {}  # by member
        self._first_options = list(options)
        self._pool: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}

    @property
    def version(self) -> int:
        return self.ledger.version

    @property
    def numbers(self) -> list[int]:
        """Of its chunks."""
        return list(self._chunks)

    def enter(self, group: int, rank: int, size: int, generation: int) -> None:
        """A member has come; the first of a newer generation makes what its group has pushed so far void."""
        with self._lock:
            newer = self.ledger.enter(group, size, generation)
            self._options.pop((group, rank), None)
        if newer:
            for state in self._chunks.values():
                with state.lock:
                    for key in [key for key in state.sums if key[0] == group]:
                        del state.sums[key]

    def leave(self, group: int, rank: int, generation: int) -> list[Delivery]:
        """A member has said goodbye. The deliveries of what only waited for it."""
        with self._lock:
            self.ledger.leave(group, rank, generation)
        deliveries: list[Delivery] = []
        for state in self._chunks.values():
            with state.lock:
                for key in sorted(key for key in state.sums if key[0] == group):
                    deliveries += self._complete_if_all_there(state, key)
        return deliveries

    def set_options(self, group: int, rank: int, options: list[optimizers.Arguments]) -> None:
        """What a member's optimizer says from its next push on. Of a round's members, the lowest rank's hold."""
        if len(options) != len(self._first_options):
            raise ValueError(f"{len(options)} parameter groups, but there are {len(self._first_options)}")
        with self._lock:
            self._options[group, rank] = options

    # Tensors come in

    def expects(self, push: Push) -> bool:
        """Whether the gradient would count; one that would not need not be kept while it is received."""
        with self._lock:
            return self.ledger.round_for(push) is not None

    def buffer(self, chunk: int) -> torch.Tensor:
        """A tensor to receive the chunk's gradient into; push() takes it back. Raises KeyError for another's chunk."""
        state = self._chunks[chunk]
        with self._lock:
            kept = self._pool.get((state.chunk.elements, state.parameters.dtype))
            if kept:
                return kept.pop()
        return torch.empty_like(state.parameters)

    def push(self, push: Push, gradient: torch.Tensor | None) -> list[Delivery]:
        """One chunk of a member's push; `gradient` is 1-D, None where the push is void or bare.

        The deliveries go to the whole group once its last contribution is there, to the member itself where it is
        too late, and to nobody otherwise. Raises KeyError for a chunk that is not this shard's.
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
                total = state.sums[key] = _Sum(one)
            if any(each.push.rank == push.rank for each in total.arrived):
                self._give_back(gradient)
                return []  # the same chunk twice: no honest member does that
            self._add(total, Contribution(push, gradient, now))
            return self._complete_if_all_there(state, key)

    def pull(self, group: int, rank: int, chunk: int) -> Delivery:
        """The newest parameters of a chunk, for one member."""
        state = self._chunks[chunk]
        with state.lock:
            with self._lock:
                version, closed = self.ledger.version, self.ledger.closed_round(group)
            header = {"op": "params", "chunk": chunk, "round": closed, "version": version, "outcome": NEWEST}
            return Delivery(group, rank, header, state.parameters.clone())

    def assign(self, chunk: int, values: torch.Tensor) -> None:
        """Set a chunk's parameters, and forget what its optimizer knew of the old ones."""
        state = self._chunks[chunk]
        with state.lock, torch.no_grad():
            state.parameters.copy_(values)
            state.forget()

    def _add(self, total: _Sum, contribution: Contribution) -> None:
        total.arrived.append(contribution)
        if not self.rules.in_rank_order or self.rules.backup_workers:
            # With backup workers nobody knows yet whose turn is next: see _complete.
            if self.rules.in_rank_order:
                total.waiting[contribution.push.rank] = contribution
            else:
                self._sum(total, contribution.gradient)
            return
        total.waiting[contribution.push.rank] = contribution
        while total.counted in total.waiting:
            self._sum(total, total.waiting.pop(total.counted).gradient)

    def _sum(self, total: _Sum, gradient: torch.Tensor | None) -> None:
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

    def _complete_if_all_there(self, state: _ChunkState, key: tuple[int, int]) -> list[Delivery]:
        total = state.sums[key]
        with self._lock:
            complete = self.ledger.is_complete(total.round, len(total.arrived))
        if not complete:
            return []
        del state.sums[key]
        return self._complete(state, total.round, total)

    def _complete(self, state: _ChunkState, one: Round, total: _Sum) -> list[Delivery]:
        for rank in sorted(total.waiting):
            self._sum(total, total.waiting[rank].gradient)
        pushes = [each.push for each in total.arrived]
        group, chunk = pushes[0].group, state.chunk
        with self._lock:
            outcome = self.ledger.decide(group, one)
            self.ledger.chunk_done(group, one)
            options = self._options.get((group, min(push.rank for push in pushes)), self._first_options)
        counted = [push for push in pushes if not push.void]
        if outcome == ACCEPTED and total.total is not None:
            gradient = total.total.div_(len(counted)) if len(counted) > 1 else total.total
            absent = frozenset.intersection(*(self._absent(push, chunk) for push in counted))
            state.step(gradient.to(state.parameters.dtype), absent, options[chunk.group])
        if total.total is not None and total.total.dtype == state.parameters.dtype:
            self._give_back(total.total)
        now = self._clock()
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

    def _absent(self, push: Push, chunk: Chunk) -> frozenset[int]:
        return frozenset(range(len(chunk.pieces))) if push.bare else push.absent

    def _late(self, state: _ChunkState, push: Push) -> Delivery:
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

    # What outlives the process

    def state(self) -> dict[str, Any]:
        """A copy of parameters, optimizer states, version and counts, fit for torch.load(weights_only=True).

        Each chunk is as one round left it. Where rounds overlap (asynchronous groups) not all chunks are as the same
        round left them, which such a strategy tolerates by its nature.
        """
        chunks: dict[int, dict[str, Any]] = {}
        for number, state in self._chunks.items():
            with state.lock:
                chunks[number] = {
                    "parameters": state.parameters.clone(),
                    "optimizer": _copied(state.optimizer.state_dict()["state"]),
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
        """Take up what state() gave. Raises ValueError, with nothing changed, where it is of another shard."""
        try:
            chunks = saved["chunks"]
            fits = saved["optimizer"] == self.optimizer and chunks.keys() == self._chunks.keys()
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
            with state.lock, torch.no_grad():
                state.parameters.copy_(chunks[number]["parameters"])
                state.forget()
                whole = state.optimizer.state_dict()
                state.optimizer.load_state_dict({**whole, "state": chunks[number]["optimizer"]})
        with self._lock:
            self.ledger.version = version
            seen = self.ledger.counts
            seen.accepted, seen.stale, seen.late, seen.void = counts
            seen.by_group = by_group


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return value
