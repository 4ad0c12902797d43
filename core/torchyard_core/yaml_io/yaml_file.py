"""Reads YAML files that users write: topology, fleet and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchyard_core.errors import FileProblem
from torchyard_core.problems import Place, Problem
from torchyard_core.yaml_io.parser import ParsedYaml, Span, parse_yaml
from torchyard_core.yaml_io.syntax_errors import problem_at

MAX_BYTES = 4 * 1024 * 1024


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
        """Returns the column, counted from 1, of the value at a location, or of the nearest enclosing one in the file.

        If the value begins below its key, whose line is `line(place)`, the column is that of the key.
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


def read_text(path: Path, source: str | None = None) -> str:
    """Returns the text of a file. Raises FileProblem if the file is missing, unreadable, too big or not UTF-8."""
    source = source or str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise problem_at(
            source,
            None,
            "there is no such file.",
            _other_suffix(path) or "Is the name right, and are you in the right folder?",
        ) from None
    except NotADirectoryError:
        raise problem_at(source, None, "part of this path is a file, not a folder.", "Is the path right?") from None
    except IsADirectoryError:
        raise problem_at(source, None, "this is a folder.", "Name the YAML file in it.") from None
    except PermissionError:
        raise problem_at(
            source, None, "you are not allowed to read this file.", "Change its permissions, or copy it."
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise problem_at(source, None, f"the file cannot be read: {reason}.") from None
    if len(raw) > MAX_BYTES:
        raise problem_at(source, None, f"the file is over the limit of {MAX_BYTES // 2**20} MB.")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise problem_at(source, 1, "the file is UTF-16.", "Save it as UTF-8.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        byte = raw[error.start]
        raise problem_at(source, line, f"byte 0x{byte:02x} is not UTF-8 text.", "Save the file as UTF-8.") from None


def path_exists(path: Path) -> bool:
    """Returns whether a path exists. Returns True if this is unknown; reading the file then reports the error."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def _other_suffix(path: Path) -> str:
    """Returns a hint with the name of an existing file with the other usual suffix, or an empty string."""
    for suffix in (".yaml", ".yml"):
        other = path.with_suffix(suffix) if path.name else path
        if other != path and other.is_file():
            return f"Did you mean {other}?"
    return ""


def parse_document(text: str, source: str) -> Document:
    """Parses one YAML document. Raises FileProblem for invalid YAML. Duplicate keys are problems of the document."""
    return Document(source, text, parse_yaml(text, source))
