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
    """A setting as the editor's form shows it. The field in `model.Strategy` defines its default and bounds."""

    key: str
    """Name of the field in `model.Strategy`."""
    title: str
    sentence: str
    """Description of the setting's effect."""
    choices: tuple[tuple[str | bool, str], ...] = ()
    """Values and their titles, for a field that is an enum or a boolean."""
    if_unset: str = ""
    """Text that the editor shows in the empty field of a setting whose default is None."""
    is_essential: bool = False
    """Whether a run may fail if its strategy ignores this setting.

    The checks report such a setting as an error if the strategy does not support it.
    """


@dataclass(frozen=True)
class StrategyPreset:
    """The pools and settings that the strategy's preset adds to an empty topology."""

    sentence: str
    pools: tuple[Mapping[str, Any], ...]
    """Pools in the same form as in a preset's file (`resources/presets`)."""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExchangeCost:
    """The estimated duration of the exchange of one step."""

    sentences: tuple[str, ...]
    """Templates with the placeholders `{trainers}`, `{servers}`, and the keys of `durations` and `counts`."""
    durations: Mapping[str, float]
    """Durations by placeholder in units of M/B: the size of the gradients divided by the bandwidth of a host's link."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Further numbers in the sentences, such as numbers of servers, by placeholder."""


@dataclass(frozen=True)
class Participants:
    """The replicas among which a strategy exchanges gradients or parameters."""

    strategy: Strategy
    trainers: tuple[Replica, ...]
    groups: tuple[tuple[Replica, ...], ...]
    """The worker groups. Empty groups are omitted."""
    servers: tuple[Replica, ...]
    """Replicas of the strategy's `server_roles`."""


@dataclass(frozen=True)
class StrategySpec:
    """The descriptor of a strategy. `torchyard_roles.strategies` implements the strategy's behaviour in a run."""

    kind: StrategyKind
    title: str
    sentence: str
    """Description of the strategy, shown in the choice of a strategy."""
    preset: StrategyPreset | None = None
    server_role: Role | None = None
    """Role of the servers that the strategy uses."""
    other_server_role: Role | None = None
    """Role of the servers that the strategy can use instead of those with `server_role`."""
    servers_are_optional: bool = False
    """Whether the strategy also works without any servers."""
    is_asynchronous: bool = False
    """Whether each worker group trains independently, with its own process group and gang."""
    trainers_serve: bool = False
    """Whether each worker group can serve the parameters by itself, without pools of servers."""
    own_settings: tuple[StrategySetting, ...] = ()
    """Settings that only this strategy has. The checks report such a setting if another strategy is used."""
    shared_settings: tuple[str, ...] = ()
    """Keys of `registry.SHARED_SETTINGS` that have an effect under this strategy."""
    edge_labels: tuple[tuple[str, str], ...] = ()
    """Labels of the edges on the canvas: templates with `{steps}`, each with the setting that contains this number."""
    traffic: Callable[[Participants], Traffic] = lambda participants: Traffic()
    """Returns the strategy's edges and groups. There are no edges if required servers are missing."""
    exchange_cost: Callable[[int, int], ExchangeCost | None] = lambda trainers, servers: None
    """Returns the cost of a step's exchange for a number of trainers (2 or more) and a number of servers.

    The result is None if steps do not wait for the exchange, or if required servers are missing.
    """
    check: Callable[[Topology, RoleCounts], Findings] = lambda *given: iter(())
    """Yields the problems that are specific to this strategy."""
    check_script: Callable[[Strategy, str, str], Findings] = lambda *given: iter(())
    """Yields problems of the script, given the strategy, and the path and source of the script."""

    @property
    def server_roles(self) -> tuple[Role, ...]:
        return tuple(role for role in (self.server_role, self.other_server_role) if role is not None)

    @property
    def settings(self) -> frozenset[str]:
        """The keys of all settings that have an effect under this strategy."""
        return frozenset((*(setting.key for setting in self.own_settings), *self.shared_settings))
