"""The sort order of Torchyard's versions."""

from __future__ import annotations

import re

_NUMBERS = 4


def version_order(version: str) -> tuple[int, ...]:
    """Returns a sort key for versions: 0.9.1 < 0.10.0rc1 < 0.10.0. Invalid text sorts before all versions."""
    found = re.match(r"(\d+(?:\.\d+)*)(.*)", version.strip())
    if found is None:
        return ()
    numbers = [int(number) for number in found[1].split(".")][:_NUMBERS]
    is_final = not found[2] or found[2].startswith(("+", ".post"))
    return (*numbers, *[0] * (_NUMBERS - len(numbers)), int(is_final))
