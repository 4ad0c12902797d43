"""Descriptor of none: the script exchanges gradients itself."""

from __future__ import annotations

from torchyard_core.topology.model import StrategyKind
from torchyard_core.topology.strategies.spec import StrategySpec

SPEC = StrategySpec(
    StrategyKind.NONE,
    title="None",
    sentence="The script keeps its parameters in step itself, for example with DDP.",
)
