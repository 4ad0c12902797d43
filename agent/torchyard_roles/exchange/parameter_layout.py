"""Where each element of a model lies: parameters in a row, cut into shards (one a server) and chunks (one a message).

    parameters   |--- weight 0 ---|b|------ weight 1 ------|b|-- weight 2 --|
    shards       |------------ 0 ------------|------------ 1 ---------------|
    chunks       |--- 0 ---|--- 1 ---|-- 2 --|--- 3 ---|---- 4 ---|--- 5 ---|

Shards are contiguous and balanced by bytes, so that no server gets the one large embedding and the next the biases.
A chunk never crosses a shard, a dtype or an optimizer's parameter group: it is summed and stepped by itself. Pure:
every rank and every server works it out for itself from the same description, and gets the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from torchyard_roles.errors import UsageProblem

SMALLEST_CHUNK = 64 * 1024
LARGEST_CHUNK = 4 * 1024 * 1024
ADDED = 1 << 32
"""Chunks of parameters that join a layout later have numbers from here on."""
CHUNKS_A_SHARD = 256
"""What a shard is cut into, where the bounds allow: the first and the last chunk travel while nothing overlaps."""
SMALLEST_BEHIND_COMPUTING = 256 * 1024
CHUNKS_BEHIND_COMPUTING = 8
"""The same where all of the exchange is behind computing. There only what each chunk costs in Python is felt, 0.1 ms
or more of the interpreter's lock, for which the training thread waits."""


class Entry(NamedTuple):
    """One parameter, as all sides have to agree on it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    group: int
    """Of the optimizer's parameter groups."""

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def element_bytes(self) -> int:
        return int(dtype_named(self.dtype).itemsize)

    @property
    def bytes(self) -> int:
        return self.elements * self.element_bytes


class Piece(NamedTuple):
    """Elements `start` to `stop` of a parameter, flattened in row-major order."""

    parameter: int
    start: int
    stop: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


class Chunk(NamedTuple):
    """What is pushed, summed, stepped and pulled as one. `number` counts through all shards."""

    number: int
    shard: int
    group: int
    dtype: str
    pieces: tuple[Piece, ...]

    @property
    def elements(self) -> int:
        return sum(piece.elements for piece in self.pieces)

    @property
    def bytes(self) -> int:
        return self.elements * int(dtype_named(self.dtype).itemsize)


@dataclass(frozen=True)
class Layout:
    """The trainable parameters in their order. `whole_parameters`: no shard and no chunk cuts one."""

    entries: tuple[Entry, ...]
    whole_parameters: bool = False

    @classmethod
    def of(
        cls, model: torch.nn.Module, optimizer: torch.optim.Optimizer, whole_parameters: bool = False
    ) -> tuple[Layout, list[torch.nn.Parameter]]:
        """The layout, and the model's parameters in its order.

        A shared parameter counts once, a frozen one not at all. Raises UsageProblem where a trainable parameter is
        missing from the optimizer, or the optimizer trains something that is no parameter of the model: nobody
        would train the one, and the other would differ from rank to rank.
        """
        group_of = {id(held): number for number, group in enumerate(optimizer.param_groups) for held in group["params"]}
        entries: list[Entry] = []
        parameters: list[torch.nn.Parameter] = []
        for name, parameter in model.named_parameters():  # which names a shared one once
            group = group_of.pop(id(parameter), None)
            if not parameter.requires_grad or group is None:
                # Trainable but given to no optimizer: nobody steps it in a single process either.
                continue
            entries.append(Entry(name, tuple(parameter.shape), name_of_dtype(parameter.dtype), group))
            parameters.append(parameter)
        strangers = [held for group in optimizer.param_groups for held in group["params"] if id(held) in group_of]
        if any(held.requires_grad for held in strangers):
            raise UsageProblem(
                "The optimizer trains parameters that are not the model's, so no server would know them.",
                "Put all modules that it trains into one, such as a torch.nn.ModuleDict, and give distribute() that.",
            )
        return cls(tuple(entries), whole_parameters), parameters

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    def shards(self, count: int, weights: Sequence[float] | None = None) -> list[tuple[Piece, ...]]:
        """`count` contiguous shards of equal bytes, or in proportion to `weights`.

        Cut to the element: none is more than one element (`whole_parameters`: half the parameter at its end, at
        either end) off its due. A shard may be empty where there are more shards than elements.
        """
        shares = list(weights) if weights is not None else [1.0] * count
        if count < 1 or len(shares) != count or min(shares) < 0 or sum(shares) <= 0:
            raise ValueError(f"{count} shards cannot be weighted by {weights}")
        whole = sum(shares)
        ends = [self.bytes * share / whole for share in accumulate(shares)]
        ends[-1] = float(self.bytes)
        shards: list[list[Piece]] = [[] for _ in range(count)]
        shard, before = 0, 0  # `before`: bytes up to this parameter
        for number, entry in enumerate(self.entries):
            start = 0
            while start < entry.elements:
                while shard < count - 1 and self._cut(entry, before, ends[shard]) <= start:
                    shard += 1
                stop = (
                    entry.elements if shard == count - 1 else min(entry.elements, self._cut(entry, before, ends[shard]))
                )
                shards[shard].append(Piece(number, start, stop))
                start = stop
            before += entry.bytes
        return [tuple(pieces) for pieces in shards]

    def _cut(self, entry: Entry, before: int, end: float) -> int:
        """How many elements of an entry that begins at byte `before` lie before byte `end`."""
        inside = (end - before) / entry.element_bytes
        if self.whole_parameters:
            return entry.elements if inside >= entry.elements / 2 else 0
        return max(0, round(inside))

    def chunks(self, count: int, chunk_bytes: int | None = None, weights: Sequence[float] | None = None) -> list[Chunk]:
        """All chunks of `count` shards in order; `chunk_bytes` is chosen by the shard's size where it is None.

        A chunk is at most that large, but for a parameter that may not be cut.
        """
        if chunk_bytes is None:
            chunk_bytes = min(LARGEST_CHUNK, max(SMALLEST_CHUNK, self.bytes // count // CHUNKS_A_SHARD))
        chunks: list[Chunk] = []
        for shard, pieces in enumerate(self.shards(count, weights)):
            open_pieces: list[Piece] = []
            room = 0
            for piece in pieces:
                entry = self.entries[piece.parameter]
                start = piece.start
                while start < piece.stop:
                    if open_pieces and (not self._belong(open_pieces[-1], entry) or room < entry.element_bytes):
                        chunks.append(self._chunk(len(chunks), shard, open_pieces))
                        open_pieces = []
                    if not open_pieces:
                        room = chunk_bytes
                    stop = piece.stop
                    if self.whole_parameters:
                        if open_pieces and entry.bytes > room:
                            chunks.append(self._chunk(len(chunks), shard, open_pieces))
                            open_pieces, room = [], chunk_bytes
                    else:
                        stop = min(stop, start + max(1, room // entry.element_bytes))
                    open_pieces.append(Piece(piece.parameter, start, stop))
                    room -= (stop - start) * entry.element_bytes
                    start = stop
            if open_pieces:
                chunks.append(self._chunk(len(chunks), shard, open_pieces))
        return chunks

    def chunk_bytes_behind_computing(self, count: int) -> int:
        """For chunks() of `count` shards that are exchanged while the worker computes."""
        return min(LARGEST_CHUNK, max(SMALLEST_BEHIND_COMPUTING, self.bytes // count // CHUNKS_BEHIND_COMPUTING))

    def by_shard(self, count: int, chunk_bytes: int | None = None) -> list[list[Chunk]]:
        """The chunks of each of `count` shards."""
        shards: list[list[Chunk]] = [[] for _ in range(count)]
        for chunk in self.chunks(count, chunk_bytes):
            shards[chunk.shard].append(chunk)
        return shards

    def _belong(self, last: Piece, entry: Entry) -> bool:
        before = self.entries[last.parameter]
        return (before.dtype, before.group) == (entry.dtype, entry.group)

    def _chunk(self, number: int, shard: int, pieces: list[Piece]) -> Chunk:
        first = self.entries[pieces[0].parameter]
        return Chunk(number, shard, first.group, first.dtype, tuple(pieces))

    def fingerprint(self) -> str:
        """What two sides compare, and what a server makes the layout of again: JSON."""
        return json.dumps(
            {"whole_parameters": self.whole_parameters, "parameters": [list(entry) for entry in self.entries]},
            separators=(",", ":"),
        )

    @classmethod
    def read(cls, fingerprint: str) -> Layout:
        """The layout with that fingerprint. Raises ValueError for what is none."""
        try:
            data: dict[str, Any] = json.loads(fingerprint)
            entries = tuple(
                Entry(str(name), tuple(int(size) for size in shape), str(dtype), int(group))
                for name, shape, dtype, group in data["parameters"]
            )
            whole = bool(data["whole_parameters"])
        except (KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a layout's fingerprint: {error}") from error
        for entry in entries:
            dtype_named(entry.dtype)
            if min(entry.shape, default=0) < 0 or entry.group < 0:
                raise ValueError(f"not a parameter: {entry}")
        return cls(entries, whole)

    def difference(self, other: Layout) -> str:
        """How another's layout differs, in words that follow "it"; empty where it does not."""
        for mine, its in zip(self.entries, other.entries):
            if mine != its:
                return f"has {words(its)} where the chief's has {words(mine)}"
        if len(self.entries) != len(other.entries):
            return f"has {len(other.entries)} trainable parameters where the chief's has {len(self.entries)}"
        return "" if self.whole_parameters == other.whole_parameters else "has another optimizer"


def added_chunks(entry: Entry, count: int, chunk_bytes: int | None, *, whole: bool) -> list[Chunk]:
    """The chunks of one parameter that has joined later, on `count` shards; their pieces are of parameter 0.

    Their shards and numbers follow from its name, shape and dtype alone, so that all sides agree whichever other
    parameters have joined, and in which order. One that is small or may not be cut goes to one shard.
    """
    layout = Layout((entry,), whole)
    if whole or entry.bytes <= SMALLEST_CHUNK:
        shard = _digest(entry.name) % count
        chunks = [chunk._replace(shard=shard) for chunk in layout.chunks(1, entry.bytes)]
    else:
        chunks = layout.chunks(count, chunk_bytes)
    return [chunk._replace(number=ADDED + _digest(f"{entry.name} {chunk.pieces[0].start}")) for chunk in chunks]


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def words(entry: Entry) -> str:
    """It, for a message to the user."""
    shape = "×".join(map(str, entry.shape)) or "one number"
    return f"{entry.name} ({shape}, {entry.dtype}, parameter group {entry.group})"


def name_of_dtype(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).partition(".")[2]


def dtype_named(name: str) -> torch.dtype:
    """torch.float32 for `float32`. Raises ValueError for anything else of torch's."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a dtype of torch {torch.__version__}")
    return dtype
