"""Copies between the CPU and a GPU through pinned memory, in a separate CUDA stream.

A large tensor is copied in pieces through two pinned buffers: while the GPU copies one piece, the CPU copies another
piece. The copies are therefore as fast as pinned memory permits, although they need little pinned memory. Kernels of
other streams run at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

PIECE_BYTES = 32 * 1024 * 1024
"""The size in bytes of each of the two pinned buffers."""

_created: dict[torch.device, PinnedCopies] = {}
_creating = threading.Lock()


class PinnedCopies:
    """Copies tensors to and from one device. Any thread may call the methods, but only one thread copies at a time.

    If the device is the CPU, as in tests, the same pieces are copied without a stream.
    """

    def __init__(self, device: torch.device, piece_bytes: int = PIECE_BYTES) -> None:
        is_gpu = device.type == "cuda"
        self.device = device
        self._piece_bytes = piece_bytes
        self._lock = threading.Lock()
        self._stream = torch.cuda.Stream(device) if is_gpu else None
        self._buffers = [torch.empty(piece_bytes, dtype=torch.uint8, device="cpu", pin_memory=is_gpu) for _ in range(2)]

    def fence(self) -> Any:
        """Returns an event that follows all GPU work issued by the calling thread so far, or None on the CPU."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def to_host(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], fence: Any = None) -> None:
        """Copies tensors to contiguous tensors of equal length on the CPU, and waits until the copies are complete.

        Args:
            pairs: Pairs of (target, source), whose dtypes may differ.
            fence: A result of fence(). The sources are copied after this event. The default is a new fence.
        """
        fence = self.fence() if fence is None else fence
        with self._lock, self._in_stream(fence):
            in_flight: list[tuple[Any, torch.Tensor, torch.Tensor] | None] = [None, None]
            turn = 0
            for target, source in pairs:
                values = source.detach().reshape(-1)
                length = self._length(values)
                for into, part in zip(target.view(-1).split(length), values.split(length)):
                    _take(in_flight[turn])
                    buffer = self._buffers[turn][: part.nbytes].view(part.dtype)
                    buffer.copy_(part, non_blocking=part.device == self.device)
                    in_flight[turn] = self._recorded(), into, buffer
                    turn = 1 - turn
            for each in (turn, 1 - turn):
                _take(in_flight[each])

    def to_device(self, source: torch.Tensor) -> torch.Tensor:
        """Copies a contiguous tensor from the CPU, and returns the complete copy. Call used() before using the copy."""
        with self._lock, self._in_stream(None):
            copied = torch.empty(source.shape, dtype=source.dtype, device=self.device)
            events: list[Any] = [None, None]
            turn = 0
            length = self._length(source)
            for into, part in zip(copied.view(-1).split(length), source.view(-1).split(length)):
                _wait(events[turn])
                buffer = self._buffers[turn][: part.nbytes].view(part.dtype)
                buffer.copy_(part)
                into.copy_(buffer, non_blocking=True)
                events[turn] = self._recorded()
                turn = 1 - turn
            for event in events:
                _wait(event)
        return copied

    def used(self, copied: torch.Tensor) -> None:
        """Records that the calling thread's current stream uses a result of to_device().

        The result may be freed afterwards: its memory is not reused before the stream has finished its current work.
        """
        if self._stream is not None:
            copied.record_stream(torch.cuda.current_stream(self.device))

    def _length(self, values: torch.Tensor) -> int:
        return max(1, self._piece_bytes // int(values.element_size()))

    @contextmanager
    def _in_stream(self, fence: Any) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            if fence is not None:
                self._stream.wait_event(fence)
            yield

    def _recorded(self) -> Any:
        return self._stream.record_event() if self._stream is not None else None


def pinned_copies_of(device: torch.device) -> PinnedCopies:
    """Returns the object that copies from and to a device. All callers share it."""
    with _creating:
        if device not in _created:
            _created[device] = PinnedCopies(device)
        return _created[device]


def _take(copy: tuple[Any, torch.Tensor, torch.Tensor] | None) -> None:
    """Waits for the copy into a pinned buffer, and copies the buffer to its target."""
    if copy is not None:
        event, into, buffer = copy
        _wait(event)
        into.copy_(buffer)


def _wait(event: Any) -> None:
    if event is not None:
        event.synchronize()
