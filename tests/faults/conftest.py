"""Fixtures of a team on the three lab hosts, for all fault tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.runs import Team
from tests.lab import Desktop, Lab


@pytest.fixture
def team(lab3: Lab, desktop: Desktop, tmp_path: Path) -> Iterator[Team]:
    """Yields a team that launches runs on the hosts of `lab3`. Fails a test that leaves a process running on a host."""
    team = Team(lab3, desktop, tmp_path)
    yield team
    try:
        team.nothing_is_left()
    finally:
        team.close()
