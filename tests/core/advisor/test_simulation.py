"""Tests the simulation of exchanges against hand-computed times."""

from __future__ import annotations

import pytest

from torchyard_core.advisor.simulation import Stage, pieces_of, simulate, simulate_groups


def test_pieces_pass_a_link_one_after_the_other_as_they_become_ready() -> None:
    found = simulate([(0.0, 10.0), (1.0, 10.0), (20.0, 10.0)], [Stage(((0, 0.5),))])
    assert found.end_s == 25.0
    assert found.busy_s == {0: 15.0}


def test_stages_of_different_pieces_overlap() -> None:
    stages = [Stage(((0, 1.0),)), Stage(((1, 1.0),))]
    assert simulate([(0.0, 1.0)] * 10, stages).end_s == 11.0
    # Two stages that use the same link do not overlap.
    assert simulate([(0.0, 1.0)] * 10, [Stage(((0, 1.0),)), Stage(((0, 1.0),))]).end_s == 20.0


def test_a_stage_lasts_as_long_as_its_slowest_resource() -> None:
    assert simulate([(0.0, 4.0)], [Stage(((0, 1.0), (1, 2.5)), fixed_s=0.5)]).end_s == 10.5


def test_pieces_keep_the_bytes_and_the_times_of_their_buckets() -> None:
    pieces = pieces_of([(0.1, 1_000_000), (0.2, 25_000_000)])
    assert sum(size for _, size in pieces) == pytest.approx(26_000_000)
    assert {ready for ready, _ in pieces} == {0.1, 0.2}
    assert len(pieces) > 20


def test_groups_hide_their_exchange_until_the_servers_are_busy() -> None:
    # Each exchange keeps the server's link busy for 1 s, and computing takes 4 s.
    stage = [Stage(((0, 0.1),))]
    for groups, step in ((1, 4.0), (3, 4.0), (8, 8.0)):
        steps = simulate_groups([4.0] * groups, [stage] * groups, 10.0, 4)
        assert steps == pytest.approx([step] * groups, rel=0.02)
