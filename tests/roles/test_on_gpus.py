"""Gradients that are on a GPU, on their way to servers and reducers and back: the same numbers as without.

These run where there is a GPU and torch sees it; nothing of it is acted elsewhere.
"""

from __future__ import annotations

import os
from contextlib import closing

import pytest
import torch

from tests.roles.served_run import SEEDING, Run, descend, difference
from tests.roles.test_sandblaster import batches, momentum, network
from torchyard_roles.exchange.reduce_client import ReduceClient
from torchyard_roles.exchange.reducer import Reducer
from torchyard_roles.exchange.wire import Peer, listen
from torchyard_roles.strategies.host_exchange import HostExchange, LocalGroups

pytestmark = [
    pytest.mark.train,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize(("strategy", "groups"), [("sandblaster", 1), ("downpour", 2)])
def test_a_worker_on_a_gpu_trains_with_servers_as_one_on_the_cpu(strategy: str, groups: int) -> None:
    """In a stream of the script's own, which the threads that send and receive know nothing of."""

    def trained(device: torch.device) -> dict[str, torch.Tensor]:
        run = Run(groups, 2, groups, strategy)

        def act(rank: int) -> dict[str, torch.Tensor]:
            with torch.cuda.stream(torch.cuda.Stream(DEVICE)):
                return train(rank)

        def train(rank: int) -> dict[str, torch.Tensor]:
            served = run.worker(rank)
            with SEEDING:
                model = network().to(device)
            model, optimizer = served.distribute(model, momentum(model), device)
            if rank == 0:  # other groups do nothing
                descend(model, optimizer, [(x.to(device), y.to(device)) for x, y in batches(20, 8)])
            served.finish()
            served.leave()
            return {name: value.cpu() for name, value in model.state_dict().items()}

        with run.serving():
            return run.on_workers(act)[0]

    assert difference(trained(DEVICE), trained(torch.device("cpu"))) < 1e-10


def test_a_bucket_on_a_gpu_goes_through_a_reducer_and_comes_back() -> None:
    key = os.urandom(32)
    listener = listen("127.0.0.1", 0)
    peer = Peer("reducer-0", *listener.getsockname())
    with closing(Reducer(listener, key).start()), closing(ReduceClient([peer], [1.0], key, 0, 1)) as client:
        exchange = HostExchange(client, LocalGroups([1], 0), DEVICE)
        for step in range(3):
            flats = [torch.full((100_000,), float(step + bucket), device=DEVICE) for bucket in range(4)]
            sent = [flat.mul(2.0) for flat in flats]  # still being computed, maybe
            futures = [exchange.average(flat, step, bucket) for bucket, flat in enumerate(sent)]
            for future, flat, before in zip(futures, sent, flats, strict=True):
                future.wait()
                assert torch.equal(flat, 2.0 * before)
        assert exchange.failure is None
        exchange.close()
