"""Reads documents of other systems: their values with line numbers, and the topologies built from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

from torchyard_core.errors import FileProblem
from torchyard_core.interop.remarks import Remark
from torchyard_core.next_steps import Advice
from torchyard_core.problems import Place, did_you_mean, no_lines
from torchyard_core.topology.model import MAX_REPLICAS, Topology
from torchyard_core.yaml_io.document import Document, parse_document
from torchyard_core.yaml_io.model_validation import validate
from torchyard_core.yaml_io.syntax_errors import problem_at

BAD_DOCUMENT = "bad_document"
"""Error code of a document that parses but is not valid in its format."""


@dataclass(frozen=True)
class Imported:
    """The topology of an imported document, with remarks."""

    topology: Topology
    remarks: tuple[Remark, ...] = ()


def refuse(source: str, line: int | None, message: str, hint: Advice = "") -> NoReturn:
    """Raises FileProblem with the source, the line, the message and the hint."""
    problem = problem_at(source, line, message, hint)
    raise FileProblem(problem.message, code=BAD_DOCUMENT, hint=problem.advice)


@dataclass
class DocumentReader:
    """A YAML or JSON document: its values with line numbers, and the remarks of the import.

    All methods that return the value at a location, except `at`, raise FileProblem for a value of another type.
    """

    document: Document
    remarks: list[Remark] = field(default_factory=list)

    @classmethod
    def of(cls, text: str, source: str) -> Self:
        """Parses a document. Raises FileProblem for invalid syntax or duplicate keys."""
        if text.lstrip()[:1] in ("{", "["):
            text = text.replace("\t", " ")  # JSON may be indented with tabs, but YAML may not.
        reader = cls(parse_document(text, source))
        for twice in reader.document.problems:
            refuse(source, twice.line, f"{twice.message}.", "Keep one of the two.")
        return reader

    @property
    def data(self) -> Any:
        return self.document.data

    def line(self, place: Place) -> int | None:
        return self.document.line(place)

    def remark(self, message: str, place: Place | None = None) -> None:
        self.remarks.append(Remark(message, self.line(place) if place is not None else None))

    def stop(self, message: str, place: Place, hint: str = "") -> NoReturn:
        refuse(self.document.source, self.line(place), message, hint)

    def at(self, place: Place) -> Any:
        """Returns the value at a location, or None if there is none."""
        value = self.data
        for step in place:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def block(self, place: Place) -> dict[str, Any]:
        """Returns the mapping at a location, or an empty mapping if there is none."""
        value = self.at(place)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.stop(f"{_called(place)} is a block of keys, not {_kind(value)}.", place)
        return value

    def items(self, place: Place) -> list[Any]:
        """Returns the list at a location, or an empty list if there is none."""
        value = self.at(place)
        if value is None:
            return []
        if not isinstance(value, list):
            self.stop(f"{_called(place)} is a list, not {_kind(value)}.", place)
        return value

    def whole(self, place: Place, default: int, *, least: int = 0, most: int = MAX_REPLICAS) -> int:
        """Returns the integer at a location, or `default` if there is none.

        Raises FileProblem unless the integer is between `least` and `most`. It may be written as a string, because JSON
        documents often contain large integers as strings.
        """
        value = self.at(place)
        if value is None:
            return default
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.stop(
                f"{_called(place)} is {_shown(value)}.", place, f"Allowed are whole numbers from {least} to {most}."
            )
        return value

    def words(self, place: Place) -> list[str]:
        """Returns the list of strings at a location. A number becomes a string as written in the document."""
        found = []
        for number, value in enumerate(self.items(place)):
            if isinstance(value, (dict, list)):
                self.stop(f"{_called(place)} holds texts, not {_kind(value)}.", (*place, number))
            found.append(self.text((*place, number)) or "")
        return found

    def text(self, place: Place) -> str | None:
        """Returns the string at a location, or None if there is none. A number is returned as written."""
        value = self.at(place)
        if value is None:
            return None
        if isinstance(value, (dict, list)):
            self.stop(f"{_called(place)} is a text, not {_kind(value)}.", place)
        return value if isinstance(value, str) else self.document.composed.written.get(place, str(value))

    def leave(self, place: Place, carried: Iterable[str], known: Mapping[str, str]) -> None:
        """Adds a remark about each key of a block that is not imported.

        Args:
            place: The location of the block.
            carried: Keys that are imported.
            known: The reason for each key that is known but not imported. Any other key is reported as unknown.
        """
        carried = tuple(carried)
        for key in self.block(place):
            if key in carried:
                continue
            if key in known:
                self.remark(f"`{key}` is left out: {known[key]}.", (*place, key))
            else:
                meant = did_you_mean(key, (*carried, *known), 0.75)
                self.remark(f"`{key}` is not known here and is left out{meant or '.'}", (*place, key))


def _called(place: Place) -> str:
    keys = [str(step) for step in place if isinstance(step, str)]
    return f"`{keys[-1]}`" if keys else "the document"


def _kind(value: Any) -> str:
    kinds = {dict: "a block of keys", list: "a list", bool: "yes or no", int: "a number", float: "a number"}
    return "empty" if value is None else kinds.get(type(value), "a text")


def _shown(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else _kind(value) if isinstance(value, (dict, list)) else str(value)


def built(data: Mapping[str, Any], source: str, line: int | None = None) -> Topology:
    """Builds a topology from the data that a format's reader has collected.

    Raises FileProblem for an invalid topology, for example one with too many replicas.
    """
    topology, problems = validate(Topology, {"version": 1, **data}, {}, no_lines)
    if topology is None:
        sentences = "; ".join(dict.fromkeys(problem.message for problem in problems))
        refuse(source, line, f"this makes no topology: {sentences}.")
    total = sum(pool.replicas for pool in topology.pools)
    if total > MAX_REPLICAS:
        refuse(source, line, f"these are {total} replicas.", f"A topology has at most {MAX_REPLICAS}.")
    if not any(pool.role.trains for pool in topology.pools):
        refuse(source, line, "nothing trains here.", "There must be a chief (or master) or a worker.")
    return topology
