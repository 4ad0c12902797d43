"""The user behind a request, in one format for a run's journal (`asked`) and a host's `audit.jsonl`."""

from __future__ import annotations

import os
from typing import Any

LONGEST = 200
"""The most characters of a claimed name that are kept."""


def attribution_entry(what: str, by: object, **more: Any) -> dict[str, Any]:
    """An entry for the request `what`. `by` is the desktop's claim, `kim@laptop`, and is split into `by` and `from`.

    `uid` is this process's own: daemons and keepers accept connections of their own user only (SO_PEERCRED).
    """
    user, _, desktop = clean_name(by).rpartition("@")
    return {"by": user or desktop, "from": desktop if user else "", "what": what, "uid": os.getuid(), **more}


def clean_name(by: object) -> str:
    """A claimed name as one short printable line; empty if there is none."""
    return "".join(letter for letter in by[:LONGEST] if letter.isprintable()) if isinstance(by, str) else ""


def user_of(entry: dict[str, Any]) -> str:
    """`kim@laptop` from an entry of `asked`; empty if the desktop sent no name."""
    return "@".join(part for part in (str(entry.get("by") or ""), str(entry.get("from") or "")) if part)
