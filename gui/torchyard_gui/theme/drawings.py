"""The icons' SVG texts, with their colour filled in. No Qt."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


def drawing(name: str, color: str) -> str:
    """The SVG text of an icon, drawn in `color`."""
    return _text(name).replace("currentColor", color)


@cache
def _text(name: str) -> str:
    return (files("torchyard_resources") / "icons" / f"{name}.svg").read_text(encoding="utf-8")
