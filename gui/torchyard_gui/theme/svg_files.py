"""Icons as SVG strings, and the SVG files for the style sheet. Does not depend on Qt."""

from __future__ import annotations

import tempfile
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from torchyard_gui.theme.tokens import Tokens


def svg_text(name: str, color: str) -> str:
    """Returns an icon in the given colour as an SVG string."""
    return _text(name).replace("currentColor", color)


@cache
def _text(name: str) -> str:
    return (_folder() / f"{name}.svg").read_text(encoding="utf-8")


@cache
def _folder() -> Traversable:
    return files("torchyard_resources") / "icons"


ARROWS = {
    "down": ("chevron-down", "text2"),
    "up": ("chevron-up", "text2"),
    "right": ("chevron-right", "text2"),
    "tick": ("check", "on_accent"),
    "dash": ("minus", "on_accent"),
}


@cache
def write_stylesheet_svgs(tokens: Tokens) -> dict[str, str]:
    """Writes the SVG files for the style sheet. Returns the paths by name, with forward slashes."""
    folder = Path(_written().name) / ("dark" if tokens.dark else "light")
    folder.mkdir(exist_ok=True)
    paths = {}
    for name, (picture, token) in ARROWS.items():
        file = folder / f"{name}.svg"
        file.write_text(svg_text(picture, getattr(tokens, token)), encoding="utf-8")
        paths[name] = file.as_posix()
    return paths


@cache
def _written() -> tempfile.TemporaryDirectory[str]:
    """Returns the temporary folder for the SVG files. The folder is removed when the program exits."""
    return tempfile.TemporaryDirectory(prefix="torchyard-theme-")
