"""Fixtures of the tests of models and hosts."""

from __future__ import annotations

from tests.gui.fleet.hosts import desktop_model

__all__ = ["desktop_model"]
