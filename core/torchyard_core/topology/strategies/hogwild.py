"""Descriptor of `hogwild`: worker groups train independently and exchange parameter deltas with their neighbours."""

from __future__ import annotations

from torchyard_core.topology.model import StrategyKind
from torchyard_core.topology.strategies.spec import Participants, StrategyPreset, StrategySetting, StrategySpec
from torchyard_core.topology.strategies.traffic import Bundle, Pattern, Traffic, groups_of, names_of


def _traffic(participants: Participants) -> Traffic:
    groups = participants.groups
    bundles: tuple[Bundle, ...] = ()
    if len(groups) > 1:
        followers = (*groups[1:], groups[0]) if len(groups) > 2 else groups[1:]
        bundles = tuple(
            Bundle(Pattern.NEIGHBOURS, names_of(group), names_of(follower), in_step=False)
            for group, follower in zip(groups, followers, strict=False)
        )
    return Traffic(bundles, groups_of(groups, serves=False), trainers_reduce=True)


SPEC = StrategySpec(
    StrategyKind.HOGWILD,
    title="Hogwild",
    sentence="Groups train independently and exchange parameters with their neighbours periodically.",
    preset=StrategyPreset(  # In SINGA, this preset corresponds to 3 groups of 1 worker and 3 groups of 1 server.
        "Three workers that train independently and exchange with their neighbours.",
        ({"name": "workers", "role": "worker", "replicas": 3, "gpus": 1},),
    ),
    is_asynchronous=True,
    trainers_serve=True,
    own_settings=(
        StrategySetting(
            "sync_every",
            "Sync every",
            "Updates between two exchanges with the neighbours. More updates send less but drift further.",
        ),
    ),
    shared_settings=("worker_groups", "on_nan"),
    edge_labels=(("f = {steps}", "sync_every"),),
    traffic=_traffic,
)
