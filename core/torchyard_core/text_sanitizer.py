"""Sanitizing of untrusted text for terminals and the window.

Control characters can move a terminal's cursor, change its title and write to the clipboard, and direction marks
reorder text. Both, and Unicode line separators, are replaced by escapes.
"""

from __future__ import annotations

import re
from typing import Any

_HIDDEN = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Control characters (C0, DEL and C1) except tab and newline, Unicode line separators, and direction marks."""
_COLOUR = re.compile("\x1b\\[[0-9;:]*m")
_CONTROL = re.compile(f"[{_HIDDEN}]")
_CONTROL_OR_BREAK = re.compile(f"[{_HIDDEN}\t\n]")


def printable(text: str) -> str:
    r"""Replaces the characters in `_HIDDEN` by escapes such as `\x1b`. Tabs and newlines are kept."""
    return _CONTROL.sub(_escaped, text)


def one_line(text: str) -> str:
    """Replaces the characters in `_HIDDEN`, tabs and newlines by escapes.

    Used for names, which must stay on one line.
    """
    return _CONTROL_OR_BREAK.sub(_escaped, text)


def log_line(text: str) -> str:
    """Returns a log line without colours and without text that a terminal would overwrite after a carriage return.

    Other control characters are replaced by escapes.
    """
    parts = _COLOUR.sub("", text).split("\r")
    return printable(next((part for part in reversed(parts) if part), ""))


def printable_json(text: str) -> str:
    r"""Returns the output of `json.dumps` with \u escapes for the control characters that `json.dumps` leaves as is."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable_values(value: Any) -> Any:
    """Applies `printable` to all strings of plain data, including the keys of dictionaries. Tuples become lists."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_values(key): printable_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable_values(item) for item in value]
    return value


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
