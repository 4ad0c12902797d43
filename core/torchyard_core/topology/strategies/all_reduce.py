"""Descriptor of `all_reduce`: trainers average their gradients over a ring."""

from __future__ import annotations

from torchyard_core.problems import Findings
from torchyard_core.topology.model import StrategyKind, Topology
from torchyard_core.topology.strategies.reduction_cost import ring_time
from torchyard_core.topology.strategies.sharding import SHARD_KEYS, check_shard_settings
from torchyard_core.topology.strategies.spec import (
    ExchangeCost,
    Participants,
    RoleCounts,
    StrategyPreset,
    StrategySpec,
)
from torchyard_core.topology.strategies.traffic import Traffic, ring
from torchyard_core.topology.strategies.worker_loss import check_worker_loss


def _traffic(participants: Participants) -> Traffic:
    return Traffic(ring(participants.trainers))


def _check(topology: Topology, counts: RoleCounts) -> Findings:
    yield from check_worker_loss(topology)
    yield from check_shard_settings(topology)


def _exchange_cost(trainers: int, servers: int) -> ExchangeCost:
    sentence = "{trainers} around a ring: a step's exchange takes about {time}."
    return ExchangeCost((sentence,), {"time": ring_time(trainers)})


SPEC = StrategySpec(
    StrategyKind.ALL_REDUCE,
    title="All-reduce",
    sentence="After each step all trainers average their gradients with each other.",
    preset=StrategyPreset(  # In SINGA, this preset is AllReduce: 1 group of 3 workers, which also act as 3 servers.
        "Three workers in a ring.",
        ({"name": "workers", "role": "worker", "replicas": 3, "gpus": 1},),
    ),
    shared_settings=("on_worker_loss", "on_nan", *SHARD_KEYS),
    check=_check,
    traffic=_traffic,
    exchange_cost=_exchange_cost,
)
