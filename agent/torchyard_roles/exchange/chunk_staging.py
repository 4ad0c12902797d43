"""Stages a worker's gradients and parameters as chunks, without copies where possible.

A chunk on the CPU is not copied if it is one section of a contiguous tensor. This is the case for nearly all bytes of a
large model. Small parameters share chunks and are copied. GPU tensors are copied through pinned memory in a separate
CUDA stream for each GPU, because copies in the default stream and the kernels of the next step would wait for each
other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch

from torchyard_roles.exchange.parameter_layout import Chunk, dtype_named


class Gradient(NamedTuple):
    """The gradient of a chunk, as a 1-D CPU tensor, and the numbers of the pieces that have no gradient.

    If no piece has a gradient, `values` is None and `absent` is empty.
    """

    values: torch.Tensor | None
    absent: frozenset[int]


class Staging:
    """Stages one worker's gradients and parameters as chunks. Chunks may be added later.

    Args:
        in_place: Whether new parameters are written to the model as soon as they are received. If not, install() writes
            them.
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
        """Makes this object's GPU copies wait for all GPU work that the calling thread has issued so far.

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
        """Runs the GPU copies of a `with` block in this object's streams after the fence, and waits for them."""
        with ExitStack() as entered:
            fences = self._fences
            for stream, fence in fences:
                entered.enter_context(torch.cuda.stream(stream))
                stream.wait_event(fence)
            yield
            for stream, _ in fences:
                stream.synchronize()

    def offer(self, gradients: Sequence[torch.Tensor | None], *, copied: bool) -> None:
        """Sets the gradients that gradient() returns, one for each parameter.

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
        """Returns a chunk of the offered gradients. Pieces that have no gradient are zero and are listed as absent."""
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
        """Returns a copy of the current parameters in a chunk."""
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
        """Writes a received chunk to the model if `in_place` is true and target() was not the model's own memory."""
        if self._in_place and not self._is_direct(chunk):
            self._write(chunk)

    def install(self, chunks: Sequence[Chunk]) -> None:
        """Writes received chunks to the model, unless they were written when they were received."""
        if not self._in_place:
            self.fence()  # GPU kernels of the current step may still read the old parameters.
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
                    # An autograd graph may still refer to unchanged values, so these are not overwritten.
                    if not torch.equal(place, part):
                        place.copy_(part)
                else:
                    # If the parameter is not contiguous, as in channels_last, a row-major copy is changed and written
                    # back by one thread at a time.
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
    """Tensors that no optimizer updates, such as buffers, packed into one tensor of bytes."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = [tensor for tensor in tensors if tensor.numel()]

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)

    def packed(self) -> torch.Tensor:
        """Returns a packed copy of the tensors as a tensor of torch.uint8."""
        return torch.cat([one.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for one in self._tensors])

    def unpack(self, row: torch.Tensor) -> None:
        """Fills the tensors with packed values from another process."""
        start = 0
        for tensor in self._tensors:
            size = tensor.numel() * tensor.element_size()
            # The clone has the alignment that the dtype needs.
            values = row[start : start + size].clone().view(tensor.dtype)
            start += size
            values = values.view(tensor.shape).to(tensor.device)
            if not torch.equal(tensor, values):
                # The tensor is changed through `.data`, whose changes autograd does not track, as in batch norm's own
                # updates. Otherwise autograd would reject a backward pass whose graph contains the buffer, even if the
                # pass does not use the buffer's values.
                tensor.data.copy_(values)
