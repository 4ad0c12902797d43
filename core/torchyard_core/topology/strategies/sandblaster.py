"""Descriptor of `sandblaster`: trainers train synchronously, and parameter servers run the optimizer."""

from __future__ import annotations

from torchyard_core.formatting import counted
from torchyard_core.problems import Findings, error_finding
from torchyard_core.topology.model import Role, Strategy, StrategyKind, Topology
from torchyard_core.topology.strategies.reduction_cost import reducers_time, ring_time
from torchyard_core.topology.strategies.spec import (
    ExchangeCost,
    Participants,
    RoleCounts,
    StrategyPreset,
    StrategySetting,
    StrategySpec,
)
from torchyard_core.topology.strategies.traffic import Traffic, served


def _traffic(participants: Participants) -> Traffic:
    return Traffic(served(participants.trainers, participants.servers))


def _exchange_cost(trainers: int, servers: int) -> ExchangeCost | None:
    if not servers:
        return None
    sentence = "{trainers}, {servers}: a step's exchange takes about {time}; a ring {ring}."
    return ExchangeCost((sentence,), {"time": reducers_time(trainers, servers), "ring": ring_time(trainers)})


def _check(topology: Topology, counts: RoleCounts) -> Findings:
    backups = topology.strategy.backup_workers
    trainers = counts[Role.CHIEF] + counts[Role.WORKER]
    if backups and backups >= trainers:
        message = f"`backup_workers` is {backups}, and leaves none of the {counted(trainers, 'trainer')} to count"
        yield error_finding("strategy-counts", message, "strategy", "backup_workers")


def _check_script(strategy: Strategy, script: str, source: str) -> Findings:
    """Yields an error if the script clips gradients by norm and the strategy has backup workers.

    Clipping by norm needs the gradients of all workers, but a step with backup workers does not wait for all of them.
    """
    if not strategy.backup_workers:
        return
    if any("clip_gradients(" in line.partition("#")[0] for line in source.splitlines()):
        message = (
            f"{script} calls cluster.clip_gradients(), which cannot be used with `backup_workers`: set it to 0, or "
            "clip each worker's own gradients with torch.nn.utils.clip_grad_norm_"
        )
        yield error_finding("strategy-clips", message, "strategy", "backup_workers")


SPEC = StrategySpec(
    StrategyKind.SANDBLASTER,
    title="Sandblaster",
    sentence="Trainers send gradients to parameter servers and wait for the sum.",
    preset=StrategyPreset(  # In SINGA, this preset corresponds to 1 group of 3 workers and 1 group of 2 servers.
        "Three synchronous workers with two parameter servers.",
        (
            {"name": "workers", "role": "worker", "replicas": 3, "gpus": 1},
            {"name": "servers", "role": "ps", "replicas": 2},
        ),
    ),
    server_role=Role.PS,
    own_settings=(
        StrategySetting(
            "backup_workers",
            "Backup workers",
            "Number of trainers that a step does not wait for; the gradients of the slowest are dropped.",
        ),
    ),
    shared_settings=("server_groups", "reduction_order", "on_nan"),
    traffic=_traffic,
    exchange_cost=_exchange_cost,
    check=_check,
    check_script=_check_script,
)
