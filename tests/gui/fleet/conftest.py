"""Fixtures of the tests of the Fleet page."""

from __future__ import annotations

from tests.gui.fleet.hosts import desktop_model, show

__all__ = ["desktop_model", "show"]
