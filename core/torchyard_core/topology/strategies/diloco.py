"""Descriptor of diloco: worker groups train independently, and are averaged by an outer optimizer every H steps."""

from __future__ import annotations

from torchyard_core.problems import Findings, warning_finding
from torchyard_core.topology.model import Role, StrategyKind, Topology
from torchyard_core.topology.strategies.spec import (
    Participants,
    RoleCounts,
    StrategyPreset,
    StrategySetting,
    StrategySpec,
)
from torchyard_core.topology.strategies.traffic import Bundle, Pattern, Traffic, groups_of


def _traffic(participants: Participants) -> Traffic:
    groups = participants.groups
    firsts = tuple(group[0].name for group in groups)
    bundles = (Bundle(Pattern.AVERAGE, firsts, firsts, in_step=False),) if len(firsts) > 1 else ()
    return Traffic(bundles, groups_of(groups, serves=False), trainers_reduce=True)


def _check(topology: Topology, counts: RoleCounts) -> Findings:
    """Yields a warning for a single worker group, since there is no other group to average with."""
    groups = topology.strategy.worker_groups or (None if counts[Role.CHIEF] else counts[Role.WORKER])
    if groups == 1:
        message = (
            "diloco has one group here, so that the outer optimizer steps alone and nothing is averaged. Set "
            "`worker_groups` to 2 or more with as many workers, or the kind to all_reduce"
        )
        yield warning_finding("strategy-counts", message, "strategy", "kind")


SPEC = StrategySpec(
    StrategyKind.DILOCO,
    title="DiLoCo",
    sentence="Groups train apart. Every so many steps an outer optimizer averages them: for slow links.",
    preset=StrategyPreset(
        "Four workers that train apart and are averaged every 50 steps.",
        ({"name": "workers", "role": "worker", "replicas": 4, "gpus": 1},),
    ),
    is_asynchronous=True,
    trainers_serve=True,
    own_settings=(
        StrategySetting(
            "inner_steps",
            "Inner steps",
            "Steps of each group between two averages. More steps send less, and drift further.",
        ),
        StrategySetting(
            "warmup_steps",
            "Warm-up steps",
            "First steps that are averaged one by one, without the outer optimizer.",
        ),
        StrategySetting(
            "outer_lr",
            "Outer learning rate",
            "Of the outer optimizer, SGD with Nesterov momentum. 1 without momentum takes the average itself.",
        ),
        StrategySetting("outer_momentum", "Outer momentum", "Of the outer optimizer, from 0 to below 1."),
    ),
    shared_settings=("worker_groups", "on_nan"),
    edge_labels=(("sync every {steps} steps", "inner_steps"),),
    traffic=_traffic,
    check=_check,
)
