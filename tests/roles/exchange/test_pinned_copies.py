"""Tests of copying tensors in pieces on the CPU; for those on a GPU, see `strategies/diloco/test_on_gpus.py`."""

from __future__ import annotations

import pytest
import torch

from torchyard_roles.exchange.pinned_copies import PinnedCopies

pytestmark = pytest.mark.train


@pytest.mark.parametrize("piece_bytes", [8, 64, 1 << 20])
def test_copies_in_pieces_equal_their_sources(piece_bytes: int) -> None:
    copies = PinnedCopies(torch.device("cpu"), piece_bytes)
    sources = [
        torch.randn(1),
        torch.randn(7, 5).to(torch.bfloat16),
        torch.randn(4, 6, dtype=torch.float64).t(),
        torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last),
        torch.empty(0),
    ]
    targets = [torch.zeros(source.shape, dtype=torch.float64) for source in sources]
    copies.to_host(zip(targets, sources, strict=True))
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target, source.double())
        assert torch.equal(copies.to_device(target), target)
