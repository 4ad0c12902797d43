"""Encodings of floating-point tensors for slow links: unchanged, bfloat16, and integers with a scale per block.

An integer encoding divides a tensor into blocks of 256 values. A block is sent as a scale and 256 integers, which take
260 bytes for int8 and 132 bytes for int4 (two integers per byte). The scale is the largest magnitude in the block
divided by the largest integer, in float32. Values are rounded to the nearest integer, so the error is at most half the
scale. The last block may be shorter. A block with a value that is not finite decodes to NaN.

Tensors are processed in pieces that fit in the CPU cache. Encoded tensors have the dtype torch.uint8, and cut() divides
them between blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

BLOCK = 256
SCALE_BYTES = 4
PIECE_BLOCKS = 128
"""Number of blocks in a piece: 128 KiB of float32, the largest size that torch does not divide among threads."""
MESSAGES = 64
"""Number of messages into which a slice is divided, within the limits below.

The last averages can be sent only after the last pseudo-gradients have arrived. An exchange therefore takes longer than
the transfer of its bytes, by the time that one message takes. For fragments of 7.5 MB between four groups at 200
Mbit/s, an exchange with eight messages of 256 KiB per slice took 0.53 s. The transfer of the bytes alone takes 0.48 s.
"""
SMALLEST_MESSAGE, LARGEST_MESSAGE = 32 * BLOCK, 256 * BLOCK
"""Limits of the number of elements in a message, except in the last message of a slice: 32 KiB and 256 KiB of float32.

Messages up to the upper limit are summed as fast as the network delivers them.
"""
SMALLEST_SCALE = 2.0**-126
"""Smallest scale. It ensures that neither a scale nor its reciprocal is 0, infinite or subnormal."""
LARGEST = {"int8": 127, "int4": 7}
WIRES = ("float32", "bfloat16", *LARGEST)


class WireCodec:
    """The codec for one of WIRES. `float32` leaves all values unchanged, including those of float64 tensors."""

    def __init__(self, wire: str) -> None:
        if wire not in WIRES:
            raise ValueError(f"{wire!r} is not a wire; there are {', '.join(WIRES)}")
        self.wire = wire
        self.is_exact = wire == "float32"
        self._largest = LARGEST.get(wire, 0)
        self._block_bytes = SCALE_BYTES + _packed_bytes(BLOCK, self._largest)

    def size(self, elements: int, dtype: torch.dtype = torch.float32) -> int:
        """Returns the number of bytes of an encoded tensor."""
        if self.is_exact:
            return elements * int(dtype.itemsize)
        if not self._largest:
            return elements * 2
        blocks, rest = divmod(elements, BLOCK)
        return blocks * self._block_bytes + (SCALE_BYTES + _packed_bytes(rest, self._largest) if rest else 0)

    def cut(self, elements: int, number: int, of: int) -> slice:
        """Divides a tensor into `of` nearly equal parts, and returns the range of elements of part `number`.

        Blocks are not divided.
        """
        step = BLOCK if self._largest else 1
        blocks = -(-elements // step)
        return slice(min(blocks * number // of * step, elements), min(blocks * (number + 1) // of * step, elements))

    def messages(self, elements: slice) -> list[slice]:
        """Divides a range returned by cut() into one range for each message."""
        blocks = -(-(elements.stop - elements.start) // (MESSAGES * BLOCK))
        size = min(max(blocks * BLOCK, SMALLEST_MESSAGE), LARGEST_MESSAGE)
        starts = range(elements.start, elements.stop, size)
        return [slice(start, min(start + size, elements.stop)) for start in starts]

    def encode(self, values: torch.Tensor, error: torch.Tensor | None = None) -> torch.Tensor:
        """Encodes a contiguous 1-D tensor. If the encoding is exact, the result shares the tensor's memory.

        Args:
            error: The rounding error so far, which is added to the values and then replaced by the error of this
                encoding. It is ignored if the encoding is exact.
        """
        if self.is_exact:
            return values.view(torch.uint8)
        encoded = torch.empty(self.size(values.numel()), dtype=torch.uint8, device="cpu")
        scratch, decoded = _scratch(torch.float32), _scratch(values.dtype)
        for start, stop, part in self._pieces(encoded, values.numel()):
            piece = values[start:stop]
            if error is not None:
                piece = error[start:stop].add_(piece)
            self._encode_piece(piece, part, scratch)
            if error is not None:
                piece.sub_(self._decode_piece(part, decoded[: stop - start], scratch))
        return encoded

    def decode(self, encoded: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Writes the decoded values to `out`, a contiguous 1-D tensor, and returns `out`."""
        if self.is_exact:
            return out.copy_(encoded.view(out.dtype))
        scratch = _scratch(torch.float32)
        for start, stop, part in self._pieces(encoded, out.numel()):
            self._decode_piece(part, out[start:stop], scratch)
        return out

    def accumulate(self, encoded: torch.Tensor, total: torch.Tensor, weight: float = 1.0) -> None:
        """Adds the decoded values times `weight` to `total`, a contiguous 1-D tensor, in the dtype of `total`."""
        if self.is_exact:
            total.add_(encoded.view(total.dtype), alpha=weight)
            return
        scratch, decoded = _scratch(torch.float32), _scratch(total.dtype)
        for start, stop, part in self._pieces(encoded, total.numel()):
            total[start:stop].add_(self._decode_piece(part, decoded[: stop - start], scratch), alpha=weight)

    def _pieces(self, encoded: torch.Tensor, elements: int) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yields the pieces of a tensor, each with its encoded bytes. A short last block is a piece of its own."""
        start = position = 0
        while start < elements:
            stop = min(start + PIECE_BLOCKS * BLOCK, elements)
            if stop - start > BLOCK:
                stop -= (stop - start) % BLOCK
            size = self.size(stop - start)
            yield start, stop, encoded[position : position + size]
            start, position = stop, position + size

    def _encode_piece(self, values: torch.Tensor, part: torch.Tensor, scratch: torch.Tensor) -> None:
        if not self._largest:
            part.view(torch.bfloat16).copy_(values)
            return
        rows = values.to(torch.float32).view(-1, min(BLOCK, values.numel()))
        target = part.view(rows.shape[0], -1)
        integers = torch.abs(rows, out=scratch[: rows.numel()].view(rows.shape))
        scales = integers.amax(1, keepdim=True).div_(self._largest).clamp_min_(SMALLEST_SCALE)
        _scales(target).copy_(scales)
        torch.mul(rows, scales.reciprocal_(), out=integers).round_()
        if self.wire == "int8":
            target[:, SCALE_BYTES:].view(torch.int8).copy_(integers)
            return
        # Byte i holds integers i and i + half of its block. Both are increased by 8, so that they are not negative.
        integers.add_(8)
        half = (rows.shape[1] + 1) // 2
        low, high = integers[:, :half], integers[:, half:]
        low[:, : high.shape[1]].add_(high, alpha=16)
        target[:, SCALE_BYTES:].copy_(low)

    def _decode_piece(self, part: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
        if not self._largest:
            return out.copy_(part.view(torch.bfloat16))
        rows = out.view(-1, min(BLOCK, out.numel()))
        source = part.view(rows.shape[0], -1)
        scales = _scales(source)
        packed = source[:, SCALE_BYTES:]
        if self.wire == "int8":
            torch.mul(packed.view(torch.int8), scales, out=rows)
            return out
        half = packed.shape[1]
        integers = scratch.view(torch.uint8)[: packed.numel()].view(packed.shape)
        rows[:, :half].copy_(torch.bitwise_and(packed, 15, out=integers))
        torch.bitwise_right_shift(packed, 4, out=integers)
        rows[:, half:].copy_(integers[:, : rows.shape[1] - half])
        rows.sub_(8).mul_(scales)
        return out


def _scales(rows: torch.Tensor) -> torch.Tensor:
    """Returns a view of the scales of encoded blocks, one per row. A single row may have any length."""
    if rows.shape[0] == 1:
        return rows[0, :SCALE_BYTES].view(torch.float32).view(1, 1)
    return rows[:, :SCALE_BYTES].view(torch.float32)


def _scratch(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(PIECE_BLOCKS * BLOCK, dtype=dtype, device="cpu")


def _packed_bytes(elements: int, largest: int) -> int:
    return (elements + 1) // 2 if largest == LARGEST["int4"] else elements
