"""One value of many things at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchyard_gui.topology.labels import tr


def mixed() -> str:
    """What a field says where things differ."""
    return tr("several values")


def one_of(values: Sequence[Any]) -> tuple[Any, bool]:
    """(the value that all have, whether there is one)."""
    if values and all(value == values[0] for value in values):
        return values[0], True
    return None, False
