"""Settings of models that are sharded over the ranks of a group, and checks of these settings."""

from __future__ import annotations

from torchyard_core.problems import Findings, error_finding, warning_finding
from torchyard_core.topology.model import Role, Shard, ShardDtype, Strategy, Topology
from torchyard_core.topology.strategies.spec import RoleCounts, StrategySetting

SHARD_SETTINGS = (
    StrategySetting(
        "shard",
        "Shard",
        "Divides parameters, gradients and optimizer state, for models that are larger than a GPU.",
        choices=(
            (Shard.NONE, "no"),
            (Shard.HOST, "per host"),
            (Shard.ALL, "over all"),
        ),
        is_essential=True,
    ),
    StrategySetting(
        "shard_modules",
        "Shard blocks",
        "Classes of modules that are gathered as one, such as TransformerBlock. By default, the repeated blocks.",
    ),
    StrategySetting(
        "shard_dtype",
        "Shard type",
        "The data type in which sharded models compute. The optimizer keeps the model's type.",
        choices=(
            (ShardDtype.MODEL, "the model's"),
            (ShardDtype.BFLOAT16, "bfloat16"),
            (ShardDtype.FLOAT16, "float16"),
        ),
    ),
    StrategySetting(
        "shard_offload",
        "Shard offload",
        "Keeps sharded parameters and optimizer state in the host's memory. Steps are slower.",
        choices=((True, "yes"), (False, "no")),
    ),
)
SHARD_KEYS = tuple(setting.key for setting in SHARD_SETTINGS)


def check_shard_settings(topology: Topology) -> Findings:
    """Yields warnings for sharding settings that have no effect because nothing is sharded."""
    strategy = topology.strategy
    if strategy.shard is not Shard.NONE:
        return
    for key in SHARD_KEYS:
        if getattr(strategy, key) != Strategy.model_fields[key].default:
            message = f"`{key}` does nothing while `shard` is none. Set `shard` to all or host"
            yield warning_finding("strategy-ignores", message, "strategy", key)


def check_sharded_groups(topology: Topology, counts: RoleCounts) -> Findings:
    """Yields an error for worker groups of one rank, over which nothing can be sharded."""
    if topology.strategy.shard is Shard.NONE:
        return
    groups = topology.strategy.worker_groups
    trainers = max(1, counts[Role.CHIEF] + counts[Role.WORKER])
    workers = max(1, trainers // groups) if groups is not None else 1
    ranks = workers * min((max(1, pool.gpus) for pool in topology.pools if pool.role.trains), default=1)
    if ranks == 1:
        message = (
            "`shard` divides a model over the ranks of a worker group, but a group here has one rank. Set "
            "`worker_groups` to at most half the number of workers, give each worker several GPUs, or set `shard` to "
            "none"
        )
        yield error_finding("strategy-counts", message, "strategy", "shard")
