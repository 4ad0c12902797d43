"""Tests of the classification of GPU processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agent.enforcement.calendars import HOUR, T0, A, booking, login, snapshot
from torchyard_agent.enforcement.classification import (
    CLAIM,
    LOGIN,
    NAMESPACE,
    OTHERS,
    OWN,
    ROOT,
    UNBOOKED,
    UNKNOWN,
    Origin,
    Use,
    classify,
)
from torchyard_agent.protocol.calendar import parse

LEES = booking("lee", T0, T0 + HOUR)
LOGINS = [login("ubuntu", "kim", "lee"), login("ann", "kim"), login("bob", "lee")]


def use(user: str, **changes: Any) -> Use:
    return Use(A, 4711, 99, 1000, user)._replace(**changes)


def root(user: str, *, by: int | None = 1001, known_by: str = LOGIN, container: str = "") -> Use:
    """Returns a sample in which a root process in the session of a user uses a GPU."""
    return use(user, uid=0, origin=Origin(by, known_by if by else "", True, container))


@pytest.mark.parametrize(
    ("one", "now", "verdict", "who"),
    [
        (use("bob"), T0, OWN, "lee"),
        (use("ann"), T0, OTHERS, "kim"),
        (use("ann"), T0 + HOUR, UNBOOKED, "kim"),
        (use("ann"), T0 - 1, UNBOOKED, "kim"),
        (use("ubuntu"), T0, OWN, "one of kim, lee"),
        (use("ubuntu", claimed="kim"), T0, OTHERS, "kim"),
        (use("ann", claimed="lee"), T0, OTHERS, "kim"),
        (use("carl", claimed="lee"), T0, OWN, "lee"),
        (use("carl"), T0, UNKNOWN, "carl"),
        (use("lee"), T0, UNKNOWN, "lee"),
        (root("ann"), T0, ROOT, "kim"),
        (root("bob"), T0, OWN, "lee"),
        (root("bob", known_by=CLAIM), T0, ROOT, "lee"),
        (root("carl"), T0, ROOT, "carl"),
        (root("root", by=None), T0, ROOT, "root"),
        (root("root", by=None, container="4d1f"), T0, ROOT, "root"),
        (root("root", by=None)._replace(run_id="r", claimed="lee"), T0, OWN, "lee"),
        (root("ann"), T0 + HOUR, UNBOOKED, "kim"),
        (use("bob", uid=100999, origin=Origin(1002, NAMESPACE)), T0, OWN, "lee"),
        (use("ann", uid=100999, origin=Origin(1001, NAMESPACE)), T0, OTHERS, "kim"),
        (use("100999", uid=100999, origin=Origin(None, "", container="4d1f")), T0, UNKNOWN, "100999"),
        (use("unknown", uid=None), T0, UNKNOWN, "unknown"),
        (use("unknown", uid=None), T0 + HOUR, UNKNOWN, "unknown"),
    ],
)
def test_verdicts(one: Use, now: float, verdict: str, who: str) -> None:
    found = classify(one, parse(snapshot(LEES, logins=LOGINS)), "gpu-a", now)
    assert (found.verdict, found.persons_text) == (verdict, who)


@pytest.mark.parametrize(("user", "verdict"), [("ann", OTHERS), ("bob", OWN), ("eve", OWN)])
def test_the_session_selects_among_the_persons_of_root(user: str, verdict: str) -> None:
    known = parse(snapshot(LEES, logins=[*LOGINS, login("root", "kim", "lee")]))
    assert classify(root(user), known, "gpu-a", T0).verdict == verdict
    in_container = classify(root("root", by=None, container="4d1f"), known, "gpu-a", T0)
    assert in_container.verdict == OWN
