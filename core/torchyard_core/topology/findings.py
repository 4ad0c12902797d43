"""What a check says, before it is known on which line of which file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchyard_core.problems import Place, Severity


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    code: str
    message: str
    place: Place


Findings = Iterator[Finding]


def error(code: str, message: str, *place: str | int) -> Finding:
    return Finding("error", code, message, place)


def warning(code: str, message: str, *place: str | int) -> Finding:
    return Finding("warning", code, message, place)


def counted(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
