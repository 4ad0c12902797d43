"""Descriptor of all_reduce: trainers average their gradients over a ring."""

from __future__ import annotations

from torchyard_core.problems import Findings, error_finding, warning_finding
from torchyard_core.topology.model import OnWorkerLoss, Role, Shard, StrategyKind, Topology
from torchyard_core.topology.strategies.reduction_cost import ring_time
from torchyard_core.topology.strategies.sharding import SHARD_KEYS, check_shard_settings
from torchyard_core.topology.strategies.spec import (
    ExchangeCost,
    Participants,
    RoleCounts,
    StrategyPreset,
    StrategySetting,
    StrategySpec,
)
from torchyard_core.topology.strategies.traffic import Traffic, ring


def _traffic(participants: Participants) -> Traffic:
    return Traffic(ring(participants.trainers))


def _check(topology: Topology, counts: RoleCounts) -> Findings:
    yield from _check_worker_loss(topology)
    yield from check_shard_settings(topology)


def _check_worker_loss(topology: Topology) -> Findings:
    """Yields problems of `on_worker_loss: continue`."""
    if topology.strategy.on_worker_loss is not OnWorkerLoss.CONTINUE:
        return
    if topology.strategy.shard is not Shard.NONE:
        message = (
            "with `shard`, a lost worker takes its part of the parameters with it, so training cannot continue without "
            "it. Set on_worker_loss to restart, or shard to none"
        )
        yield error_finding("worker-loss", message, "strategy", "on_worker_loss")
    for position, pool in enumerate(topology.pools):
        if not pool.role.trains:
            continue
        if pool.gpus:
            message = (
                f"pool `{pool.name}` trains on GPUs, and on_worker_loss: continue is for CPUs in this version. Set it "
                "to restart"
            )
            yield error_finding("worker-loss", message, "pools", position, "gpus")
        if pool.role is Role.WORKER and (pool.min_replicas is None or pool.min_replicas >= pool.replicas):
            message = (
                f"pool `{pool.name}` cannot lose a worker without a restart: set its `min_replicas` to less than "
                f"{pool.replicas}, the fewest workers with which the run continues"
            )
            yield warning_finding("worker-loss", message, "pools", position, "min_replicas")


def _exchange_cost(trainers: int, servers: int) -> ExchangeCost:
    sentence = "{trainers} around a ring: a step's exchange takes about {time}."
    return ExchangeCost((sentence,), {"time": ring_time(trainers)})


SPEC = StrategySpec(
    StrategyKind.ALL_REDUCE,
    title="All-reduce",
    sentence="After each step all trainers average their gradients with each other.",
    preset=StrategyPreset(  # The counterpart in SINGA is AllReduce: 1 group of 3 workers, which also act as 3 servers.
        "Three workers in a ring.",
        ({"name": "workers", "role": "worker", "replicas": 3, "gpus": 1},),
    ),
    own_settings=(
        StrategySetting(
            "on_worker_loss",
            "On a lost worker",
            "Restart all workers at the newest checkpoint, or continue without the lost one while its pool has "
            "min_replicas or more.",
            choices=((OnWorkerLoss.RESTART, "restart all"), (OnWorkerLoss.CONTINUE, "continue")),
        ),
    ),
    shared_settings=("on_nan", *SHARD_KEYS),
    check=_check,
    traffic=_traffic,
    exchange_cost=_exchange_cost,
)
