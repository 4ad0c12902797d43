"""Edits of YAML text in place: changed values, and added and removed keys. Style, order and comments are preserved.

The module supports changes of scalars and of lists in brackets anywhere, and the addition or removal of keys in block
and flow mappings. Other values, such as block lists and multi-line text, must be rewritten by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchyard_core.problems import Place
from torchyard_core.yaml_io.document import Document
from torchyard_core.yaml_io.parser import Span
from torchyard_core.yaml_io.writer import dump_flow

_COMMA = re.compile(r"\s*,[ \t]*")


class UnsupportedStyle(Exception):
    """Raised if a change in place is not supported for the style of the text."""


@dataclass
class InPlaceEdits:
    """Replacements of text, identified by offsets in a document."""

    document: Document
    found: list[tuple[int, int, str]] = field(default_factory=list)

    def text_with_edits(self, start: int, end: int) -> str:
        """Returns the document's text between two offsets with the recorded replacements applied.

        Raises UnsupportedStyle for overlapping replacements.
        """
        text, at = [], start
        for first, last, instead in sorted(self.found):
            if first < at or last > end:
                raise UnsupportedStyle
            text += [self.document.text[at:first], instead]
            at = last
        return "".join([*text, self.document.text[at:end]])

    def record(self, place: Place, old: Any, new: Any) -> None:
        """Records the changes that turn the value `old` at a location into `new`.

        Raises UnsupportedStyle if the text's style does not support them.
        """
        if old == new:
            return
        span = self._span(place)
        if isinstance(old, dict) and isinstance(new, dict) and old and new:
            self._note_keys(place, span, old, new)
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and not span.flow:
            for position, (before, after) in enumerate(zip(old, new, strict=True)):
                self.record((*place, position), before, after)
        elif span.exact and span.end > span.start and self.document.text[span.start] not in "|>&*!":
            self.found.append((span.start, span.end, dump_flow(new)))
        else:
            raise UnsupportedStyle

    def _span(self, place: Place) -> Span:
        if place not in self.document.spans:
            raise UnsupportedStyle
        return self.document.spans[place]

    def _note_keys(self, place: Place, span: Span, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        kept = [key for key in old if key in new]
        gone = [key for key in old if key not in new]
        come = {key: value for key, value in new.items() if key not in old}
        # New keys are inserted after the last old key. An edit that keeps no key is therefore not supported, and
        # neither is one that both adds and removes keys.
        if not kept or (gone and come):
            raise UnsupportedStyle
        for key in kept:
            self.record((*place, key), old[key], new[key])
        for key in gone:
            self._take_out(place, key, span.flow)
        if come:
            self._put_in(place, come, old, span.flow)

    def _put_in(self, place: Place, come: Mapping[str, Any], old: Mapping[str, Any], flow: bool) -> None:
        text = self.document.text
        last = max((self._span((*place, key)) for key in old), key=lambda span: span.end)
        if not last.exact:
            raise UnsupportedStyle
        pairs = [f"{dump_flow(key)}: {dump_flow(value)}" for key, value in come.items()]
        if flow:
            self.found.append((last.end, last.end, "".join(f", {pair}" for pair in pairs)))
            return
        newline = "\r\n" if "\r\n" in text else "\n"
        end = text.find("\n", last.end)
        if end < 0:
            raise UnsupportedStyle
        indent = " " * self._column((*place, next(iter(old))))
        self.found.append((end + 1, end + 1, "".join(f"{indent}{pair}{newline}" for pair in pairs)))

    def _column(self, key: Place) -> int:
        """Returns the column of a key in its line."""
        line = self.document.text.splitlines()[self.document.composed.key_lines[key] - 1]
        word = re.match(r"(?: |- )*", line)
        assert word is not None
        return word.end()

    def _take_out(self, place: Place, key: str, flow: bool) -> None:
        text, span = self.document.text, self._span((*place, key))
        if not span.exact:
            raise UnsupportedStyle
        if not flow:
            begin = text.rfind("\n", 0, span.start) + 1
            end = text.find("\n", span.end) + 1
            alone = text[begin:].lstrip(" ").startswith(f"{key}:")
            if not end or not alone or "\n" in text[span.start : span.end]:
                raise UnsupportedStyle
            self.found.append((begin, end, ""))
            return
        opened = max(text.rfind("{", 0, span.start), text.rfind(",", 0, span.start))
        if text[opened] == ",":
            self.found.append((opened, span.end, ""))
        elif comma := _COMMA.match(text, span.end):
            self.found.append((opened + 1, comma.end(), ""))
        else:
            raise UnsupportedStyle
