"""Problems of a document, such as a topology, the fleet file or the settings file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torchyard_core.next_steps import NextStep

Severity = Literal["error", "warning"]
Place = tuple[str | int, ...]
"""A position in a document: keys and indices, outermost first."""
LineOf = Callable[[Place], int | None]
"""A function that returns the line of a place in the file, or None if the file does not contain the place."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A message about a location in a document. `path` has the syntax of `run --set`: `pools.workers.replicas`."""

    severity: Severity
    code: str
    message: str
    line: int | None = None
    path: str = ""
    next_step: NextStep | None = None
    column: int | None = None
    """The column in `line`, counted from 1; None where only the line is known."""

    @property
    def text(self) -> str:
        """The message, followed by the sentence of the next step, if there is one."""
        return f"{self.message}; {self.next_step.sentence().rstrip('.')}" if self.next_step else self.message

    def printed(self, source: str) -> str:
        """Returns the line that `validate` prints: `file:line: severity code message`.

        An unknown line is printed as 1. A known column follows the line: `file:line:column: severity code message`.
        """
        column = f":{self.column}" if self.column is not None else ""
        return f"{source}:{self.line or 1}{column}: {self.severity} {self.code} {self.text}"

    def to_json(self) -> dict[str, Any]:
        known = {"severity": self.severity, "code": self.code, "message": self.text}
        column = {"column": self.column} if self.column is not None else {}
        return {**known, "line": self.line, **column, "path": self.path}


MAX_PROBLEMS = 500
"""Maximum number of problems that validation returns. The checks that follow validation have the same limit."""


def no_lines(place: Place) -> int | None:
    """Returns None. Implements LineOf for a document that was not read from a file."""
    return None


def has_errors(problems: Iterable[Problem]) -> bool:
    return any(problem.severity == "error" for problem in problems)


def near_miss(word: str, known: Iterable[str], cutoff: float = 0.55) -> str | None:
    """Returns the known word closest to `word`, or None if no word is similar.

    Ignores case and the difference between `-` and `_`.
    """
    from difflib import get_close_matches  # Deferred, since this import takes 4 ms.

    by_folded = {name.lower().replace("-", "_"): name for name in known}
    close = get_close_matches(word.lower().replace("-", "_"), by_folded, n=1, cutoff=cutoff)
    return by_folded[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.55) -> str:
    """Returns `; did you mean `x`?` with the closest known word, or "" if none is similar."""
    close = near_miss(word, known, cutoff)
    return f"; did you mean `{close}`?" if close is not None else ""


def nearest(word: str, known: Iterable[str], cutoff: float = 0.55) -> str:
    """Returns the sentence `Did you mean `x`?` with the closest known word, or "" if none is similar."""
    close = near_miss(word, known, cutoff)
    return f"Did you mean `{close}`?" if close is not None else ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem whose line in the file has not been determined yet."""

    severity: Severity
    code: str
    message: str
    place: Place


Findings = Iterator[Finding]


def error_finding(code: str, message: str, *place: str | int) -> Finding:
    return Finding("error", code, message, place)


def warning_finding(code: str, message: str, *place: str | int) -> Finding:
    return Finding("warning", code, message, place)
