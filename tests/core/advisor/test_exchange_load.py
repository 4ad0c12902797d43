"""Tests that the predicted numbers of chunks are those into which the client of reducers cuts gradients."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from torchyard_core.advisor.exchange_load import CHUNK_S, LARGEST_CHUNK, SMALLEST_CHUNK, chunks_per_byte
from torchyard_roles.strategies.reduction_server import reducer_client, reduction_plan
from torchyard_roles.strategies.reduction_server.reducer_link import Operation

SIZE = 40_000_000


def test_the_rule_for_the_size_of_chunks_is_that_of_the_run() -> None:
    known = reducer_client.CHUNK_S, reducer_client.SMALLEST_CHUNK, reducer_client.LARGEST_CHUNK
    assert known == (CHUNK_S, SMALLEST_CHUNK, LARGEST_CHUNK)


@pytest.mark.parametrize("bytes_s", [5e6, 50e6, 2e9])
@pytest.mark.parametrize(("workers", "reducers"), [(5, 2), (4, 2), (8, 1), (4, 6), (3, 3)])
def test_as_many_chunks_are_counted_as_a_worker_exchanges(workers: int, reducers: int, bytes_s: float) -> None:
    plan = reduction_plan.choose(workers, reducers, ring=False)
    chunk_bytes = reducer_client.fitting_chunk(bytes_s)
    client = SimpleNamespace(_chunk_bytes=chunk_bytes, _weights=plan.weights)
    operation = Operation(torch.empty(SIZE // 4), 0, 0)
    by_peer = [len(share) for share in reducer_client.ReduceClient._chunks(client, operation)]  # type: ignore[arg-type]
    own = by_peer[reducers] if plan.kind == "mixed" else 0

    hosts = range(workers + reducers)
    counts = chunks_per_byte(hosts[:workers], hosts[workers:], mixed=plan.kind == "mixed", s_per_byte=1 / bytes_s)

    # The last chunk of each peer is smaller.
    assert counts.asked[0] * SIZE == pytest.approx(sum(by_peer) - own, rel=0.02, abs=len(by_peer))
    assert counts.summed[workers] * SIZE == pytest.approx(workers * by_peer[0], rel=0.02, abs=workers)
    assert sum(counts.summed.values()) == pytest.approx(sum(counts.asked.values()))
