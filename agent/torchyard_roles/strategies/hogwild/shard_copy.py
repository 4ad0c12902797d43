"""A worker group's copy of one shard, which is exchanged while local updates continue.

    begin      snapshot = parameters                      training thread, between two steps
    exchange   delta = snapshot − seen is sent; the master's value M is received      exchange thread
    arrive     seen = M                                   exchange thread
    apply      parameters = M + (parameters − snapshot)   training thread, between two steps

Updates between begin and apply stay in the parameters and are part of the next delta, so each update is applied exactly
once. If there are no such updates, the parameters are bitwise equal to M after apply.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

import torch

from torchyard_roles.exchange.parameter_layout import Chunk, dtype_named

GENERATION_BITS = 32
"""Number of low bits of an exchange number that count exchanges.

The higher bits contain the group's generation, so the numbers increase with each restart.
"""


class View(NamedTuple):
    """The value of a master at one version, with the number of each group's last exchange that it includes."""

    version: int
    applied: dict[int, int]
    values: list[torch.Tensor]
    """The value of the master, as one flat tensor per chunk."""


def empty_chunks(chunks: list[Chunk]) -> list[torch.Tensor]:
    """Allocates one flat tensor on the CPU for each chunk."""
    return [torch.empty(chunk.elements, dtype=dtype_named(chunk.dtype), device="cpu") for chunk in chunks]


class ShardCopy:
    """The copy of one shard on a worker group. It takes three times the shard's size in CPU memory."""

    def __init__(self, number: int, chunks: list[Chunk], parameters: list[torch.nn.Parameter], generation: int) -> None:
        self.number = number
        self.version = 0
        self.applied: dict[int, int] = {}
        self.exchanges = generation << GENERATION_BITS
        """The number of the last exchange."""
        self.updates = 0
        """The number of local updates since the last exchange began."""
        self.staleness = 0
        self.under_way = False
        self.has_arrived = False
        self.has_failed = False
        """Whether the current exchange has failed and is not attempted again."""
        self.changed = threading.Condition()
        """Guards the fields above, and is notified when an exchange begins, arrives or fails."""
        self._chunks = chunks
        self._parameters = parameters
        self._seen, self._snapshot, self._wire = (empty_chunks(chunks) for _ in range(3))

    # The training thread calls the following methods.

    def load(self, view: View) -> None:
        """Sets this copy and the model's parameters to a value of the master."""
        with self.changed:
            self.version, self.applied = view.version, dict(view.applied)
            for seen, value in zip(self._seen, view.values):
                seen.copy_(value)
        scatter(self._chunks, self._parameters, self._seen)

    def look(self) -> tuple[bool, bool]:
        """Returns whether a value has been received, and whether no exchange is in progress. Reads both atomically.

        If both were read separately, a value could be received unnoticed in between, and the next delta would revert
        it.
        """
        with self.changed:
            return self.has_arrived, not self.under_way

    def begin(self) -> None:
        """Begins an exchange. The value of the previous exchange must already be applied."""
        gather(self._chunks, self._parameters, self._snapshot)
        with self.changed:
            self.exchanges += 1
            self.updates = 0
            self.under_way = True
            self.changed.notify_all()

    def apply(self) -> None:
        """Applies the received value to the parameters."""
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
        """Returns the current parameters, as the initial value of a master."""
        tensors = empty_chunks(self._chunks)
        gather(self._chunks, self._parameters, tensors)
        return View(0, {}, tensors)

    def wait(self, timeout_s: float) -> bool:
        """Waits until the exchange is done or has failed, for at most `timeout_s`. Returns whether it is done."""
        with self.changed:
            self.changed.wait_for(lambda: not self.under_way or self.has_failed, timeout_s)
            return not self.under_way

    # The exchange thread calls the following methods.

    def delta(self) -> list[torch.Tensor]:
        """Returns the change of the parameters from the last received value to the beginning of this exchange.

        This method may be called again when the exchange is attempted again.
        """
        for wire, snapshot, seen in zip(self._wire, self._snapshot, self._seen):
            torch.sub(snapshot, seen, out=wire)
        return self._wire

    def arrive(self, version: int, applied: dict[int, int], staleness: int) -> None:
        """Completes the exchange. The master's value must be in the tensors that delta() returned."""
        with self.changed:
            self._seen, self._wire = self._wire, self._seen
            self.version, self.applied, self.staleness = version, applied, staleness
            self.under_way, self.has_arrived = False, True
            self.changed.notify_all()

    def fail(self) -> None:
        with self.changed:
            self.has_failed = True
            self.changed.notify_all()

    # Server threads call the following method.

    def read(self, tensors: list[torch.Tensor]) -> tuple[int, dict[int, int]]:
        """Copies the last received value of the master into `tensors`, and returns its version and exchange numbers."""
        with self.changed:
            for tensor, seen in zip(tensors, self._seen):
                tensor.copy_(seen)
            return self.version, dict(self.applied)


def gather(chunks: Iterable[Chunk], parameters: list[torch.nn.Parameter], tensors: list[torch.Tensor]) -> None:
    """Copies the parameters into flat tensors, one for each chunk."""
    for chunk, tensor in zip(chunks, tensors):
        at = 0
        for parameter, start, stop in chunk.pieces:
            here = at + stop - start
            tensor[at:here].copy_(_flat(parameters[parameter])[0][start:stop])
            at = here


def scatter(chunks: Iterable[Chunk], parameters: list[torch.nn.Parameter], tensors: list[torch.Tensor]) -> None:
    """Copies flat tensors, one for each chunk, into the parameters."""
    for chunk, tensor in zip(chunks, tensors):
        at = 0
        for parameter, start, stop in chunk.pieces:
            here = at + stop - start
            flat, whole = _flat(parameters[parameter])
            flat[start:stop].copy_(tensor[at:here])
            _put_back(parameters[parameter], whole)
            at = here


def _flat(parameter: torch.nn.Parameter) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns a parameter's elements in row-major order, and the copy that contains them, or None if they are a view.

    The elements are a view of the parameter where possible. A parameter in another memory layout, such as
    channels_last, is copied, and _put_back() writes the copy back.
    """
    data = parameter.detach()
    if data.is_contiguous():
        return data.view(-1), None
    whole = data.contiguous()
    return whole.view(-1), whole


def _put_back(parameter: torch.nn.Parameter, whole: torch.Tensor | None) -> None:
    if whole is not None:
        parameter.detach().copy_(whole)
