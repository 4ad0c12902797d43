"""A parsed YAML document: its data, and the positions of its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchyard_core.errors import FileProblem
from torchyard_core.problems import Place, Problem
from torchyard_core.yaml_io.parser import ParsedYaml, Span, parse_yaml
from torchyard_core.yaml_io.syntax_errors import problem_at


@dataclass(frozen=True)
class Document:
    """A parsed file: its data, and the positions of its values."""

    source: str
    """The path of the file as the user entered it, or another name for the source of the text."""
    text: str
    composed: ParsedYaml

    @property
    def data(self) -> Any:
        return self.composed.data

    @property
    def spans(self) -> Mapping[Place, Span]:
        return self.composed.spans

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self.composed.problems)

    def line(self, place: Place) -> int | None:
        """Returns the line of a location or, if the file does not contain it, of the nearest enclosing location.

        Returns None if there is no such line.
        """
        for length in range(len(place), -1, -1):
            part = place[:length]
            if part in self.composed.key_lines:
                return self.composed.key_lines[part]
            if part in self.spans:
                return self.spans[part].line
        return None

    def column(self, place: Place) -> int | None:
        """Returns the column (from 1) of the value at a location, or of the nearest enclosing value in the file.

        If the value begins on a line below its key, returns the column of the key, which is in line `line(place)`.
        """
        line = self.line(place)
        for length in range(len(place), -1, -1):
            span = self.spans.get(place[:length])
            if span is not None and line is not None:
                if span.line == line:
                    return span.start - self.text.rfind("\n", 0, span.start)
                text = self.text.splitlines()[line - 1]
                return len(text) - len(text.lstrip(" -")) + 1
        return None

    def stop(self, line: int | None, message: str, hint: str = "") -> FileProblem:
        """Returns a FileProblem with this file and the line in its message."""
        return problem_at(self.source, line, message, hint)


def parse_document(text: str, source: str) -> Document:
    """Parses one YAML document. Raises FileProblem for invalid YAML. Duplicate keys are reported in `problems`."""
    return Document(source, text, parse_yaml(text, source))
