"""Tests of very long words where GPUs are named, which are refused at once."""

from __future__ import annotations

import time

import pytest

from tests.core.booking.teams import SLOTS
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.slots import parse_slots


@pytest.mark.parametrize("form", ["{0}", "gpu-a:{0}", "gpu-a:0-{0}", "gpu-a:{0}-{0}", "n[{0}]", "n[0-{0}]", "x{0}[0"])
def test_a_very_long_number_is_refused_at_once(form: str) -> None:
    """Python raises ValueError for numbers of more than 4,300 digits."""
    began = time.thread_time()
    with pytest.raises(Refused):
        parse_slots(form.format("9" * 20_000), SLOTS)
    assert time.thread_time() - began < 1.0
