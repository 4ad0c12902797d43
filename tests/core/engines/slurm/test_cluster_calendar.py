"""Tests of the lanes of a cluster's nodes: jobs and reservations in the form of bookings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.core.engines.slurm.samples import CLUSTER
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import is_of_cluster
from torchyard_core.booking.slots import format_slots, parse_slots
from torchyard_core.engines.slurm.cluster_calendar import NO_LIMIT, ClusterCalendar

START, END = 1796000000.0, 1796007200.0
ANSWER: dict[str, Any] = {
    "as_of": START,
    "nodes": [
        {"name": "n1", "gpus": {"a100": 4}, "cpus": 32},
        {"name": "n2", "gpus": {"a100": 4}, "cpus": 32},
        {"name": "c1", "gpus": {}, "cpus": 64},
    ],
    "reservations": [
        {"name": "maint", "start": START, "end": END, "nodes": ["n2", "c1"], "users": ["root"], "state": "ACTIVE"},
        {"name": "other", "start": START, "end": END, "nodes": ["x9"], "users": [], "state": "ACTIVE"},
    ],
    "jobs": [
        {"id": "7", "name": "train", "user": "lee", "start": START, "end": END, "nodes": ["n1"]},
        {"id": "8", "name": "wrap", "user": "kim", "start": START, "end": None, "nodes": ["n1", "n2"]},
    ],
}


def test_nodes_are_lanes_in_the_order_of_slurm() -> None:
    found = ClusterCalendar.from_answer(CLUSTER, ANSWER)
    assert [(slot.name, slot.model, slot.is_cpu) for slot in found.slots] == [
        ("hpc:n1", "4 × a100", False),
        ("hpc:n2", "4 × a100", False),
        ("hpc:c1", "64 CPUs", False),
    ]
    assert all(is_of_cluster(slot.id) for slot in found.slots)
    assert [slot.node for slot in parse_slots("hpc:c1", found.slots)] == ["c1"]


def test_jobs_and_reservations_are_shown_like_bookings_with_their_ends() -> None:
    found = ClusterCalendar.from_answer(CLUSTER, ANSWER)
    shown = {one.title: (one.owner, format_slots(one.gpus, found.slots)) for one in found.bookings}
    assert shown == {
        "job 7 (train)": ("lee", "hpc:n1"),
        "job 8": ("kim", "hpc:n1, hpc:n2"),
        "reservation maint": ("root", "hpc:n2, hpc:c1"),  # The other reservation is of another partition's nodes.
    }
    first, unlimited, _ = found.bookings
    assert (first.start, first.end) == (datetime.fromtimestamp(START, UTC), datetime.fromtimestamp(END, UTC))
    assert unlimited.duration == NO_LIMIT
    assert "without a time limit" in unlimited.purpose
    assert all(is_of_cluster(one.id) for one in found.bookings)


def test_a_part_of_a_node_cannot_be_booked() -> None:
    slots = ClusterCalendar.from_answer(CLUSTER, ANSWER).slots
    with pytest.raises(Refused, match="Slurm reserves whole nodes, so `hpc:n1:0` cannot be booked"):
        parse_slots("hpc:n1:0", slots)


def test_reservations_that_mirror_known_bookings_are_not_shown_twice() -> None:
    own = {**ANSWER["reservations"][0], "name": "torchyard_b1"}
    found = ClusterCalendar.from_answer(CLUSTER, {**ANSWER, "reservations": [own]})
    assert found.has_reservation("b1")
    assert not found.has_reservation("b2")
    assert [one.title for one in found.without({"b1"})] == ["job 7 (train)", "job 8"]
    assert len(found.without({"b2"})) == 3


def test_jobs_of_the_login_are_those_of_the_person_and_a_login_of_the_person_s_name_is_another_user() -> None:
    found = ClusterCalendar.from_answer(CLUSTER, {**ANSWER, "user": "lee"})
    assert [one.owner for one in found.seen_by("root").bookings] == ["root", "kim", "root on hpc"]
    assert [one.owner for one in found.seen_by("lee").bookings] == ["lee", "kim", "root"]
    assert ClusterCalendar.from_answer(CLUSTER, ANSWER).seen_by("kim").bookings == found.bookings
    several = {**ANSWER["reservations"][0], "users": ["root", "lee"]}
    both = ClusterCalendar.from_answer(CLUSTER, {**ANSWER, "user": "lee", "jobs": [], "reservations": [several]})
    assert [one.owner for one in both.seen_by("ada").bookings] == ["root, ada"]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [("hpc:n[1-2]", ["n1", "n2"]), ("hpc:n[1,2] hpc:c1", ["n1", "n2", "c1"]), ("hpc:c[1]", ["c1"])],
)
def test_several_nodes_are_named_as_slurm_does(text: str, nodes: list[str]) -> None:
    slots = ClusterCalendar.from_answer(CLUSTER, ANSWER).slots
    assert [slot.node for slot in parse_slots(text, slots)] == nodes


def test_a_range_of_nodes_that_is_too_long_or_unknown_is_refused() -> None:
    slots = ClusterCalendar.from_answer(CLUSTER, ANSWER).slots
    for text in ("hpc:n[1-999999999]", "hpc:n[2-3]", "hpc:n[x]"):
        with pytest.raises(Refused):
            parse_slots(text, slots)
