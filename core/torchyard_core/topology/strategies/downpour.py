"""Descriptor of `downpour`: worker groups independently push to parameter servers and pull from them."""

from __future__ import annotations

from torchyard_core.problems import Findings, warning_finding
from torchyard_core.topology.model import Role, Shard, StrategyKind, Topology
from torchyard_core.topology.strategies.sharding import SHARD_KEYS, check_shard_settings, check_sharded_groups
from torchyard_core.topology.strategies.spec import (
    Participants,
    RoleCounts,
    StrategyPreset,
    StrategySetting,
    StrategySpec,
)
from torchyard_core.topology.strategies.traffic import Bundle, Traffic, contiguous_blocks, groups_of, served


def _traffic(participants: Participants) -> Traffic:
    groups = participants.groups
    if not participants.servers or not groups:
        return Traffic()
    servers = participants.servers
    server_groups = contiguous_blocks(servers, min(participants.strategy.server_groups, len(servers)))
    bundles: list[Bundle] = []
    is_sharded = participants.strategy.shard is not Shard.NONE
    for number, group in enumerate(groups):
        # If the ranks of a group shard the model, the first of them exchanges parameters for the whole group.
        exchanging = group[:1] if is_sharded else group
        bundles += served(exchanging, server_groups[number % len(server_groups)], in_step=False)
    return Traffic(tuple(bundles), (*groups_of(groups, serves=False), *groups_of(server_groups, serves=True)))


def _check(topology: Topology, counts: RoleCounts) -> Findings:
    """Yields a warning if `max_staleness` is too low for the number of worker groups, and problems of sharding.

    A group exchanges while it computes its next step. If G groups push in turn, each push is therefore computed from
    parameters that are 2G−1 versions old.
    """
    strategy = topology.strategy
    groups = strategy.worker_groups or counts[Role.WORKER]
    if groups > 1 and strategy.max_staleness < 2 * groups - 1:
        message = (
            f"the pushes of {groups} groups that take turns are {2 * groups - 1} versions old, and would be dropped "
            f"with `max_staleness` {strategy.max_staleness}: set it to {2 * groups - 1} or more"
        )
        yield warning_finding("strategy-counts", message, "strategy", "max_staleness")
    yield from check_shard_settings(topology)
    yield from check_sharded_groups(topology, counts)


SPEC = StrategySpec(
    StrategyKind.DOWNPOUR,
    title="Downpour",
    sentence="Groups of trainers push to and pull from servers, each at its own pace.",
    preset=StrategyPreset(  # In SINGA, this preset corresponds to 2 groups of 2 workers and 1 group of 2 servers.
        "Two groups of two workers, each at its own pace, with two parameter servers.",
        (
            {"name": "workers", "role": "worker", "replicas": 4, "gpus": 1},
            {"name": "servers", "role": "ps", "replicas": 2},
        ),
        {"worker_groups": 2},
    ),
    server_role=Role.PS,
    is_asynchronous=True,
    own_settings=(
        StrategySetting(
            "push_every", "Push every", "Steps between two pushes of gradients to the servers. More steps send less."
        ),
        StrategySetting(
            "pull_every",
            "Pull every",
            "Steps between two pulls of parameters from the servers. More steps see older ones.",
        ),
        StrategySetting(
            "max_staleness",
            "Maximum staleness",
            "Pushes computed from parameters older than this many versions are dropped and counted.",
        ),
        StrategySetting(
            "warm_start_steps", "Warm start", "Steps that group 0 trains alone before the other groups begin."
        ),
    ),
    shared_settings=("worker_groups", "server_groups", "reduction_order", "on_nan", *SHARD_KEYS),
    edge_labels=(("push {steps}", "push_every"), ("pull {steps}", "pull_every")),
    traffic=_traffic,
    check=_check,
)
