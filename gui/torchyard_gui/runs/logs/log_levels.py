"""Determines the level of a log line (error, warning, debug, or other) from its text, and the colour of the level."""

from __future__ import annotations

import re

_LEVELS = (
    ("fail", re.compile(r"\b(ERROR|CRITICAL|FATAL|Traceback|[A-Za-z]\w*(?:Error|Exception))\b")),
    ("wait", re.compile(r"\b(WARN|WARNING|UserWarning|FutureWarning|DeprecationWarning)\b")),
    ("text3", re.compile(r"\b(DEBUG|TRACE)\b")),
)


def color_token(text: str) -> str:
    """Returns the name of the colour token for a line with this text."""
    return next((token for token, pattern in _LEVELS if pattern.search(text)), "text")
