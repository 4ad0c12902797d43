"""Descriptors of all strategies, by kind."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from torchyard_core.topology.model import StrategyKind
from torchyard_core.topology.strategies.shared_settings import SHARED_SETTINGS
from torchyard_core.topology.strategies.spec import StrategySetting, StrategySpec


@cache
def spec_of(kind: StrategyKind) -> StrategySpec:
    """The `SPEC` of the module that is named like the kind."""
    spec: StrategySpec = import_module(f"torchyard_core.topology.strategies.{kind.value}").SPEC
    return spec


def all_specs() -> tuple[StrategySpec, ...]:
    """All descriptors, in the order of `StrategyKind`."""
    return tuple(spec_of(kind) for kind in StrategyKind)


def all_settings() -> tuple[StrategySetting, ...]:
    """All settings but the kind."""
    return (*SHARED_SETTINGS, *(setting for spec in all_specs() for setting in spec.own_settings))
