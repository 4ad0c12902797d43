"""The few pictures that a stylesheet needs as files: arrows of boxes and ticks, in the colours of the tokens."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from torchyard_gui.theme.svg_files import drawing
from torchyard_gui.theme.tokens import Tokens

ARROWS = {
    "down": ("chevron-down", "text2"),
    "up": ("chevron-up", "text2"),
    "right": ("chevron-right", "text2"),
    "tick": ("check", "on_accent"),
    "dash": ("minus", "on_accent"),
}


@cache
def write_arrows(tokens: Tokens) -> dict[str, str]:
    """Where each picture lies, with forward slashes as stylesheets want it."""
    folder = Path(_folder().name) / ("dark" if tokens.dark else "light")
    folder.mkdir(exist_ok=True)
    paths = {}
    for name, (picture, token) in ARROWS.items():
        file = folder / f"{name}.svg"
        file.write_text(drawing(picture, getattr(tokens, token)), encoding="utf-8")
        paths[name] = file.as_posix()
    return paths


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Taken away when the program ends."""
    return tempfile.TemporaryDirectory(prefix="torchyard-theme-")
