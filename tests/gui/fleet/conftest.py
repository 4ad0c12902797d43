"""Fixtures of the Fleet page's tests."""

from __future__ import annotations

from tests.gui.fleet.hosts import desktop_model, show

__all__ = ["desktop_model", "show"]
