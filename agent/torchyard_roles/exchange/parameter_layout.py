"""The layout of a model: its parameters in order, divided into shards (one per server) and chunks (one per message).

    parameters   |--- weight 0 ---|b|------ weight 1 ------|b|-- weight 2 --|
    shards       |------------ 0 ------------|------------ 1 ---------------|
    chunks       |--- 0 ---|--- 1 ---|-- 2 --|--- 3 ---|---- 4 ---|--- 5 ---|

Shards are contiguous and balanced by bytes. A chunk contains elements of only one shard, dtype and parameter group of
the optimizer, so it can be summed and stepped independently. Every rank and server computes the same layout from the
same description.
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
from torchyard_roles.exchange.tensor_connection import dtype_name

SMALLEST_CHUNK = 64 * 1024
LARGEST_CHUNK = 4 * 1024 * 1024
ADDED = 1 << 32
"""The smallest chunk number of parameters that are added to a layout later."""
CHUNKS_A_SHARD = 256
"""Number of chunks into which a shard is divided, unless the chunks would be smaller or larger than allowed.

The exchange of the first and the last chunk does not overlap with other work, so more chunks increase the overlap.
"""
SMALLEST_BEHIND_COMPUTING = 256 * 1024
CHUNKS_BEHIND_COMPUTING = 8
"""Number of chunks into which a shard is divided if its exchange overlaps with computing.

Fewer chunks are better in this case, because each chunk holds the GIL for 0.1 ms or more, during which the training
thread waits.
"""


class Entry(NamedTuple):
    """The description of one parameter, which is identical on workers and servers."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    group: int
    """The index of the optimizer's parameter group that contains the parameter."""

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
    """The elements `start` to `stop` of a parameter, flattened in row-major order."""

    parameter: int
    start: int
    stop: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


class Chunk(NamedTuple):
    """A part of the parameters that is pushed, summed, stepped and pulled as one message.

    `number` is unique over all shards.
    """

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
    """The trainable parameters of a model in order, and their division into shards and chunks.

    Args:
        whole_parameters: Whether each parameter must be in one shard and one chunk.
    """

    entries: tuple[Entry, ...]
    whole_parameters: bool = False

    @classmethod
    def of(
        cls, model: torch.nn.Module, optimizer: torch.optim.Optimizer, whole_parameters: bool = False
    ) -> tuple[Layout, list[torch.nn.Parameter]]:
        """Returns the layout of a model, and the model's parameters in the order of the layout.

        A shared parameter is counted once. Frozen parameters, and parameters that no optimizer trains, are omitted.
        Raises UsageProblem if the optimizer trains tensors that are not parameters of the model.
        """
        group_of = {id(held): number for number, group in enumerate(optimizer.param_groups) for held in group["params"]}
        entries: list[Entry] = []
        parameters: list[torch.nn.Parameter] = []
        for name, parameter in model.named_parameters():  # named_parameters() yields a shared parameter only once.
            group = group_of.pop(id(parameter), None)
            if not parameter.requires_grad or group is None:
                # The optimizer does not update this parameter, so it is not part of the layout.
                continue
            entries.append(Entry(name, tuple(parameter.shape), dtype_name(parameter.dtype), group))
            parameters.append(parameter)
        foreign = [held for group in optimizer.param_groups for held in group["params"] if id(held) in group_of]
        if any(held.requires_grad for held in foreign):
            raise UsageProblem(
                "The optimizer trains parameters that do not belong to the model, so no server would have them.",
                "Combine all modules that it trains, for example in a torch.nn.ModuleDict, and pass that to "
                "distribute().",
            )
        return cls(tuple(entries), whole_parameters), parameters

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    def shards(self, count: int, weights: Sequence[float] | None = None) -> list[tuple[Piece, ...]]:
        """Divides the parameters into `count` contiguous shards of equal size in bytes, or in proportion to `weights`.

        The size of each shard is exact to one element or, with `whole_parameters`, to half a parameter at each end.
        Shards may be empty, for example if there are more shards than elements.
        """
        shares = list(weights) if weights is not None else [1.0] * count
        if count < 1 or len(shares) != count or min(shares) < 0 or sum(shares) <= 0:
            raise ValueError(f"{count} shards cannot be weighted by {weights}")
        whole = sum(shares)
        ends = [self.bytes * share / whole for share in accumulate(shares)]
        ends[-1] = float(self.bytes)
        shards: list[list[Piece]] = [[] for _ in range(count)]
        shard, before = 0, 0  # `before` is the number of bytes before the current parameter.
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
        """Returns the rounded number of elements of an entry that lie before byte `end` of the model.

        `before` is the byte at which the entry begins. With `whole_parameters`, the result is either 0 or the number of
        elements of the entry.
        """
        inside = (end - before) / entry.element_bytes
        if self.whole_parameters:
            return entry.elements if inside >= entry.elements / 2 else 0
        return max(0, round(inside))

    def chunks(self, count: int, chunk_bytes: int | None = None) -> list[Chunk]:
        """Divides `count` shards into chunks, and returns all chunks in order.

        Args:
            chunk_bytes: The maximum size of a chunk in bytes, except for a parameter that must not be divided. If None,
                it is derived from the size of a shard.
        """
        if chunk_bytes is None:
            chunk_bytes = min(LARGEST_CHUNK, max(SMALLEST_CHUNK, self.bytes // count // CHUNKS_A_SHARD))
        chunks: list[Chunk] = []
        for shard, pieces in enumerate(self.shards(count)):
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
        """Returns the maximum size of chunks for `count` shards whose exchange overlaps with computing."""
        return min(LARGEST_CHUNK, max(SMALLEST_BEHIND_COMPUTING, self.bytes // count // CHUNKS_BEHIND_COMPUTING))

    def by_shard(self, count: int, chunk_bytes: int | None = None) -> list[list[Chunk]]:
        """Returns a list of chunks for each of `count` shards."""
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
        """Returns the layout as JSON, for comparison and for read()."""
        return json.dumps(
            {"whole_parameters": self.whole_parameters, "parameters": [list(entry) for entry in self.entries]},
            separators=(",", ":"),
        )

    @classmethod
    def read(cls, fingerprint: str) -> Layout:
        """Restores the layout from its fingerprint. Raises ValueError if the fingerprint is invalid."""
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
        """Returns how another layout differs from this one, or "" if both are equal.

        The text is a clause whose subject "it" is the other layout.
        """
        for mine, its in zip(self.entries, other.entries):
            if mine != its:
                return f"has {words(its)} where the chief's has {words(mine)}"
        if len(self.entries) != len(other.entries):
            return f"has {len(other.entries)} trainable parameters where the chief's has {len(self.entries)}"
        return "" if self.whole_parameters == other.whole_parameters else "has another optimizer"


def added_chunks(entry: Entry, count: int, chunk_bytes: int | None, *, whole: bool) -> list[Chunk]:
    """Returns the chunks of a parameter that is added later, for `count` shards. Their pieces refer to parameter 0.

    The chunks' shards and numbers depend only on the parameter's name, shape and dtype, so all processes compute the
    same chunks regardless of other added parameters. A parameter that is small or must stay whole is assigned to one
    shard.
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
    """Returns a description of the parameter for messages."""
    shape = "×".join(map(str, entry.shape)) or "one number"
    return f"{entry.name} ({shape}, {entry.dtype}, parameter group {entry.group})"


def dtype_named(name: str) -> torch.dtype:
    """Returns the dtype with this name, such as torch.float32 for `float32`. Raises ValueError if there is none."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a dtype of torch {torch.__version__}")
    return dtype
