"""Descriptor of `reduction_server`: reducers sum the gradients of all trainers."""

from __future__ import annotations

from torchyard_core.problems import Findings, error_finding
from torchyard_core.topology.model import Role, StrategyKind, Topology
from torchyard_core.topology.strategies.reduction_cost import Reduction, fastest_reduction, reducers_that_beat_the_ring
from torchyard_core.topology.strategies.spec import ExchangeCost, Participants, RoleCounts, StrategyPreset, StrategySpec
from torchyard_core.topology.strategies.traffic import Traffic, ring, served
from torchyard_core.topology.strategies.worker_loss import check_worker_loss

_COST_SENTENCES = {
    Reduction.RING: "{trainers}, {servers}: the ring is as fast, about {time}, and is taken.",
    Reduction.MIXED: "{trainers}, {servers}: mixed, about {time}; the ring takes {ring}, reducers alone {alone}.",
    Reduction.REDUCERS: "{trainers}, {servers}: reducers alone, about {time}; the ring takes {ring}.",
}


def _traffic(participants: Participants) -> Traffic:
    trainers, reducers = participants.trainers, participants.servers
    if not reducers:
        return Traffic()
    best = fastest_reduction(len(trainers), len(reducers)).best
    if best is Reduction.RING:
        return Traffic(ring(trainers))  # The reducers are not used, since they would not make the exchange faster.
    return Traffic(served(trainers, reducers), trainers_reduce=best is Reduction.MIXED, has_reducers=True)


def _exchange_cost(trainers: int, servers: int) -> ExchangeCost | None:
    if not servers:
        return None
    cost = fastest_reduction(trainers, servers)
    values = {"time": cost.time, "ring": cost.times[Reduction.RING], "alone": cost.times[Reduction.REDUCERS]}
    sentences = [_COST_SENTENCES[cost.best]]
    counts = {}
    least = reducers_that_beat_the_ring(trainers)
    if least is not None and servers < least:
        sentences.append("Reducers alone beat the ring from {least} on.")
        counts["least"] = least
    return ExchangeCost(tuple(sentences), values, counts)


def _check(topology: Topology, counts: RoleCounts) -> Findings:
    yield from check_worker_loss(topology)
    processes = sum(pool.replicas * max(1, pool.gpus) for pool in topology.pools if pool.role.trains)
    if processes == 1:
        message = "reduction_server sums the gradients of 2 workers or more, and there is 1: add one, or choose none"
        yield error_finding("strategy-counts", message, "strategy", "kind")


SPEC = StrategySpec(
    StrategyKind.REDUCTION_SERVER,
    title="Reduction server",
    sentence="Reducers on separate hosts sum the gradients of all trainers.",
    preset=StrategyPreset(
        "Four workers with enough reducers to be faster than a ring: more than N²/(2(N−1)).",
        (
            {"name": "workers", "role": "worker", "replicas": 4, "gpus": 1},
            {"name": "reducers", "role": "reducer", "replicas": "beats_ring"},
        ),
    ),
    server_role=Role.REDUCER,
    shared_settings=("bucket_mb", "reduction_order", "on_worker_loss", "on_nan"),
    traffic=_traffic,
    exchange_cost=_exchange_cost,
    check=_check,
)
