"""Tests of shards and chunks by comparison with a brute-force result: each element is in one chunk, and sizes are
balanced.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from torchyard_roles.errors import UsageProblem
from torchyard_roles.exchange.parameter_layout import Entry, Layout

pytestmark = pytest.mark.train

DTYPES = ("float32", "float64", "bfloat16")


def layouts(count: int, *, whole: bool = False) -> list[Layout]:
    random.seed(7)
    made = []
    for _ in range(count):
        entries = [
            Entry(
                f"p{number}",
                tuple(random.choice((0, 1, 2, 3, 17, 40)) for _ in range(random.randint(0, 3))),
                random.choice(DTYPES),
                random.randint(0, 1),
            )
            for number in range(random.randint(1, 12))
        ]
        if any(entry.elements for entry in entries):
            made.append(Layout(tuple(entries), whole))
    return made


@pytest.mark.parametrize("whole", [False, True])
def test_every_element_is_in_exactly_one_chunk_and_no_chunk_crosses_a_border(whole: bool) -> None:
    for layout in layouts(50, whole=whole):
        for servers in (1, 2, 3, 7):
            chunk_bytes = random.choice((8, 64, 1000))
            chunks = layout.chunks(servers, chunk_bytes)
            seen = [
                (piece.parameter, element)
                for c in chunks
                for piece in c.pieces
                for element in range(piece.start, piece.stop)
            ]
            assert seen == [(n, e) for n, entry in enumerate(layout.entries) for e in range(entry.elements)]
            assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
            assert [chunk.shard for chunk in chunks] == sorted(chunk.shard for chunk in chunks)
            for chunk in chunks:
                entries = [layout.entries[piece.parameter] for piece in chunk.pieces]
                assert {(entry.dtype, entry.group) for entry in entries} == {(chunk.dtype, chunk.group)}
                if whole:
                    assert all((p.start, p.stop) == (0, e.elements) for p, e in zip(chunk.pieces, entries, strict=True))
                assert chunk.bytes <= max(chunk_bytes, entries[0].bytes if whole else 0)


@pytest.mark.parametrize("weights", [None, (1.0, 2.0, 1.0), (0.0, 1.0, 3.0)])
def test_shards_are_within_an_element_of_their_due(weights: tuple[float, ...] | None) -> None:
    for layout in layouts(50):
        shards = layout.shards(3, weights)
        sizes = [sum(p.elements * layout.entries[p.parameter].element_bytes for p in pieces) for pieces in shards]
        shares = weights or (1.0, 1.0, 1.0)
        assert sum(sizes) == layout.bytes
        for size, share in zip(sizes, shares, strict=True):
            # Sizes differ from the servers' shares by at most one float64 element.
            assert abs(size - layout.bytes * share / sum(shares)) <= 8


def test_whole_parameters_are_within_one_of_them_of_balance() -> None:
    for layout in layouts(50, whole=True):
        for servers in (2, 5):
            largest = max(entry.bytes for entry in layout.entries)
            for pieces in layout.shards(servers):
                size = sum(layout.entries[piece.parameter].bytes for piece in pieces)
                assert abs(size - layout.bytes / servers) <= largest


def test_a_large_model_is_cut_in_chunks_of_the_size_that_pipelines_well() -> None:
    layout = Layout((Entry("weight", (15_000_000,), "float32", 0),))
    chunks = layout.chunks(4)
    assert all(chunk.bytes <= 4 * 1024 * 1024 for chunk in chunks)
    assert all(chunk.bytes >= 56 * 1024 for chunk in chunks[:-1] if chunk.shard == chunks[chunk.number + 1].shard)
    # Chunks of 64 KiB each are 3% faster than chunks of 128 KiB at 200 Mbit/s.
    assert 4 * 200 <= len(chunks) <= 4 * 256
    assert len(Layout((Entry("bias", (10,), "float32", 0),)).chunks(1)) == 1


def test_an_exchange_behind_computing_has_few_chunks() -> None:
    def count(elements: int, servers: int) -> int:
        layout = Layout((Entry("weight", (elements,), "float32", 0),))
        return len(layout.chunks(servers, layout.chunk_bytes_behind_computing(servers)))

    assert count(2_500_000, 2) == 2 * 8  # The parameters have 10 MB in total.
    assert count(100_000, 1) == 2  # Chunks have at least 256 KiB each.
    assert count(100_000_000, 1) == 96  # Chunks have at most 4 MiB each.


def test_shared_parameters_count_once_and_frozen_ones_not_at_all() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[1].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": [model[1].bias, model[2].weight]}])
    layout, parameters = Layout.of(model, optimizer)
    assert [(entry.name, entry.group) for entry in layout.entries] == [
        ("0.weight", 0), ("0.bias", 0), ("1.bias", 1), ("2.weight", 1),
    ]  # fmt: skip
    assert parameters[0] is model[1].weight


def test_an_optimizer_of_what_is_not_the_models_is_refused() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    with pytest.raises(UsageProblem, match="do not belong to the model"):
        Layout.of(model, torch.optim.SGD([*model.parameters(), *other.parameters()]))


def test_a_fingerprint_makes_the_same_layout_and_a_difference_is_named() -> None:
    for layout in layouts(20):
        assert Layout.read(layout.fingerprint()) == layout
    mine = Layout((Entry("a", (2, 3), "float32", 0), Entry("b", (), "float32", 0)))
    its = Layout((Entry("a", (3, 2), "float32", 0), Entry("b", (), "float32", 0)))
    assert mine.difference(mine) == ""
    assert "a (3×2, float32" in mine.difference(its)
    assert "1 trainable" in mine.difference(Layout(mine.entries[:1]))
    for text in ("{}", "[]", "x", '{"whole_parameters": false, "parameters": [["a", [2], "pickle", 0]]}'):
        with pytest.raises(ValueError, match=r"layout|dtype|Expecting"):
            Layout.read(text)
