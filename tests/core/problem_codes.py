"""Finds the codes of all problems in the source code."""

from __future__ import annotations

import re
from pathlib import Path

import torchyard_core


def problem_codes() -> set[str]:
    """Returns the codes of all problems that a check, a parser or the planner can report."""
    root = Path(next(iter(torchyard_core.__path__)))
    codes: set[str] = set()
    for path in (
        path for folder in ("topology", "yaml_io", "launch", "fleet") for path in (root / folder).rglob("*.py")
    ):
        source = path.read_text(encoding="utf-8")
        codes |= set(re.findall(r"\b(?:error|warning|finding)(?:_finding)?\(\s*\"([a-z-]+)\"", source))
        codes |= set(re.findall(r"Problem\(\s*\"(?:error|warning)\",\s*\"([a-z-]+)\"", source))
    assert {"wrong-value", "pin-clash", "no-room", "duplicate-host"} <= codes
    return codes
