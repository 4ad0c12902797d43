"""Fixtures of tests of the window's models, some of which use lab hosts."""

from __future__ import annotations

from tests.gui.fleet.hosts import desktop_model

__all__ = ["desktop_model"]
