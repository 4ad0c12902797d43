"""The icons' SVG texts, with their colour filled in. No Qt."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable


def drawing(name: str, color: str) -> str:
    """The SVG text of an icon, drawn in `color`."""
    return _text(name).replace("currentColor", color)


@cache
def _text(name: str) -> str:
    return (_folder() / f"{name}.svg").read_text(encoding="utf-8")


@cache
def _folder() -> Traversable:
    return files("torchyard_resources") / "icons"
