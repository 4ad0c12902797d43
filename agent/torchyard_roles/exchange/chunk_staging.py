"""Staging of a worker's gradients and parameters as chunks, without copies where possible.

On the CPU, a chunk needs no copy if it is one section of a contiguous tensor, which is true for nearly all bytes of a
large model. Small parameters share chunks and are copied. GPU tensors are copied through pinned memory in a separate
CUDA stream for each GPU, since copies in the default stream and the next step's kernels would wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch

from torchyard_roles.exchange.parameter_layout import Chunk, dtype_named


class Gradient(NamedTuple):
    """The gradient of a chunk to send, 1-D on the CPU, with the numbers of pieces that lack a gradient.

    If all pieces lack a gradient, `values` is None and `absent` is empty.
    """

    values: torch.Tensor | None
    absent: frozenset[int]


class Staging:
    """The chunks of one worker's parameters, a sequence that may grow.

    Args:
        in_place: Whether new parameters are written to the model when they arrive. If not, install() writes them.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], *, in_place: bool) -> None:
        self._parameters = parameters
        self._in_place = in_place
        self._gradients: Sequence[torch.Tensor | None] = []
        self._copies: dict[int, torch.Tensor] = {}
        self._outgoing: dict[int, torch.Tensor] = {}
        self._incoming: dict[int, torch.Tensor] = {}
        self._writing = threading.Lock()
        gpus = dict.fromkeys(each.device for each in parameters if each.device.type == "cuda")
        self._streams = {gpu: torch.cuda.Stream(gpu) for gpu in gpus}
        self._fences: list[tuple[torch.cuda.Stream, torch.cuda.Event]] = []

    def fence(self) -> None:
        """Orders this object's GPU work after all GPU work that the calling thread has issued so far.

        The training thread calls this method before an exchange.
        """
        fences = []
        for gpu, stream in self._streams.items():
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(gpu))
            fences.append((stream, event))
        self._fences = fences

    @contextmanager
    def _on_streams(self) -> Iterator[None]:
        """Runs GPU copies in this object's streams, after the fence, and waits for their end."""
        with ExitStack() as entered:
            fences = self._fences
            for stream, fence in fences:
                entered.enter_context(torch.cuda.stream(stream))
                stream.wait_event(fence)
            yield
            for stream, _ in fences:
                stream.synchronize()

    def offer(self, gradients: Sequence[torch.Tensor | None], *, copied: bool) -> None:
        """Sets the gradients for gradient(), one for each parameter.

        Args:
            copied: Whether the gradients are copied, because the script may change them later.
        """
        if not copied:
            self._gradients = gradients
            return
        kept: list[torch.Tensor | None] = []
        for number, gradient in enumerate(gradients):
            copy = self._copies.get(number)
            if gradient is not None:
                if copy is None:
                    copy = self._copies[number] = torch.empty_like(gradient, memory_format=torch.contiguous_format)
                copy.copy_(gradient)
            kept.append(copy if gradient is not None else None)
        self._gradients = kept

    def gradient(self, chunk: Chunk) -> Gradient:
        """Returns a chunk of the offered gradients. Pieces without a gradient are zeros and listed as absent."""
        sources = [self._gradients[piece.parameter] for piece in chunk.pieces]
        if all(source is None for source in sources):
            return Gradient(None, frozenset())
        if len(sources) == 1 and sources[0] is not None and _is_flat(sources[0], chunk):
            (piece,) = chunk.pieces
            return Gradient(sources[0].view(-1)[piece.start : piece.stop], frozenset())
        out = self._buffer(self._outgoing, chunk)
        start = 0
        absent = []
        with self._on_streams():
            for number, (piece, source) in enumerate(zip(chunk.pieces, sources)):
                part = out[start : start + piece.elements]
                start += piece.elements
                if source is None:
                    absent.append(number)
                    part.zero_()
                else:
                    part.copy_(source.reshape(-1)[piece.start : piece.stop], non_blocking=True)
        return Gradient(out, frozenset(absent))

    def values(self, chunk: Chunk) -> torch.Tensor:
        """Returns a copy of a chunk of the current parameters."""
        parts = [
            self._parameters[piece.parameter].detach().reshape(-1)[piece.start : piece.stop] for piece in chunk.pieces
        ]
        return torch.cat(parts).cpu()

    def target(self, chunk: Chunk) -> torch.Tensor:
        """Returns the tensor into which a chunk's new parameters are received."""
        if self._in_place and self._is_direct(chunk):
            (piece,) = chunk.pieces
            return self._parameters[piece.parameter].detach().view(-1)[piece.start : piece.stop]
        return self._buffer(self._incoming, chunk)

    def arrived(self, chunk: Chunk) -> None:
        """Handles a chunk whose target is filled."""
        if self._in_place and not self._is_direct(chunk):
            self._write(chunk)

    def install(self, chunks: Sequence[Chunk]) -> None:
        """Writes received chunks to the model, unless they were written when they arrived."""
        if not self._in_place:
            self.fence()  # Kernels of this step may still read the old parameters.
            for chunk in chunks:
                self._write(chunk)

    def _write(self, chunk: Chunk) -> None:
        values, start = self._incoming[chunk.number], 0
        with self._on_streams():
            for piece in chunk.pieces:
                part = values[start : start + piece.elements]
                start += piece.elements
                parameter = self._parameters[piece.parameter].detach()
                part = part.to(parameter.device, non_blocking=True)
                if parameter.is_contiguous():
                    place = parameter.view(-1)[piece.start : piece.stop]
                    if not torch.equal(place, part):  # Unchanged values may still be in an autograd graph.
                        place.copy_(part)
                else:
                    # For a parameter in a different layout, such as channels_last, a row-major copy is changed and
                    # written back by one thread at a time.
                    with self._writing:
                        rows = parameter.contiguous()
                        place = rows.view(-1)[piece.start : piece.stop]
                        if not torch.equal(place, part):
                            place.copy_(part)
                            parameter.copy_(rows)

    def _is_direct(self, chunk: Chunk) -> bool:
        return len(chunk.pieces) == 1 and _is_flat(self._parameters[chunk.pieces[0].parameter], chunk)

    def _buffer(self, buffers: dict[int, torch.Tensor], chunk: Chunk) -> torch.Tensor:
        buffer = buffers.get(chunk.number)
        if buffer is None:
            buffer = torch.empty(
                chunk.elements, dtype=dtype_named(chunk.dtype), device="cpu", pin_memory=bool(self._streams)
            )
            buffers[chunk.number] = buffer
        return buffer


def _is_flat(tensor: torch.Tensor, chunk: Chunk) -> bool:
    return bool(tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.dtype == dtype_named(chunk.dtype))


class PackedTensors:
    """Tensors that no optimizer steps, such as buffers, packed into one tensor of bytes."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = [tensor for tensor in tensors if tensor.numel()]

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)

    def packed(self) -> torch.Tensor:
        """Returns a packed copy as a tensor of torch.uint8."""
        return torch.cat([one.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for one in self._tensors])

    def unpack(self, row: torch.Tensor) -> None:
        """Fills the tensors with the values that packed() has returned in another process."""
        start = 0
        for tensor in self._tensors:
            size = tensor.numel() * tensor.element_size()
            values = row[start : start + size].clone().view(tensor.dtype)  # The clone is aligned for its dtype.
            start += size
            values = values.view(tensor.shape).to(tensor.device)
            if not torch.equal(tensor, values):
                # The tensor is changed through `.data`, whose changes autograd does not track, as in batch norm's own
                # updates. Otherwise autograd would reject a backward pass whose graph has saved the buffer, although
                # the pass does not use its values.
                tensor.data.copy_(values)
