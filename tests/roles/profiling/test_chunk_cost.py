"""Tests the measured CPU time of a chunk."""

from __future__ import annotations

import threading

from torchyard_roles.profiling.chunk_cost import chunk_cpu_s


def test_the_cpu_time_of_a_chunk_is_measured_and_nothing_is_left_running() -> None:
    before = threading.active_count()
    found = chunk_cpu_s()
    assert found is not None
    assert 10e-6 < found < 10e-3
    assert threading.active_count() == before
