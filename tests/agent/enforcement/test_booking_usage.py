"""Tests of the evidence from which idle bookings and the use of GPUs are determined."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.agent.enforcement.calendars import HOUR, T0, A, B, booking, snapshot
from torchyard_agent.enforcement.booking_usage import Idle, Used, from_json, is_busy, note_uses, to_json, update_idle
from torchyard_agent.protocol.calendar import parse

BOOKINGS = parse(snapshot(booking("lee", T0, T0 + HOUR, A, B))).bookings


def seen(known: dict[str, Idle], after_s: float, *busy: str) -> dict[str, Idle]:
    return update_idle(known, BOOKINGS, busy, {A, B}, T0 + after_s, 180.0)


def test_idle_time_grows_with_samples_and_ends_with_any_use() -> None:
    known = seen({}, 10)
    for after in (70, 130, 190):
        known = seen(known, after)
    assert known["of-lee"] == Idle((A, B), T0 + 10, T0 + 190)
    known = seen(known, 250, B)
    assert known["of-lee"] == Idle((A, B), T0 + 250, T0 + 250)
    assert seen(known, 310)["of-lee"] == Idle((A, B), T0 + 250, T0 + 310)


def test_time_without_samples_is_not_idle() -> None:
    assert seen(seen({}, 10), 191)["of-lee"] == Idle((A, B), T0 + 191, T0 + 191)


def test_a_booking_counts_only_while_it_runs_and_only_by_the_gpus_here() -> None:
    assert update_idle({}, BOOKINGS, (), {A}, T0 + 5, 60.0)["of-lee"].gpus == (A,)
    assert update_idle({}, BOOKINGS, (), {A}, T0 - 5, 60.0) == {}
    assert update_idle({}, BOOKINGS, (), {A}, T0 + HOUR, 60.0) == {}
    assert update_idle({}, BOOKINGS, (), {"GPU-c"}, T0 + 5, 60.0) == {}


@pytest.mark.parametrize(
    ("changes", "held", "busy"),
    [
        ({}, (), False),
        ({"utilisation": 4}, (), False),
        ({"utilisation": 5}, (), True),
        ({"utilisation": None}, (), True),
        ({"processes": [{"pid": 7, "draws_screen": False}]}, (), True),
        ({"processes": [{"pid": 7, "draws_screen": True}]}, (), False),
        ({"processes": [{"pid": 8, "draws_screen": False}]}, (), False),
        ({"processes": [{"pid": 8, "draws_screen": False}], "utilisation": 5}, (), True),
        ({"processes": [{"pid": 8, "draws_screen": False}]}, (A,), True),
        ({"problem": "fell off the bus"}, (), True),
        ({}, (A,), True),
        ({}, (B,), False),
    ],
)
def test_a_gpu_is_idle_only_if_that_is_certain(changes: dict[str, Any], held: tuple[str, ...], busy: bool) -> None:
    gpu = {"uuid": A, "utilisation": 0, "processes": [], "problem": None}
    assert is_busy({**gpu, **changes}, held, asleep={8}) is busy


def test_continuous_uses_are_joined() -> None:
    ann = (A, "ann", "kim", "run-1")
    uses = note_uses([], [ann, ann], T0, 180.0)
    uses = note_uses(uses, [ann, (B, "bob", "", "")], T0 + 60, 180.0)
    assert uses == [Used(*ann, T0, T0 + 60), Used(B, "bob", "", "", T0 + 60, T0 + 60)]
    uses = note_uses(uses, [ann], T0 + 600, 180.0)
    assert [one.start for one in uses] == [T0, T0 + 60, T0 + 600]
    assert note_uses(uses, [], T0 + 73 * HOUR, 180.0) == []


def test_evidence_survives_its_encoding() -> None:
    idle, uses = seen({}, 10), [Used(A, "ann", "kim", "run-1", T0, T0 + 60)]
    assert from_json(json.loads(json.dumps(to_json(idle, uses)))) == (idle, uses)
    assert to_json(idle, uses, since=T0 + 61) == {"idle": [], "uses": []}
