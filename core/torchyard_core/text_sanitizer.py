"""Text that hosts, colleagues and files control, made safe to show on a terminal and in the window.

Control characters move a terminal's cursor, change its title and write its clipboard; marks of direction reorder what
is read. Both are shown as escapes, and nothing else is changed.
"""

from __future__ import annotations

import re
from typing import Any

_HIDDEN = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""C0 and C1 controls but for tab and newline, line separators, and marks of direction."""
_COLOUR = re.compile("\x1b\\[[0-9;:]*m")
_CONTROL = re.compile(f"[{_HIDDEN}]")
_CONTROL_OR_BREAK = re.compile(f"[{_HIDDEN}\t\n]")


def printable(text: str) -> str:
    """Lines of text with escapes such as `\\x1b` for control characters; tabs and newlines stay."""
    return _CONTROL.sub(_escaped, text)


def one_line(text: str) -> str:
    """As `printable`, with tabs and newlines as escapes too: for names, which must not begin lines of their own."""
    return _CONTROL_OR_BREAK.sub(_escaped, text)


def log_line(text: str) -> str:
    """A line of a log as a terminal would leave it: without colours, and what a progress bar has overwritten."""
    parts = _COLOUR.sub("", text).split("\r")
    return printable(next((part for part in reversed(parts) if part), ""))


def printable_json(text: str) -> str:
    """JSON as `json.dumps` writes it, with the control characters that it leaves as they are as \\u escapes."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable_values(value: Any) -> Any:
    """All text in plain data, keys included, as `printable` gives it."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_values(key): printable_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable_values(item) for item in value]
    return value


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
