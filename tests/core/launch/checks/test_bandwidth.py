"""Tests of measuring bandwidths: which pairs of hosts are measured in which round, and what the check reports."""

from __future__ import annotations

import time
from itertools import chain, combinations

import pytest

from torchyard_core.launch.bandwidth_cache import Measurement
from torchyard_core.launch.checks.bandwidth import check_bandwidth, rounds
from torchyard_core.launch.checks.connectivity import directions, neighbours

DAY = 86400.0
NOW = 1_800_000_000.0


def hosts(count: int) -> list[str]:
    return [f"gpu-{number}" for number in range(count)]


def test_few_hosts_are_measured_pair_by_pair_and_many_in_a_ring() -> None:
    assert neighbours(hosts(8)) == list(combinations(hosts(8), 2))
    ring = neighbours(hosts(9))
    assert len(ring) == 9
    assert all(list(chain(*ring)).count(host) == 2 for host in hosts(9))
    assert neighbours(hosts(1)) == []


def test_every_way_is_tried_both_ways_and_always_with_the_primary() -> None:
    assert len(directions(hosts(4))) == 12
    many = directions(hosts(20))
    assert len(set(many)) == len(many)
    assert all((host, "gpu-0") in many and ("gpu-0", host) in many for host in hosts(20)[1:])


@pytest.mark.parametrize("count", [2, 3, 8, 9, 16, 33])
def test_no_host_is_in_two_pairs_at_once(count: int) -> None:
    pairs = neighbours(hosts(count))
    turns = rounds(pairs)

    assert sorted(chain(*turns)) == sorted(pairs)
    for turn in turns:
        in_turn = list(chain(*turn))
        assert len(set(in_turn)) == len(in_turn)
    assert len(turns) <= (3 if count > 8 else 2 * count)


def test_the_line_says_which_figure_is_old_and_why() -> None:
    lines = check_bandwidth(
        [
            Measurement(("a", "b"), 1.25e9, NOW),
            Measurement(("a", "c"), 1.2e9, NOW - 5 * 3600),
            Measurement(("b", "c"), 1.1e9, NOW - 3 * DAY, "the network of c is busy"),
        ],
        NOW,
    )

    [line] = lines
    assert line.severity == "green"
    assert line.message == (
        "b ↔ c 8.8 Gbit/s (measured 3 days ago: the network of c is busy), a ↔ c 9.6 Gbit/s (measured 5 h ago), "
        "a ↔ b 10.0 Gbit/s"
    )


def test_a_pair_that_is_far_slower_than_the_rest_is_a_warning() -> None:
    lines = check_bandwidth(
        [
            Measurement(("a", "b"), 1.25e9, NOW),
            Measurement(("a", "c"), 1.2e9, NOW),
            Measurement(("b", "c"), 0.11e9, NOW),
        ],
        NOW,
    )

    assert lines[1].severity == "amber"
    assert "b and c exchange 880 Mbit/s, the median pair 9.6 Gbit/s" in lines[1].message
    assert "interface" in lines[1].hint


def test_a_pair_that_was_never_measured_says_so() -> None:
    [line] = check_bandwidth([Measurement(("a", "b"), None, 0.0, "the network of a is busy")], time.time())

    assert line.severity == "amber"
    assert line.message == "a and b were not measured: the network of a is busy."
