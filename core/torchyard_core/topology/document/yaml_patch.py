"""Patches a topology's YAML text. Unchanged parts are preserved byte for byte, with their comments.

A value is replaced in place if the style of the text allows it. Otherwise the changed key at the top level, or the
changed entry of `pools`, is rewritten as a whole. The result is parsed again. It is discarded if it differs from the
topology, or if the text has an unsupported style.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchyard_core.errors import FileProblem
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.model import Topology
from torchyard_core.yaml_io.document import Document, parse_document
from torchyard_core.yaml_io.in_place_edits import InPlaceEdits, UnsupportedStyle
from torchyard_core.yaml_io.writer import dump_flow, dump_yaml

Lines = list[str]


def patch_yaml(text: str, before: Topology, after: Topology) -> str | None:
    """Edits `text`, the YAML of `before`, to describe `after`. Returns None if its style is not supported."""
    for written in patches(text, before.as_data(), after.as_data()):
        try:
            read = topology_from_text(written)
        except FileProblem:
            continue
        if read.topology == after and not read.problems:
            return written
    return None


def patches(text: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yields patched texts, beginning with the one that preserves most of `text`. The caller must check the texts.

    Args:
        text: A document that contains the data `before`.
    """
    try:
        document = parse_document(text, "document")
    except FileProblem:
        return
    if not isinstance(document.data, dict) or (not document.spans[()].exact and document.spans[()].flow):
        return
    for in_place in (True, False):
        yield _TopLevelParts(document, before, in_place).text_of(after)


class _TopLevelParts:
    """The text of a file, divided at the keys of its top level."""

    def __init__(self, document: Document, data: Mapping[str, Any], in_place: bool):
        self._document = document
        self._in_place = in_place
        self._data = data
        self._newline = "\r\n" if "\r\n" in document.text else "\n"
        self._lines = document.text.splitlines(keepends=True)
        if self._lines and not self._lines[-1].endswith(("\n", "\r")):
            self._lines[-1] += self._newline
        starts = sorted((line, str(place[0])) for place, line in document.composed.key_lines.items() if len(place) == 1)
        self._header = self._lines[: starts[0][0] - 1] if starts else []
        ends = [line for line, _ in starts[1:]] + [len(self._lines) + 1]
        self._of_key = {key: self._lines[line - 1 : end - 1] for (line, key), end in zip(starts, ends, strict=True)}

    def text_of(self, data: Mapping[str, Any]) -> str:
        """Returns the text of `data`. Keys keep the order of the file, and new keys are added at the end."""
        order = [key for key in self._of_key if key in data] + [key for key in data if key not in self._of_key]
        lines = list(self._header)
        for key in order:
            lines += self._piece(key, data[key])
        return "".join(lines)

    def _piece(self, key: str, value: Any) -> Lines:
        old = self._of_key.get(key, [])
        if old and self._data.get(key) == value:
            return old
        if old and self._in_place and (same_shape := self._changed_in_place(key, value)) is not None:
            return same_shape
        # Comments and empty lines after an entry belong to the next entry.
        body, tail = _cut_tail(old)
        if key == "pools" and body and value and (pools := self._pools(body, value)) is not None:
            return pools + tail
        return self._rewritten({key: value}) + tail

    def _changed_in_place(self, key: str, value: Any) -> Lines | None:
        first = self._document.composed.key_lines[(key,)] - 1
        start = sum(map(len, self._lines[:first]))
        end = start + sum(map(len, self._of_key[key]))
        if end > len(self._document.text):
            return None  # The file lacks the final line break that `self._lines` has, so `end` is beyond the text.
        changes = InPlaceEdits(self._document)
        try:
            changes.record((key,), self._data[key], value)
            return changes.text_with_edits(start, end).splitlines(keepends=True)
        except UnsupportedStyle:
            return None

    def _rewritten(self, data: Any, indent: str = "", flow: bool = False) -> Lines:
        text = f"- {dump_flow(data[0])}\n" if flow else dump_yaml(data)
        text = text.replace("\n", self._newline)
        return [indent + line for line in text.splitlines(keepends=True)]

    def _pools(self, body: Lines, pools: Sequence[Any]) -> Lines | None:
        """Returns the text of `pools`, or None for an unsupported style. Unchanged entries keep their bytes."""
        first = self._document.composed.key_lines[("pools",)]
        old = self._data["pools"]
        starts = [self._document.spans[("pools", position)].line - first for position in range(len(old))]
        if not starts or starts[0] < 1 or sorted(set(starts)) != starts:
            return None
        ends = [*starts[1:], len(body)]
        chunks = [body[start:end] for start, end in zip(starts, ends, strict=True)]
        indents = {chunk[0][: len(chunk[0]) - len(chunk[0].lstrip(" "))] for chunk in chunks}
        if len(indents) != 1 or not all(chunk[0].lstrip(" ").startswith("- ") for chunk in chunks):
            return None
        indent = indents.pop()
        flow = all(self._document.spans["pools", position].flow for position in range(len(old)))
        lines = list(body[: starts[0]])
        unused = list(range(len(old)))
        for pool in pools:
            same = next((position for position in unused if old[position] == pool), None)
            if same is None:
                lines += self._rewritten([pool], indent, flow)
            else:
                unused.remove(same)
                lines += chunks[same]
        return lines


def _cut_tail(lines: Lines) -> tuple[Lines, Lines]:
    end = len(lines)
    while end > 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
        end -= 1
    return lines[:end], lines[end:]
