"""Tests the measured CPU time of a chunk."""

from __future__ import annotations

import threading

import pytest

from torchyard_roles.profiling import chunk_cost
from torchyard_roles.profiling.chunk_cost import chunk_cpu_s


def test_the_cpu_time_of_a_chunk_is_measured_and_nothing_is_left_running() -> None:
    before = threading.active_count()
    found = chunk_cpu_s()
    assert found is not None
    assert 10e-6 < found < 10e-3
    assert threading.active_count() == before


def test_a_host_without_loopback_has_a_profile_without_this_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(address: str, port: int) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(chunk_cost, "listen", refused)
    assert chunk_cpu_s() is None
