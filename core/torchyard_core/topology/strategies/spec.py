"""Descriptor of a strategy: the data needed by the checks, the editor, the canvas and the presets.

Each module of this package that is named after a `StrategyKind` contains the descriptor of that kind as `SPEC`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchyard_core.problems import Findings
from torchyard_core.topology.model import Role, Strategy, StrategyKind, Topology
from torchyard_core.topology.replicas import Replica
from torchyard_core.topology.strategies.traffic import Traffic

RoleCounts = Mapping[Role, int]
"""Number of replicas of each role."""


@dataclass(frozen=True)
class StrategySetting:
    """A setting in the form of the editor. Its default and bounds are defined by the field in `model.Strategy`."""

    key: str
    """Name of the field."""
    title: str
    sentence: str
    """Description of the setting's effect."""
    choices: tuple[tuple[str, str], ...] = ()
    """Values and their titles, for a field that is an enum."""
    if_unset: str = ""
    """What the editor shows in the empty field of a setting whose default is None."""


@dataclass(frozen=True)
class StrategyPreset:
    """The pools and settings that the strategy's preset adds to an empty topology."""

    sentence: str
    pools: tuple[Mapping[str, Any], ...]
    """Pools as in a preset's file (`resources/presets`)."""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExchangeCost:
    """The estimated duration of the exchange of one step."""

    sentences: tuple[str, ...]
    """Templates of `durations`, `counts`, `{trainers}` and `{servers}`. Durations are formatted with their unit."""
    durations: Mapping[str, float]
    """In M/B, the size of the gradients over the bandwidth of a host's link."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers of servers."""


@dataclass(frozen=True)
class Participants:
    """The replicas among which a strategy exchanges gradients or parameters."""

    strategy: Strategy
    trainers: tuple[Replica, ...]
    groups: tuple[tuple[Replica, ...], ...]
    """The worker groups, without empty ones."""
    servers: tuple[Replica, ...]
    """Replicas of the strategy's `server_role`."""


@dataclass(frozen=True)
class StrategySpec:
    """The descriptor of a strategy.

    The class with the same name in `torchyard_roles` implements its behaviour in a run.
    """

    kind: StrategyKind
    title: str
    sentence: str
    """Description of the strategy, shown in the choice of a strategy."""
    preset: StrategyPreset | None = None
    server_role: Role | None = None
    """Role of the servers that the strategy cannot work without."""
    is_asynchronous: bool = False
    """Whether each worker group trains independently, with its own process group and gang."""
    trainers_serve: bool = False
    """Whether each worker group serves the parameters by itself, without pools of servers."""
    own_settings: tuple[StrategySetting, ...] = ()
    """Settings of this strategy alone; other kinds ignore them with a warning."""
    shared_settings: tuple[str, ...] = ()
    """Keys of `registry.SHARED_SETTINGS` that have an effect."""
    edge_labels: tuple[tuple[str, str], ...] = ()
    """Labels of the canvas' edges: templates of `{steps}`, and the setting that gives the number."""
    traffic: Callable[[Participants], Traffic] = lambda participants: Traffic()
    """Edges and groups; without edges while servers are missing."""
    exchange_cost: Callable[[int, int], ExchangeCost | None] = lambda trainers, servers: None
    """By the numbers of trainers (2 or more) and servers; None for an exchange that no step waits for."""
    check: Callable[[Topology, RoleCounts], Findings] = lambda *given: iter(())
    """Yields problems that are specific to this strategy."""
    check_script: Callable[[Strategy, str, str], Findings] = lambda *given: iter(())
    """Yields problems of the script, from its path and source."""

    @property
    def settings(self) -> frozenset[str]:
        """The keys of all settings that have an effect."""
        return frozenset((*(setting.key for setting in self.own_settings), *self.shared_settings))
