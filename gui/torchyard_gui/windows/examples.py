"""The example that comes with the source: opened at a first start's wish."""

from __future__ import annotations

from pathlib import Path

import torchyard_core

EXAMPLE = Path("examples", "digits", "this-computer.yaml")


def example_file() -> Path | None:
    """The example's file, or None where the program was installed without it."""
    path = Path(torchyard_core.__file__).resolve().parents[2] / EXAMPLE
    return path if path.is_file() else None
