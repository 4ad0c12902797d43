"""Sanitizing of untrusted text for terminals and the window.

Control characters can move a terminal's cursor, change its title and write its clipboard; direction marks reorder
text. Both are replaced by escapes; nothing else is changed.
"""

from __future__ import annotations

import re
from typing import Any

_HIDDEN = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""C0 and C1 controls except tab and newline, line separators, and direction marks."""
_COLOUR = re.compile("\x1b\\[[0-9;:]*m")
_CONTROL = re.compile(f"[{_HIDDEN}]")
_CONTROL_OR_BREAK = re.compile(f"[{_HIDDEN}\t\n]")


def printable(text: str) -> str:
    """The text with escapes such as `\\x1b` for control characters, except tabs and newlines."""
    return _CONTROL.sub(_escaped, text)


def one_line(text: str) -> str:
    """Like `printable`, with escapes for tabs and newlines too; for names, which must stay on one line."""
    return _CONTROL_OR_BREAK.sub(_escaped, text)


def log_line(text: str) -> str:
    """A log line as a terminal would show it: without colours and without overwritten text of a progress bar."""
    parts = _COLOUR.sub("", text).split("\r")
    return printable(next((part for part in reversed(parts) if part), ""))


def printable_json(text: str) -> str:
    """JSON by `json.dumps`, with \\u escapes for the control characters that it leaves unescaped."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable_values(value: Any) -> Any:
    """Plain data with `printable` applied to all text, including keys."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_values(key): printable_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable_values(item) for item in value]
    return value


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
