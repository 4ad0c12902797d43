"""Conversion between the text of a file and the text of an editor, whose lines end with "\\n".

The text of an editor contains no byte order mark and no other line endings. Lines that the user has not changed keep
the bytes of the file.
"""

from __future__ import annotations

import re

BOM = "\ufeff"

_ENDS = re.compile(r"\r\n|[\n\r\u2029]")
_LINE = re.compile(r"[^\n\r\u2029]*(?:\r\n|[\n\r\u2029])|[^\n\r\u2029]+\Z")


def shown_text(text: str) -> str:
    """Returns the text of a file for an editor, with line breaks normalized and without a byte order mark."""
    return _ENDS.sub("\n", text.removeprefix(BOM))


def typed_over(text: str, typed: str) -> str:
    """Returns the text of a file after the user has changed the text in an editor to `typed`."""
    bom = BOM if text.startswith(BOM) else ""
    old = _LINE.findall(text.removeprefix(BOM))
    new = _LINE.findall(typed)
    shown = [shown_text(line) for line in old]
    same = min(len(old), len(new))
    first = next((at for at in range(same) if shown[at] != new[at]), same)
    last = next((at for at in range(same - first) if shown[-1 - at] != new[-1 - at]), same - first)
    end = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"
    changed = [line.replace("\n", end) for line in new[first : len(new) - last]]
    lines = [*old[:first], *changed, *old[len(old) - last :]]
    for at in range(1, len(lines)):
        if lines[at] == "\n" and lines[at - 1].endswith("\r"):
            lines[at] = "\r\n"  # "\n" would combine with the "\r" of the previous line into a single line ending.
    return bom + "".join(lines)
