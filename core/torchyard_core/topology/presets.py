"""Presets: a strategy with the pools that it needs, as data in `resources/presets`, one file for each kind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from torchyard_core.topology.edits import add_replicas, set_strategy
from torchyard_core.topology.model import Role, Strategy, StrategyKind, Topology
from torchyard_core.topology.reduction import reducers_that_beat_the_ring
from torchyard_core.topology.replicas import replicas_of
from torchyard_core.topology.yaml_compose import compose

PRESETS = tuple(kind for kind in StrategyKind if kind is not StrategyKind.NONE)
"""The strategies that have one."""
BEATS_RING = "beats_ring"
"""What a file says for the reducers' number: as many as the rule asks for."""
ENOUGH = 1
"""Reducers where no number beats the ring: somebody asked for them."""


@dataclass(frozen=True)
class PresetPool:
    """A pool as a preset has it."""

    name: str
    role: Role
    replicas: int | None
    """None: by the rule for reducers."""
    gpus: int


@dataclass(frozen=True)
class Preset:
    """What a preset adds to a design."""

    strategy: dict[str, Any]
    pools: tuple[PresetPool, ...]


@cache
def preset(kind: StrategyKind) -> Preset:
    """The preset of a strategy, read from its file when it is first asked for."""
    name = f"presets/{kind.value}.yaml"
    text = files("torchyard_resources").joinpath(name).read_text(encoding="utf-8")
    data = compose(text, name).data
    pools = tuple(
        PresetPool(
            said["name"],
            Role(said["role"]),
            None if said["replicas"] == BEATS_RING else int(said["replicas"]),
            int(said.get("gpus", 0)),
        )
        for said in data["pools"]
    )
    return Preset(dict(data["strategy"]), pools)


def with_preset(topology: Topology, kind: StrategyKind, *, has_gpus: bool) -> tuple[Topology, tuple[str, ...]]:
    """The topology with the preset's strategy and pools, and the names of the replicas that are new.

    A role that the design has already stays as it is: those numbers are somebody's. The strategy's other settings go
    back to their defaults. Without GPUs anywhere the new trainers ask for none.
    """
    chosen = preset(kind)
    defaults = {key: field.get_default(call_default_factory=True) for key, field in Strategy.model_fields.items()}
    settings = defaults | chosen.strategy
    groups = settings["worker_groups"]
    after, new = topology, list[str]()
    for pool in chosen.pools:
        if any(other.role is pool.role for other in after.pools):
            continue
        count = pool.replicas if pool.replicas is not None else reducers_for(after)
        after, names = add_replicas(after, pool.role, count, gpus=pool.gpus if has_gpus else 0)
        new += names
    workers = sum(pool.replicas for pool in after.pools if pool.role is Role.WORKER)
    settings["worker_groups"] = None if groups is None else min(groups, max(1, workers))
    return set_strategy(after, **settings), tuple(new)


def reducers_for(topology: Topology) -> int:
    """How many reducers are worth their while beside a topology's trainers."""
    trainers = sum(replica.role.trains for replica in replicas_of(topology))
    return reducers_that_beat_the_ring(trainers) or ENOUGH
