"""Buckets: gradients that are exchanged as one flat tensor, in the same order on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch

from torchyard_roles.errors import UsageProblem

FIRST_BUCKET_BYTES = 1024 * 1024
"""Size in bytes of the first bucket. It is small so that the exchange starts early, as in DistributedDataParallel."""
BUCKET_BYTES = 25 * 1024 * 1024

Average = Callable[[torch.Tensor, int, int], Callable[[], object]]
"""A function that starts averaging a flat tensor over all ranks.

Its arguments are the tensor, the round number and the bucket number. It returns a function that waits until the mean is
in the tensor.
"""


class Entry:
    """A parameter with its state in the current exchange.

    Attributes:
        fired: Whether the parameter's gradient was accumulated since the last exchange.
        sparse: Whether the parameter ever had a sparse gradient.
    """

    __slots__ = ("bucket", "fired", "handle", "name", "number", "parameter", "sparse")

    def __init__(self, number: int, name: str, parameter: torch.nn.Parameter) -> None:
        self.number = number
        self.name = name
        self.parameter = parameter
        self.bucket: Bucket | None = None
        self.fired = False
        self.sparse = False
        self.handle: Any = None


class Bucket:
    """A group of parameters whose gradients are exchanged together as one flat tensor.

    The flat tensor is allocated at the first exchange.
    """

    def __init__(self, section: Section, entries: list[Entry]) -> None:
        self.section = section
        self.entries = entries
        self.is_sparse = entries[0].sparse
        """Whether gradients of the bucket were sparse earlier. Such gradients are not sent as one flat tensor."""
        self.number = 0
        self.views: list[torch.Tensor] = []
        self._flat: torch.Tensor | None = None
        self.fired = 0
        """The number of parameters with a gradient in this pass."""
        self.touched = False
        """Whether the bucket has gradients that have not been averaged."""
        self.late = False
        """Whether gradients were accumulated after the bucket was sent."""
        self.wait: Callable[[], object] | None = None
        for entry in entries:
            entry.bucket = self

    def filled(self, factor: float) -> torch.Tensor:
        """Returns the flat tensor with the gradients times `factor`. Missing gradients are zeros."""
        if self._flat is None:
            first = self.entries[0].parameter
            size = sum(entry.parameter.numel() for entry in self.entries)
            self._set_flat(torch.empty(size, dtype=first.dtype, device=first.device))
            assert self._flat is not None
        with torch.no_grad():
            for view, entry in zip(self.views, self.entries):
                gradient = entry.parameter.grad
                if gradient is None or gradient.is_sparse:
                    view.zero_()
                elif gradient.dtype == view.dtype and gradient.device == view.device:
                    # A single call scales and copies the gradient, so the gradient is read only once.
                    torch.mul(gradient.detach(), factor, out=view)
                else:
                    raise UsageProblem(
                        f"The gradient of {entry.name} is {gradient.dtype} on {gradient.device}, but the parameter "
                        f"was {view.dtype} on {view.device} when distribute() was called.",
                        "Convert and move the model before distribute().",
                    )
        return self._flat

    def _set_flat(self, flat: torch.Tensor) -> None:
        parameters = [entry.parameter for entry in self.entries]
        parts = flat.split([parameter.numel() for parameter in parameters])
        self._flat, self.views = flat, [part.view(each.shape) for part, each in zip(parts, parameters)]

    def receive(self, part: torch.Tensor) -> None:
        """Sets the flat tensor to the bytes of another rank's flat tensor."""
        first = self.entries[0].parameter
        self._set_flat(part.view(first.dtype).to(first.device))

    @property
    def flat(self) -> torch.Tensor:
        """The flat tensor. filled() or receive() must have been called before."""
        assert self._flat is not None
        return self._flat

    def withdraw(self) -> None:
        """Resets the bucket so that it can be sent again, with a new flat tensor."""
        self.wait = None
        self._flat = None

    def begin(self) -> None:
        """Prepares the bucket for the next backward pass."""
        self.fired = 0
        self.touched = self.late = False
        self.wait = None
        for entry in self.entries:
            entry.fired = False


class Section:
    """Parameters that were added together, such as those of an optimizer.

    All ranks send the buckets of a section in the same order.
    """

    def __init__(self, entries: list[Entry], average: Average, bucket_bytes: int) -> None:
        self.average = average
        self.rounds = 0
        self.order: list[Entry] = []
        """Entries in the order in which their gradients arrived in this pass."""
        self.buckets: list[Bucket] = []
        self._bucket_bytes = bucket_bytes
        self._next = 0
        """The index of the first bucket that has not been sent in this pass."""
        self.arrange(list(reversed(entries)))

    def arrange(self, entries: Sequence[Entry]) -> None:
        """Creates the buckets from `entries`, which are in the order in which their gradients are expected."""
        open_: dict[tuple[Any, ...], tuple[list[Entry], int]] = {}
        runs: list[list[Entry]] = []
        limit = min(FIRST_BUCKET_BYTES, self._bucket_bytes)
        for entry in entries:
            parameter = entry.parameter
            kind = (parameter.device, parameter.dtype, entry.sparse, parameter.requires_grad)
            run, size = open_.pop(kind, ([], 0))
            run.append(entry)
            size += parameter.numel() * parameter.element_size()
            if size < limit:
                open_[kind] = run, size
            else:
                runs.append(run)
                limit = self._bucket_bytes
        runs += [run for run, _ in open_.values()]
        place = {id(entry): number for number, entry in enumerate(entries)}
        # Frozen parameters come last, because a bucket is sent only after all buckets before it.
        runs.sort(key=lambda run: (not run[0].parameter.requires_grad, place[id(run[-1])]))
        self.buckets = [Bucket(self, run) for run in runs]

    def set_buckets(self, buckets: Sequence[list[Entry]]) -> None:
        """Creates one bucket for each list of entries. The lists come from the state of another rank."""
        self.buckets = [Bucket(self, bucket) for bucket in buckets]
        self.begin()

    def ready(self) -> Iterator[Bucket]:
        """Yields the next buckets in order, up to the first one whose gradients are incomplete."""
        while self._next < len(self.buckets):
            bucket = self.buckets[self._next]
            if bucket.fired < len(bucket.entries):
                return
            self._next += 1
            yield bucket

    def begin(self) -> None:
        """Prepares the section for the next backward pass."""
        self.order = []
        self._next = 0
        for bucket in self.buckets:
            bucket.begin()
