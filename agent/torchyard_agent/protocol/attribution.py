"""Attributes a request to a user. A run's journal (`asked`) and a host's `audit.jsonl` use the same format."""

from __future__ import annotations

import os
from typing import Any

LONGEST = 200
"""Maximum length in characters of the user name that a desktop sends. Longer names are truncated."""


def attribution_entry(what: str, by: object, **more: Any) -> dict[str, Any]:
    """Returns an entry that attributes the request `what` to a user.

    `uid` is this process's own UID: daemons and keepers accept only connections of their own user (SO_PEERCRED).

    Args:
        by: The user's name as sent by the desktop, such as `kim@laptop`. In the entry, `by` is the user and `from` is
            the desktop.
    """
    user, _, desktop = clean_name(by).rpartition("@")
    return {"by": user or desktop, "from": desktop if user else "", "what": what, "uid": os.getuid(), **more}


def clean_name(by: object) -> str:
    """Returns a name received from a desktop as one short printable line, or "" if there is none."""
    return "".join(letter for letter in by[:LONGEST] if letter.isprintable()) if isinstance(by, str) else ""


def user_of(entry: dict[str, Any]) -> str:
    """Returns the user of an `asked` entry, such as `kim@laptop`, or "" if the desktop sent no name."""
    return "@".join(part for part in (str(entry.get("by") or ""), str(entry.get("from") or "")) if part)
