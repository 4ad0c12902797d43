"""Tests of how much data each link carries per step."""

from __future__ import annotations

import pytest

from tests.core.examples import topology
from torchyard_core.topology.model import Topology
from torchyard_core.topology.replicas import replicas_of
from torchyard_core.topology.strategies.link_load import link_loads
from torchyard_core.topology.strategies.topology_traffic import traffic_of

WORKERS = "{name: workers, role: worker, replicas: 4}"


def loads(value: Topology, *places: str) -> dict[str, float]:
    """Returns the load of each host's link. Replica n is placed on the nth of the given hosts."""
    names = [replica.name for replica in replicas_of(value)]
    return link_loads(value, traffic_of(value), dict(zip(names, places, strict=True)))


def test_each_link_of_a_ring_carries_the_same() -> None:
    ring = topology(WORKERS)
    assert loads(ring, "a", "b", "c", "d") == pytest.approx(dict.fromkeys("abcd", 1.5))
    assert loads(ring, "a", "a", "b", "b") == pytest.approx({"a": 1.5, "b": 1.5})
    assert loads(ring, "a", "a", "a", "a") == {}


def test_the_link_of_few_servers_carries_the_gradients_of_all_trainers() -> None:
    served = topology(WORKERS, "{name: s, role: ps, replicas: 2}", strategy="{kind: sandblaster}")
    assert loads(served, "a", "b", "c", "d", "s", "t") == pytest.approx(dict.fromkeys("abcd", 1.0) | {"s": 2, "t": 2})
    assert loads(served, "a", "a", "b", "b", "s", "s") == pytest.approx({"a": 2, "b": 2, "s": 4})


def test_data_inside_a_host_uses_no_link() -> None:
    served = topology(WORKERS, "{name: s, role: ps, replicas: 2}", strategy="{kind: sandblaster}")
    assert loads(served, "a", "a", "b", "b", "a", "b") == pytest.approx({"a": 2, "b": 2})
    assert loads(served, *"aaaaaa") == {}


def test_servers_of_two_pools_share_the_parameters() -> None:
    pools = ("{name: s, role: ps, replicas: 1}", "{name: t, role: ps, replicas: 1}")
    served = topology(WORKERS, *pools, strategy="{kind: sandblaster}")
    assert loads(served, "a", "b", "c", "d", "s", "t")["s"] == pytest.approx(2)


def test_fewer_pushes_and_pulls_send_less() -> None:
    def pushed(push: int, pull: int) -> Topology:
        strategy = f"{{kind: downpour, worker_groups: 2, push_every: {push}, pull_every: {pull}}}"
        return topology(WORKERS, "{name: s, role: ps, replicas: 1}", strategy=strategy)

    assert loads(pushed(4, 2), "a", "b", "c", "d", "s") == pytest.approx(dict.fromkeys("abcd", 0.5) | {"s": 2})
    assert loads(pushed(4, 4), "a", "b", "c", "d", "s")["s"] == pytest.approx(1)


def test_a_mixed_reduction_loads_all_links_equally() -> None:
    mixed = topology(WORKERS, "{name: r, role: reducer, replicas: 2}", strategy="{kind: reduction_server}")
    assert loads(mixed, *"abcdrs") == pytest.approx(dict.fromkeys("abcdrs", 1.2))


@pytest.mark.parametrize("places", ["aabbab", "aaaabb", "aabbcc", "abcdda", "aaaaaa"])
def test_a_mixed_reduction_loads_a_link_with_the_transfers_to_other_places(places: str) -> None:
    workers, reducers = 4, 2
    part = 1.2 / workers  # Each reducer sums this part of the gradients. The trainers sum the rest.
    parts = [(1 - reducers * part) / workers] * workers + [part] * reducers
    sent = dict.fromkeys(places, 0.0)
    for owner, own_part in enumerate(parts):
        for worker in range(workers):
            if places[worker] != places[owner]:
                sent[places[worker]] += own_part  # The worker sends its gradients of this part to the owner.
                sent[places[owner]] += own_part  # The owner returns the sum of all gradients of this part.
    mixed = topology(WORKERS, "{name: r, role: reducer, replicas: 2}", strategy="{kind: reduction_server}")
    assert loads(mixed, *places) == pytest.approx({place: load for place, load in sent.items() if load})


def test_an_exchange_that_follows_no_step_has_no_load() -> None:
    assert loads(topology(WORKERS, strategy="{kind: hogwild}"), *"abcd") == {}
