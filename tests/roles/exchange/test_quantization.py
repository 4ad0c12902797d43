"""Tests of the wire encodings, which reduce the size of tensors for slow links."""

from __future__ import annotations

import math

import pytest
import torch

from torchyard_roles.exchange.quantization import (
    BLOCK,
    LARGEST,
    LARGEST_MESSAGE,
    MESSAGES,
    PIECE_BLOCKS,
    SMALLEST_MESSAGE,
    WIRES,
    WireCodec,
)

pytestmark = pytest.mark.train

PIECE = PIECE_BLOCKS * BLOCK
SIZES = (1, 3, 255, 256, 257, 1000, PIECE, 2 * PIECE + 3 * BLOCK + 77)
INTEGERS = tuple(LARGEST)


def values_of(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    magnitudes = 10.0 ** torch.randint(-6, 3, (size,), generator=generator)
    return (torch.randn(size, generator=generator) * magnitudes).to(dtype)


def bounds_of(values: torch.Tensor, wire: str) -> torch.Tensor:
    """Returns the largest possible error of each value: half the scale of its block, plus the rounding error of
    float32.
    """
    blocks = [block.abs().max().expand_as(block) for block in values.double().split(BLOCK)]
    return torch.cat(blocks) / LARGEST[wire] / 2 * (1 + 1e-4)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("wire", INTEGERS)
def test_the_error_is_at_most_half_the_scale_of_the_block(wire: str, size: int) -> None:
    codec, values = WireCodec(wire), values_of(size)
    encoded = codec.encode(values)
    assert encoded.dtype is torch.uint8
    assert encoded.numel() == codec.size(size)
    found = codec.decode(encoded, torch.empty(size))
    assert torch.all((found.double() - values.double()).abs() <= bounds_of(values, wire))


@pytest.mark.parametrize("size", SIZES)
def test_bfloat16_rounds_to_nearest_and_float32_changes_nothing(size: int) -> None:
    values = values_of(size)
    codec = WireCodec("bfloat16")
    assert torch.equal(codec.decode(codec.encode(values), torch.empty(size)), values.bfloat16().float())
    for dtype in (torch.float32, torch.float64):
        wide, exact = values_of(size, dtype), WireCodec("float32")
        encoded = exact.encode(wide)
        assert encoded.numel() == exact.size(size, dtype)
        assert torch.equal(exact.decode(encoded, torch.empty_like(wide)), wide)


@pytest.mark.parametrize(("wire", "share"), [("bfloat16", 0.5), ("int8", 0.254), ("int4", 0.129)])
def test_the_share_of_float32s_bytes(wire: str, share: float) -> None:
    assert WireCodec(wire).size(1 << 20) / (4 << 20) == pytest.approx(share, abs=5e-4)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("size", [100, 1000, PIECE + 300])
def test_shares_that_are_encoded_apart_equal_the_whole(wire: str, size: int) -> None:
    codec, values = WireCodec(wire), values_of(size)
    whole = codec.decode(codec.encode(values), torch.empty(size))
    shares = [codec.cut(size, number, 3) for number in range(3)]
    parts = [codec.decode(codec.encode(values[each]), torch.empty(each.stop - each.start)) for each in shares]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("elements", [0, 1, SMALLEST_MESSAGE + 1, 60 * SMALLEST_MESSAGE, 5_000_001, 100_000_000])
def test_a_slice_is_divided_into_small_messages_of_equal_size_unless_there_would_be_too_many(elements: int) -> None:
    messages = WireCodec("int8").messages(slice(1000, 1000 + elements))
    sizes = [each.stop - each.start for each in messages]
    assert sum(sizes) == elements
    assert [each.start for each in messages] == [1000 + sum(sizes[:number]) for number in range(len(sizes))]
    assert len(set(sizes[:-1])) <= 1
    assert not any(size % BLOCK for size in sizes[:-1])
    if len(sizes) > MESSAGES:
        assert sizes[0] == LARGEST_MESSAGE
    elif len(sizes) > 1:
        assert SMALLEST_MESSAGE <= sizes[0] <= LARGEST_MESSAGE
        assert sizes[0] == SMALLEST_MESSAGE or len(sizes) > MESSAGES // 2


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_accumulating_adds_the_weighted_values(wire: str, dtype: torch.dtype) -> None:
    codec, values = WireCodec(wire), values_of(2 * BLOCK + 9, dtype)
    encoded = codec.encode(values)
    total = torch.ones_like(values)
    codec.accumulate(encoded, total, 0.25)
    assert torch.equal(total, torch.ones_like(values).add_(codec.decode(encoded, torch.empty_like(values)), alpha=0.25))


@pytest.mark.parametrize("wire", ["bfloat16", *INTEGERS])
def test_with_feedback_the_error_of_the_sum_stays_that_of_one_encoding(wire: str) -> None:
    size = BLOCK + 50
    codec, error = WireCodec(wire), torch.zeros(size, dtype=torch.float64)
    truth, sent = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    without = torch.zeros(size, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    constant = torch.rand(size, generator=generator).double()
    for _ in range(300):
        truth += constant
        codec.accumulate(codec.encode(constant, error), sent)
        codec.accumulate(codec.encode(constant), without)
        assert torch.allclose(sent + error, truth, rtol=0, atol=1e-6)
    one = 2.0 / (2 * LARGEST[wire]) if wire in LARGEST else 2.0**-7
    assert (sent - truth).abs().max() <= one
    assert (without - truth).abs().max() > 10 * (sent - truth).abs().max()


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_not_finite_afterwards(wire: str, bad: float) -> None:
    codec, values = WireCodec(wire), torch.ones(2 * BLOCK)
    values[3] = bad
    found = codec.decode(codec.encode(values), torch.empty_like(values))
    assert not torch.isfinite(found[3])
    assert torch.equal(found[BLOCK:], values[BLOCK:])


@pytest.mark.parametrize("wire", WIRES)
def test_zeros_remain_zeros_and_tiny_values_stay_finite(wire: str) -> None:
    codec = WireCodec(wire)
    assert not codec.decode(codec.encode(torch.zeros(300)), torch.empty(300)).any()
    for tiny in (1e-45, 1e-39, 1e-37):
        found = codec.decode(codec.encode(torch.full((300,), tiny)), torch.empty(300))
        assert torch.all((found - tiny).abs() <= 2.0**-126)


def test_an_unknown_wire_is_an_error() -> None:
    with pytest.raises(ValueError, match="'int2' is not a wire"):
        WireCodec("int2")
