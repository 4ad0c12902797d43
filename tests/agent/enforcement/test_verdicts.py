"""What is thought of a process on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agent.enforcement.calendars import HOUR, T0, A, booking, login, snapshot
from torchyard_agent.enforcement.verdicts import OTHERS, OWN, UNBOOKED, UNKNOWN, Use, judge
from torchyard_agent.protocol.calendar import parse

LEES = booking("lee", T0, T0 + HOUR)
LOGINS = [login("ubuntu", "kim", "lee"), login("ann", "kim"), login("bob", "lee")]


def use(user: str, **changes: Any) -> Use:
    return Use(A, 4711, 99, 1000, user)._replace(**changes)


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
        (use("lee"), T0, OWN, "lee"),
        (use("unknown", uid=None), T0, UNKNOWN, "unknown"),
        (use("unknown", uid=None), T0 + HOUR, UNKNOWN, "unknown"),
    ],
)
def test_verdicts(one: Use, now: float, verdict: str, who: str) -> None:
    found = judge(one, parse(snapshot(LEES, logins=LOGINS)), "gpu-a", now)
    assert (found.verdict, found.who) == (verdict, who)
