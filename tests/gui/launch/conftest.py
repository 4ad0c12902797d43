"""Fixtures of the launch tests."""

from __future__ import annotations

from tests.gui.launch.window import window

__all__ = ["window"]
