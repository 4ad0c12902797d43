"""YAML parser that returns plain data and the position of each value.

The parser composes the events of PyYAML's parser. `yaml.compose` is not used, since it limits neither recursion nor
alias expansion, and silently keeps the last of two equal keys. Scalars follow YAML 1.2: `no`, `on` and `10:30` are
text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from torchyard_core.errors import FileProblem
from torchyard_core.problems import Place, Problem
from torchyard_core.yaml_io.syntax_errors import explain_yaml_error, problem_at

MAX_DEPTH = 64
MAX_VALUES = 400_000
"""Maximum number of values of a document after the expansion of aliases.

The limit protects against text that grows exponentially by aliases.
"""
MAX_DIGITS = 18

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


@dataclass(frozen=True)
class Span:
    """The position of a value in the text: offsets in characters, and the line counted from 1."""

    start: int
    end: int
    line: int
    flow: bool = False
    """Whether the value is in flow style (brackets) rather than block style."""
    exact: bool = True
    """Whether `end` is exact. The parser places the end of a block at the next value, after any comments."""


@dataclass
class ParsedYaml:
    """The data of a document, and the positions of its values."""

    data: Any = None
    spans: dict[Place, Span] = field(default_factory=dict)
    """The position of every value, by location."""
    key_lines: dict[Place, int] = field(default_factory=dict)
    """Line of the key of every mapping entry."""
    written: dict[Place, str] = field(default_factory=dict)
    """Unquoted scalars as written in the document, by location."""
    problems: list[Problem] = field(default_factory=list)


def parse_yaml(text: str, source: str) -> ParsedYaml:
    """Parses one YAML document.

    Raises FileProblem for invalid YAML, for values that are not plain data, and for a document that is too large or too
    deeply nested.
    """
    composer = _Composer(source)
    try:
        for event in yaml.parse(text, Loader=_Loader):
            composer.take(event)
    except yaml.YAMLError as error:
        line, message, hint = explain_yaml_error(error, text)
        raise problem_at(source, line, message, hint) from None
    except UnicodeEncodeError:
        raise problem_at(source, None, "the text contains an invalid character (a lone surrogate).") from None
    if not composer.documents:
        raise problem_at(source, None, "the file is empty.")
    return composer.composed


@dataclass
class _Open:
    """A list or mapping that is not yet complete."""

    place: Place
    value: list[Any] | dict[str, Any]
    anchor: str | None
    start: int
    line: int
    flow: bool
    count_before: int
    key: str | None = None
    key_line: int = 0
    merges: list[tuple[Any, int]] = field(default_factory=list)


@dataclass(frozen=True)
class _Anchored:
    value: Any
    size: int


class _Composer:
    """Converts parser events to plain data without recursion."""

    def __init__(self, source: str):
        self.composed = ParsedYaml()
        self.documents = 0
        self._source = source
        self._open: list[_Open] = []
        self._anchors: dict[str, _Anchored | None] = {}
        self._count = 0

    def take(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event, line)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(str(event.anchor), event, line)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._begin(event, line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._end(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise self._stop(line, "a second document begins here.", "Keep one document per file.")

    def _stop(self, line: int, message: str, hint: str = "") -> FileProblem:
        return problem_at(self._source, line, message, hint)

    def _grow(self, by: int, line: int) -> None:
        self._count += by
        if self._count > MAX_VALUES:
            raise self._stop(line, f"the document expands to more than {MAX_VALUES} values.")

    def _next_place(self, line: int) -> Place:
        """Returns the location of the next value. Raises FileProblem if a list or mapping is used as a key."""
        if not self._open:
            return ()
        parent = self._open[-1]
        if isinstance(parent.value, list):
            return (*parent.place, len(parent.value))
        if parent.key is None:
            raise self._stop(line, "a list or block of keys cannot be a key.", "Write the key as one word.")
        return (*parent.place, parent.key)

    def _wants_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and self._open[-1].key is None

    def _scalar(self, event: Any, line: int) -> None:
        self._grow(1, line)
        if self._wants_key():
            self._open[-1].key = str(event.value)
            self._open[-1].key_line = line
            return
        place = self._next_place(line)
        value: Any = str(event.value)
        if event.tag is None or event.tag == "!":
            if event.implicit[0]:
                self.composed.written[place] = value
                value = plain_value(value)
        elif event.tag != "tag:yaml.org,2002:str":
            value = self._tagged(event.tag, value, line)
        self.composed.spans[place] = Span(event.start_mark.index, event.end_mark.index, line)
        if event.anchor:
            self._anchors[event.anchor] = _Anchored(value, 1)
        self._put(value, line)

    def _tagged(self, tag: str, value: str, line: int) -> Any:
        kind = tag.removeprefix("tag:yaml.org,2002:")
        plain = plain_value(value)
        if (kind, type(plain)) in (("int", int), ("float", float), ("bool", bool), ("null", type(None))):
            return plain
        if kind == "float" and type(plain) is int:
            return float(plain)
        raise self._stop(line, f"the tag `!{kind.lstrip('!')}` has no meaning here.", "Remove it.")

    def _alias(self, anchor: str, event: Any, line: int) -> None:
        anchored = self._anchors.get(anchor)
        if anchored is None:
            what = "refers to itself" if anchor in self._anchors else "was not defined before"
            raise self._stop(line, f"the alias `*{anchor}` {what}.")
        self._grow(anchored.size, line)
        if self._wants_key():
            raise self._stop(line, "an alias cannot be a key.", "Write the key as one word.")
        self.composed.spans[self._next_place(line)] = Span(event.start_mark.index, event.end_mark.index, line)
        self._put(anchored.value, line)

    def _begin(self, event: Any, line: int) -> None:
        self._grow(1, line)
        place = self._next_place(line)
        if len(self._open) >= MAX_DEPTH:
            raise self._stop(line, f"the document is nested deeper than {MAX_DEPTH} levels.")
        value: list[Any] | dict[str, Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        usual = "tag:yaml.org,2002:map" if isinstance(value, dict) else "tag:yaml.org,2002:seq"
        if event.tag not in (None, "!", usual):
            kind = event.tag.removeprefix("tag:yaml.org,2002:").lstrip("!")
            raise self._stop(line, f"the tag `!{kind}` has no meaning here.", "Remove it.")
        if event.anchor:
            self._anchors[event.anchor] = None
        start = event.start_mark.index
        self._open.append(_Open(place, value, event.anchor, start, line, bool(event.flow_style), self._count))

    def _end(self, event: Any) -> None:
        closed = self._open.pop()
        if isinstance(closed.value, dict):
            for merged, line in closed.merges:
                self._merge(closed.value, merged, line)
        self.composed.spans[closed.place] = Span(
            closed.start, event.end_mark.index, closed.line, closed.flow, exact=closed.flow
        )
        if closed.anchor:
            self._anchors[closed.anchor] = _Anchored(closed.value, self._count - closed.count_before + 1)
        self._put(closed.value, closed.line)

    def _merge(self, into: dict[str, Any], merged: Any, line: int) -> None:
        """Adds the keys of `<<: *other` that `into` does not contain.

        Raises FileProblem if `other` is not a mapping.
        """
        for part in merged if isinstance(merged, list) else [merged]:
            if not isinstance(part, dict):
                raise self._stop(line, "`<<` takes a block of keys, or a list of them.")
            for key, value in part.items():
                into.setdefault(key, value)

    def _put(self, value: Any, line: int) -> None:
        if not self._open:
            self.composed.data = value
            return
        parent = self._open[-1]
        if isinstance(parent.value, list):
            parent.value.append(value)
            return
        key, parent.key = parent.key, None
        assert key is not None
        place = (*parent.place, key)
        if key == "<<":
            parent.merges.append((value, line))
        elif key in parent.value:
            first = self.composed.key_lines[place]
            message = f"`{key}` is given twice, first in line {first}"
            self.composed.problems.append(Problem("error", "duplicate-key", message, parent.key_line, shown(place)))
        else:
            parent.value[key] = value
            self.composed.key_lines[place] = parent.key_line


def plain_value(text: str) -> Any:
    """Returns the value of an unquoted scalar.

    A decimal integer of more than 18 characters becomes a float. A number of more than 40 characters remains text.
    """
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= MAX_DIGITS and _INTEGER.fullmatch(text):
        return int(text, 0 if text[:2] in ("0x", "0o") else 10)
    if len(text) <= 40 and _FLOAT.fullmatch(text):
        return float(text)
    return text


def shown(place: Place, data: Any = None) -> str:
    """Formats a location in the syntax of `run --set`: `pools.workers.replicas`.

    A pool is shown by its name if `data` contains the name, otherwise by its position.
    """
    return ".".join(_steps(place, data))


def _steps(place: Place, data: Any) -> Iterator[str]:
    for step in place:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            data = None
        name = data.get("name") if isinstance(step, int) and isinstance(data, dict) else None
        yield name if isinstance(name, str) and name else str(step)
