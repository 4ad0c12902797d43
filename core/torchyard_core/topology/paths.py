"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path


def expanded(path: Path | str) -> Path:
    """`~` and `~name` replaced; left as they are where nobody knows that home, as shells do it."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
