"""The strategies that a launch can run; apart from the launch itself, which takes longer to import."""

from __future__ import annotations

from torchyard_core.topology.model import StrategyKind

RUNNABLE = tuple(StrategyKind)
"""All of them."""
