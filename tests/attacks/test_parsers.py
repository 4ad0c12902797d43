"""Tests, with a sample of the inputs of `make bench`, that no input makes a parser fail unexpectedly, take long or use
much memory.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.attacks.parsers import PARSERS, Parser, violation

SAMPLE = 60


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_a_parser_gives_a_value_or_its_own_error(parser: Parser) -> None:
    @settings(
        max_examples=SAMPLE, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(parser.inputs)
    def check_input(given: Any) -> None:
        assert violation(parser, given) == ""

    check_input()


def test_the_check_detects_violations() -> None:
    """A parser that violates the tested property is reported, so the other tests can fail."""
    from hypothesis import strategies as st

    def wrong(given: Any) -> Any:
        raise KeyError(given)

    anything = st.just("x")
    assert "KeyError: 'x'" in violation(Parser("wrong", anything, wrong), "x")
    assert violation(Parser("right", anything, wrong, (KeyError,)), "x") == ""
    assert "read again it is" in violation(Parser("again", anything, str, (), lambda value: value + "y"), "x")
    assert "MB" in violation(Parser("large", anything, lambda _: len(bytearray(400 << 20))), "x")
