"""A team on the three hosts of the lab, for every test of faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.runs import Team
from tests.lab import Desktop, Lab


@pytest.fixture
def team(lab3: Lab, desktop: Desktop, tmp_path: Path) -> Iterator[Team]:
    """Three hosts with real SSH servers, and somebody who launches runs there. Afterwards nothing runs on them."""
    somebody = Team(lab3, desktop, tmp_path)
    yield somebody
    try:
        somebody.nothing_is_left()
    finally:
        somebody.close()
