"""A worker group's copy of one shard: local updates go on while an exchange of what they have added is under way.

    begin      snapshot = parameters                      in the training's thread, between two steps
    meanwhile  delta = snapshot − seen, sent; the master's value M comes back     in the link's thread
    arrive     seen = M                                   in the link's thread
    apply      parameters = M + (parameters − snapshot)   in the training's thread, between two steps

What was added between begin and apply stays in the parameters, and is part of the next delta: nothing is lost, and
nothing counts twice. Where nothing was, the parameters are M to the last bit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch

from torchyard_roles.exchange.parameter_layout import Chunk
from torchyard_roles.strategies.hogwild.delta_server import View, empty_chunks

GENERATION_BITS = 32
"""A group that was started again numbers its exchanges above all of its earlier ones."""


class ShardCopy:
    """`seen` is the newest value of the master that has come in; three times the shard's bytes, on the CPU."""

    def __init__(self, number: int, chunks: list[Chunk], parameters: list[torch.nn.Parameter], generation: int) -> None:
        self.number = number
        self.version = 0
        self.applied: dict[int, int] = {}
        self.exchanges = generation << GENERATION_BITS
        """The number of the last exchange that was begun."""
        self.updates = 0
        """Local updates since then."""
        self.staleness = 0
        self.under_way = False
        self.has_arrived = False
        self.has_failed = False
        """Whether the exchange under way will never be done."""
        self.changed = threading.Condition()
        """Guards all of the above; notified when an exchange begins, and when its answer arrives or never will."""
        self._chunks = chunks
        self._parameters = parameters
        self._seen, self._snapshot, self._wire = (empty_chunks(chunks) for _ in range(3))

    # in the training's thread

    def load(self, view: View) -> None:
        """Start from a view of the master."""
        with self.changed:
            self.version, self.applied = view.version, dict(view.applied)
            for seen, value in zip(self._seen, view.values):
                seen.copy_(value)
        scatter(self._chunks, self._parameters, self._seen)

    def look(self) -> tuple[bool, bool]:
        """(`has_arrived`, whether no exchange is under way), both of one moment: read one after the other, an answer
        that comes in between would be passed over, and what others have added be taken away from them again."""
        with self.changed:
            return self.has_arrived, not self.under_way

    def begin(self) -> None:
        """Where none is under way, and what has arrived is applied."""
        gather(self._chunks, self._parameters, self._snapshot)
        with self.changed:
            self.exchanges += 1
            self.updates = 0
            self.under_way = True
            self.changed.notify_all()

    def apply(self) -> None:
        """Take what has arrived into the parameters."""
        for chunk, seen, snapshot in zip(self._chunks, self._seen, self._snapshot):
            at = 0
            for parameter, start, stop in chunk.pieces:
                here = at + stop - start
                flat, whole = _flat(self._parameters[parameter])
                now = flat[start:stop]
                now.sub_(snapshot[at:here].to(now.device)).add_(seen[at:here].to(now.device))
                _put_back(self._parameters[parameter], whole)
                at = here
        with self.changed:
            self.has_arrived = False

    def value(self) -> View:
        """What the parameters are now, as a master's start."""
        tensors = empty_chunks(self._chunks)
        gather(self._chunks, self._parameters, tensors)
        return View(0, {}, tensors)

    def wait(self, timeout_s: float) -> bool:
        """Whether no exchange is under way, at the latest after `timeout_s`, and at once where it has failed."""
        with self.changed:
            self.changed.wait_for(lambda: not self.under_way or self.has_failed, timeout_s)
            return not self.under_way

    # in the link's thread

    def delta(self) -> list[torch.Tensor]:
        """What the parameters had moved when the exchange began. Made anew for another attempt, without a loss."""
        for wire, snapshot, seen in zip(self._wire, self._snapshot, self._seen):
            torch.sub(snapshot, seen, out=wire)
        return self._wire

    def arrive(self, version: int, applied: dict[int, int], staleness: int) -> None:
        """The master's value stands in the tensors that delta() gave."""
        with self.changed:
            self._seen, self._wire = self._wire, self._seen
            self.version, self.applied, self.staleness = version, applied, staleness
            self.under_way, self.has_arrived = False, True
            self.changed.notify_all()

    def fail(self) -> None:
        with self.changed:
            self.has_failed = True
            self.changed.notify_all()

    # in a server's thread

    def read(self, tensors: list[torch.Tensor]) -> tuple[int, dict[int, int]]:
        """Copy what was last seen of the master, for a group that has to seed it again."""
        with self.changed:
            for tensor, seen in zip(tensors, self._seen):
                tensor.copy_(seen)
            return self.version, dict(self.applied)


def gather(chunks: Iterable[Chunk], parameters: list[torch.nn.Parameter], tensors: list[torch.Tensor]) -> None:
    """Copy the parameters' elements into one flat tensor a chunk."""
    for chunk, tensor in zip(chunks, tensors):
        at = 0
        for parameter, start, stop in chunk.pieces:
            here = at + stop - start
            tensor[at:here].copy_(_flat(parameters[parameter])[0][start:stop])
            at = here


def scatter(chunks: Iterable[Chunk], parameters: list[torch.nn.Parameter], tensors: list[torch.Tensor]) -> None:
    """The other way round."""
    for chunk, tensor in zip(chunks, tensors):
        at = 0
        for parameter, start, stop in chunk.pieces:
            here = at + stop - start
            flat, whole = _flat(parameters[parameter])
            flat[start:stop].copy_(tensor[at:here])
            _put_back(parameters[parameter], whole)
            at = here


def _flat(parameter: torch.nn.Parameter) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A parameter's elements in row-major order: its own memory, or a copy that has to be put back (channels_last)."""
    data = parameter.detach()
    if data.is_contiguous():
        return data.view(-1), None
    whole = data.contiguous()
    return whole.view(-1), whole


def _put_back(parameter: torch.nn.Parameter, whole: torch.Tensor | None) -> None:
    if whole is not None:
        parameter.detach().copy_(whole)
