"""Descriptor of `diloco`: worker groups train independently, and an outer optimizer averages them at intervals."""

from __future__ import annotations

from torchyard_core.formatting import counted
from torchyard_core.problems import Findings, error_finding, warning_finding
from torchyard_core.topology.model import Role, Strategy, StrategyKind, Topology
from torchyard_core.topology.strategies.sharding import SHARD_KEYS, check_shard_settings, check_sharded_groups
from torchyard_core.topology.strategies.spec import (
    Participants,
    RoleCounts,
    StrategyPreset,
    StrategySetting,
    StrategySpec,
)
from torchyard_core.topology.strategies.traffic import Bundle, Pattern, Traffic, groups_of, served


def _traffic(participants: Participants) -> Traffic:
    groups = participants.groups
    if participants.servers:
        first_replicas = [group[0] for group in groups]
        return Traffic(
            served(first_replicas, participants.servers, in_step=False),
            groups_of(groups, serves=False),
            has_reducers=participants.servers[0].role is Role.REDUCER,
        )
    firsts = tuple(group[0].name for group in groups)
    bundles = (Bundle(Pattern.AVERAGE, firsts, firsts, in_step=False),) if len(firsts) > 1 else ()
    return Traffic(bundles, groups_of(groups, serves=False), trainers_reduce=True)


def _check(topology: Topology, counts: RoleCounts) -> Findings:
    """Yields a warning for a single worker group, and errors for servers, a quorum or fragments that cannot work."""
    if counts[Role.PS] and counts[Role.REDUCER]:
        message = (
            "the parameter servers of diloco average the groups, so that its reducers have nothing to do: remove the "
            "pools with role reducer, or those with role ps"
        )
        yield error_finding("strategy-counts", message, "strategy", "kind")
    yield from _check_quorum(topology, counts)
    groups = topology.strategy.worker_groups or (None if counts[Role.CHIEF] else counts[Role.WORKER])
    if groups == 1:
        message = (
            "diloco has one group here, so that the outer optimizer steps alone and nothing is averaged. Set "
            "`worker_groups` to 2 or more with as many workers, or the kind to all_reduce"
        )
        yield warning_finding("strategy-counts", message, "strategy", "kind")
    yield from _check_fragments(topology.strategy)
    yield from check_shard_settings(topology)
    yield from check_sharded_groups(topology, counts)


def _check_fragments(strategy: Strategy) -> Findings:
    """Yields an error for fragments or overlapped steps that do not fit the inner steps."""
    steps, fragments = strategy.inner_steps, strategy.fragments
    if fragments > steps:
        message = (
            f"`fragments` is {fragments}, and `inner_steps` {steps}: each step averages at most one fragment. Set "
            f"it to {steps} or less"
        )
        yield error_finding("strategy-counts", message, "strategy", "fragments")
    elif strategy.overlap_steps >= steps // fragments:
        message = (
            f"a fragment must be averaged before the next one is sent, {counted(steps // fragments, 'step')} later, "
            f"but `overlap_steps` is {strategy.overlap_steps}. Set it to {steps // fragments - 1} or less"
        )
        yield error_finding("strategy-counts", message, "strategy", "overlap_steps")


def _check_quorum(topology: Topology, counts: RoleCounts) -> Findings:
    strategy = topology.strategy
    if not counts[Role.PS]:
        for key, is_set in (("quorum", strategy.quorum is not None), ("grace_s", strategy.grace_s > 0)):
            if is_set:
                message = (
                    f"`{key}` is for diloco with parameter servers, and there are none: add a pool with role ps, or "
                    f"drop `{key}`"
                )
                yield error_finding("strategy-needs", message, "strategy", key)
        return
    groups = strategy.worker_groups or max(1, counts[Role.CHIEF] + counts[Role.WORKER])
    if strategy.quorum is not None and strategy.quorum > groups:
        message = (
            f"a quorum of {strategy.quorum} cannot be reached with {counted(groups, 'worker group')}: set it to "
            f"{groups} or less"
        )
        yield error_finding("strategy-counts", message, "strategy", "quorum")


def mixing_of(strategy: Strategy) -> float:
    """Returns the fraction of its own parameters that a group keeps when it receives an average."""
    if strategy.mixing is not None:
        return strategy.mixing
    return 0.5 if strategy.overlap_steps else 0.0


SPEC = StrategySpec(
    StrategyKind.DILOCO,
    title="DiLoCo",
    sentence="Groups train independently, and an outer optimizer averages them at intervals. For slow links.",
    preset=StrategyPreset(
        "Four workers that train independently and are averaged every 50 steps.",
        ({"name": "workers", "role": "worker", "replicas": 4, "gpus": 1},),
    ),
    server_role=Role.PS,
    other_server_role=Role.REDUCER,
    servers_are_optional=True,
    is_asynchronous=True,
    trainers_serve=True,
    own_settings=(
        StrategySetting(
            "inner_steps",
            "Inner steps",
            "Steps of each group between two averages. More steps send less but drift further.",
        ),
        StrategySetting(
            "warmup_steps",
            "Warm-up steps",
            "First steps, each followed by a plain average without the outer optimizer.",
        ),
        StrategySetting(
            "outer_lr",
            "Outer learning rate",
            "Of the outer optimizer, SGD with Nesterov momentum. 1 without momentum gives the plain average.",
        ),
        StrategySetting("outer_momentum", "Outer momentum", "Of the outer optimizer, from 0 to below 1."),
        StrategySetting(
            "quorum",
            "Quorum",
            "With parameter servers: number of groups that close a round. Later groups count in the next one.",
            if_unset="all groups",
        ),
        StrategySetting(
            "grace_s", "Grace", "With parameter servers: seconds that a round stays open after its quorum."
        ),
        StrategySetting(
            "fragments",
            "Fragments",
            "Parts of the model that are averaged in turn. More parts make each burst of traffic smaller.",
        ),
        StrategySetting(
            "overlap_steps",
            "Overlapped steps",
            "Steps of training during which a fragment's average is exchanged. 0 waits for it.",
        ),
        StrategySetting(
            "mixing",
            "Mixing",
            "Share of its own parameters that a group keeps when an average arrives.",
            if_unset="0.5 with overlapped steps, else 0",
        ),
        StrategySetting(
            "wire",
            "Wire format",
            "Encoding of what groups send. int8 sends a quarter of the bytes of float32, int4 an eighth.",
            choices=(("float32", "float32"), ("bfloat16", "bfloat16"), ("int8", "int8"), ("int4", "int4")),
        ),
        StrategySetting(
            "error_feedback",
            "Error feedback",
            "Adds the error of an encoding to the next one. It has no effect with float32.",
            choices=((True, "yes"), (False, "no")),
        ),
    ),
    shared_settings=("worker_groups", "on_nan", *SHARD_KEYS),
    edge_labels=(("inner steps: {steps}", "inner_steps"),),
    traffic=_traffic,
    check=_check,
)
