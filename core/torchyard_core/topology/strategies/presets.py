"""Presets: a strategy with the pools that it needs. Some are modelled on other frameworks or scale tiers of CloudML.

The presets of strategies are part of their descriptors; the other presets are files in `resources/presets`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from torchyard_core.errors import UsageError
from torchyard_core.problems import nearest
from torchyard_core.topology.document.edits import (
    add_replicas,
    empty_topology,
    pools_of,
    remove_replicas,
    set_pools,
    set_program,
    set_strategy,
)
from torchyard_core.topology.model import MAX_REPLICAS, Launcher, Role, Strategy, StrategyKind, Topology
from torchyard_core.topology.replicas import replicas_of
from torchyard_core.topology.strategies.reduction_cost import reducers_for_bandwidth, reducers_that_beat_the_ring
from torchyard_core.topology.strategies.registry import all_specs, spec_of
from torchyard_core.topology.strategies.spec import StrategySpec
from torchyard_core.yaml_io.parser import parse_yaml

PRESETS = tuple(spec.kind for spec in all_specs() if spec.preset is not None)
"""The kinds of the strategies that have a preset. The kind is the key of the preset."""
GROUPS = ("strategies", "frameworks", "scale tiers")
"""Values of `Preset.group`, in the order of display."""
BEATS_RING = "beats_ring"
"""Value of `replicas` that stands for the lowest number of reducers that exchange gradients faster than a ring."""
BANDWIDTH = "bandwidth"
"""Value of `replicas` that stands for the number of reducers that match the trainers' total bandwidth.

`reducers_for_bandwidth` computes this number from `worker_gbps` and `reducer_gbps`.
"""
MIN_REDUCERS = 1
"""Number of reducers to use if no number of reducers is faster than a ring."""


@dataclass(frozen=True)
class PresetPool:
    """A pool of a preset."""

    name: str
    role: Role
    replicas: int | None
    """The number of replicas. None if BEATS_RING or BANDWIDTH determines it."""
    gpus: int
    data: Mapping[str, Any]
    """All keys of the pool in the preset."""


@dataclass(frozen=True)
class Preset:
    """A strategy, and pools to add to a topology."""

    key: str
    """The kind of the preset's strategy, or the name of the preset's file."""
    group: str
    title: str
    sentence: str
    """Description of what the preset adds to an empty topology."""
    strategy: dict[str, Any]
    pools: tuple[PresetPool, ...]

    def as_data(self) -> dict[str, Any]:
        """Returns the preset as plain data, in the format of its file."""
        pools = [dict(pool.data) for pool in self.pools]
        return {"name": self.key, "group": self.group, "title": self.title, "sentence": self.sentence} | {
            "strategy": self.strategy,
            "pools": pools,
        }


@cache
def preset(key: str) -> Preset:
    """Returns the preset named after a strategy or a file. Raises UsageError for an unknown name."""
    if key in PRESETS:
        return _strategy_preset(spec_of(StrategyKind(key)))
    if key not in _keys():
        meant = nearest(key, _keys())
        hint = meant or f"There are {', '.join(_keys())}."
        raise UsageError(f"there is no preset {key}.", code="no_preset", hint=hint)
    name = f"presets/{key}.yaml"
    text = files("torchyard_resources").joinpath(name).read_text(encoding="utf-8")
    data = parse_yaml(text, name).data
    return Preset(key, data["group"], data["title"], data["sentence"], dict(data["strategy"]), _pools(data["pools"]))


def _strategy_preset(spec: StrategySpec) -> Preset:
    chosen = spec.preset
    assert chosen is not None, spec.kind
    strategy = {"kind": spec.kind.value, **chosen.settings}
    return Preset(spec.kind.value, GROUPS[0], spec.title, chosen.sentence, strategy, _pools(chosen.pools))


def _pools(pools: Iterable[Mapping[str, Any]]) -> tuple[PresetPool, ...]:
    return tuple(
        PresetPool(
            pool["name"],
            Role(pool["role"]),
            None if pool["replicas"] in (BEATS_RING, BANDWIDTH) else int(pool["replicas"]),
            int(pool.get("gpus", 0)),
            pool,
        )
        for pool in pools
    )


@cache
def _keys() -> tuple[str, ...]:
    folder = files("torchyard_resources").joinpath("presets")
    names = (file.name for file in folder.iterdir() if file.name.endswith(".yaml"))
    return tuple(sorted((*PRESETS, *(name.removesuffix(".yaml") for name in names))))


@cache
def all_presets() -> tuple[Preset, ...]:
    """Returns all presets by group: strategies in the order of their kinds, scale tiers by size."""
    kinds = [kind.value for kind in PRESETS]

    def order(one: Preset) -> tuple[int, int, int, str]:
        kind = kinds.index(one.key) if one.key in kinds else len(kinds)
        size = sum(pool.replicas or 0 for pool in one.pools) if one.group == GROUPS[-1] else 0
        if one.key == "custom":
            size = MAX_REPLICAS  # The tier `custom` follows the tiers of fixed size.
        return GROUPS.index(one.group), kind, size, one.key

    return tuple(sorted((preset(key) for key in _keys()), key=order))


def presets_of(group: str) -> tuple[Preset, ...]:
    return tuple(one for one in all_presets() if one.group == group)


def unused_replicas(topology: Topology, key: str) -> Mapping[Role, tuple[str, ...]]:
    """Returns, by role, the topology's servers and reducers that neither the preset's strategy nor its pools use.

    The result is empty if the launcher is `command`.
    """
    chosen = preset(key)
    if topology.program.launcher is Launcher.COMMAND:
        return {}  # With launcher `command`, the framework determines what its servers do.
    used = {*spec_of(StrategyKind(chosen.strategy["kind"])).server_roles, *(pool.role for pool in chosen.pools)}
    names = {
        role: tuple(replica.name for replica in replicas_of(topology) if replica.role is role)
        for role in (Role.PS, Role.REDUCER)
        if role not in used
    }
    return {role: found for role, found in names.items() if found}


def with_preset(
    topology: Topology, key: str, *, has_gpus: bool, removes_unused: bool = False
) -> tuple[Topology, tuple[str, ...]]:
    """Returns the topology with the preset's strategy and pools, and the names of the new replicas.

    A pool of the preset is added only if the topology has no pool of its role. `removes_unused` removes the replicas
    that `unused_replicas` returns. Other settings of the strategy are reset to defaults. If `has_gpus` is false, the
    new replicas require no GPUs.
    """
    chosen = preset(key)
    if removes_unused:
        topology = remove_replicas(
            topology, [name for names in unused_replicas(topology, key).values() for name in names]
        )
    defaults = {name: field.get_default(call_default_factory=True) for name, field in Strategy.model_fields.items()}
    settings = defaults | chosen.strategy
    groups = settings["worker_groups"]
    after, new = topology, list[str]()
    for pool in chosen.pools:
        if any(other.role is pool.role for other in after.pools):
            continue
        count = pool.replicas if pool.replicas is not None else _by_rule(after, pool)
        after, names = add_replicas(after, pool.role, count, gpus=pool.gpus if has_gpus else 0)
        more = {name: value for name, value in pool.data.items() if name not in _COMPUTED_KEYS}
        if not has_gpus:
            more = {name: value for name, value in more.items() if not name.startswith("gpu_")}
        if more:
            after = set_pools(after, pools_of(after, names), **more)
        new += names
    workers = sum(pool.replicas for pool in after.pools if pool.role is Role.WORKER)
    settings["worker_groups"] = None if groups is None else min(groups, max(1, workers))
    return set_strategy(after, **settings), tuple(new)


def preset_topology(key: str) -> Topology:
    """Returns a topology of the preset alone, with GPUs and a placeholder script.

    Raises UsageError for an unknown preset.
    """
    made, _ = with_preset(empty_topology(key.replace("_", "-")), key, has_gpus=True)
    return set_program(made, script="train.py")


_COMPUTED_KEYS = ("name", "role", "replicas", "gpus", "worker_gbps", "reducer_gbps")
"""Keys of a preset's pool whose values are computed rather than copied."""


def _by_rule(topology: Topology, pool: PresetPool) -> int:
    if pool.data["replicas"] == BEATS_RING:
        return reducers_for(topology)
    trainers = sum(replica.role.trains for replica in replicas_of(topology))
    return reducers_for_bandwidth(trainers, pool.data["worker_gbps"], pool.data["reducer_gbps"])


def reducers_for(topology: Topology) -> int:
    """Returns the lowest number of reducers that are faster than a ring of the topology's trainers.

    Returns MIN_REDUCERS if no number of reducers is faster.
    """
    trainers = sum(replica.role.trains for replica in replicas_of(topology))
    return reducers_that_beat_the_ring(trainers) or MIN_REDUCERS
