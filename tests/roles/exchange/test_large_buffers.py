"""Tests of tensors in huge pages: initial values, separate memory, and memory that a view keeps allocated."""

from __future__ import annotations

import gc

import pytest
import torch

from torchyard_roles.exchange import large_buffers

pytestmark = pytest.mark.train

LARGE = large_buffers.LARGE_BYTES


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0, 8, LARGE - 8, LARGE, LARGE + 8])
def test_values_begin_with_zero_and_can_be_written(dtype: torch.dtype, size: int) -> None:
    values = large_buffers.zeros(size // dtype.itemsize, dtype)
    assert (values.dtype, values.numel(), values.device.type) == (dtype, size // dtype.itemsize, "cpu")
    assert not values.any()
    values += 1
    assert values.min().item() == values.max().item() == 1 if size else not values.numel()


def test_a_view_keeps_the_memory() -> None:
    view = large_buffers.zeros(LARGE, torch.uint8).add_(7)[-4:]
    gc.collect()
    assert view.tolist() == [7, 7, 7, 7]


def test_buffers_do_not_share_memory() -> None:
    one, other = (large_buffers.zeros(LARGE, torch.uint8) for _ in range(2))
    one.add_(1)
    assert not other.any()
