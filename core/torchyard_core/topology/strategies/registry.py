"""Registry of the strategies' descriptors, and the settings that several strategies share."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from torchyard_core.topology.model import OnNan, ReductionOrder, StrategyKind
from torchyard_core.topology.strategies.sharding import SHARD_SETTINGS
from torchyard_core.topology.strategies.spec import StrategySetting, StrategySpec
from torchyard_core.topology.strategies.worker_loss import WORKER_LOSS_SETTING

SHARED_SETTINGS = (
    StrategySetting(
        "worker_groups",
        "Worker groups",
        "Number of worker groups; each trains as one. The chief is in the first.",
        if_unset="each worker alone",
    ),
    StrategySetting(
        "server_groups",
        "Server groups",
        "Number of server groups, each with all parameters. Must be 1; for several copies use Hogwild.",
    ),
    StrategySetting(
        "reduction_order",
        "Sum gradients",
        "By rank: equal runs have bitwise equal results. By arrival: faster.",
        choices=((ReductionOrder.RANK, "by rank"), (ReductionOrder.ARRIVAL, "by arrival")),
    ),
    StrategySetting(
        "on_nan",
        "On NaN or Inf",
        "Action for a step with gradients that are not finite. Skipped steps are counted.",
        choices=((OnNan.FAIL, "fail"), (OnNan.SKIP, "skip the step")),
    ),
    StrategySetting(
        "bucket_mb", "Bucket, MiB", "Gradients are sent in buckets of this size while others are still computed."
    ),
    WORKER_LOSS_SETTING,
    *SHARD_SETTINGS,
)
"""Settings that have an effect under more than one strategy."""


@cache
def spec_of(kind: StrategyKind) -> StrategySpec:
    """Returns the descriptor of a strategy: the `SPEC` of the module that is named after `kind`."""
    spec: StrategySpec = import_module(f"torchyard_core.topology.strategies.{kind.value}").SPEC
    return spec


def all_specs() -> tuple[StrategySpec, ...]:
    """Returns all descriptors in the order of `StrategyKind`."""
    return tuple(spec_of(kind) for kind in StrategyKind)


def all_settings() -> tuple[StrategySetting, ...]:
    """Returns the settings of all strategies except `kind`: shared settings, then the own settings of each strategy."""
    return (*SHARED_SETTINGS, *(setting for spec in all_specs() for setting in spec.own_settings))
