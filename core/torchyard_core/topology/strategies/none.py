"""Descriptor of `none`: the script exchanges gradients itself."""

from __future__ import annotations

from torchyard_core.topology.model import StrategyKind
from torchyard_core.topology.strategies.spec import StrategySpec

SPEC = StrategySpec(
    StrategyKind.NONE,
    title="None",
    sentence="The script synchronises its parameters itself, for example with DDP.",
)
