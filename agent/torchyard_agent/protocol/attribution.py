"""Who asked for what: one shape for a run's journal (`asked`) and for a host's `audit.jsonl`."""

from __future__ import annotations

import os
from typing import Any

LONGEST = 200
"""Characters of a claim that are kept."""


def asked(what: str, by: object, **more: Any) -> dict[str, Any]:
    """`by` and `from` are the desktop's word, `kim@laptop` in two; `uid` is the kernel's: whose processes did it.

    Only processes of this user can speak to a daemon or keeper (SO_PEERCRED), so the UID is our own.
    """
    user, _, desktop = cleaned(by).rpartition("@")
    return {"by": user or desktop, "from": desktop if user else "", "what": what, "uid": os.getuid(), **more}


def cleaned(by: object) -> str:
    """A claim as it may stand in a log: one line, not long; empty where there is none."""
    return "".join(letter for letter in by[:LONGEST] if letter.isprintable()) if isinstance(by, str) else ""


def who(told: dict[str, Any]) -> str:
    """`kim@laptop` of what `asked` made; empty where the desktop did not say."""
    return "@".join(part for part in (str(told.get("by") or ""), str(told.get("from") or "")) if part)
