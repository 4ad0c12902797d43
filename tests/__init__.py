"""The tests of Torchyard. README.md describes their fixtures and the lab."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
