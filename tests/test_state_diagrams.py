"""Tests that docs/state-diagrams.md matches the diagrams that are generated from the code."""

from __future__ import annotations

from tools import state_diagrams

from torchyard_core.booking.model import State


def test_the_page_is_as_generated() -> None:
    assert state_diagrams.PAGE.read_text() == state_diagrams.page(), "run `python -m tools.state_diagrams`"


def test_bookings_that_hold_gpus_are_those_with_a_successor() -> None:
    assert {state for state in State if state.is_live} == set(state_diagrams.BOOKING)
    assert set(State) == {
        State.BOOKED,
        *(after for successors in state_diagrams.BOOKING.values() for after in successors),
    }
