"""Reading of search files, with line and column of each problem."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from torchyard_core.problems import MAX_PROBLEMS, Findings, Place, Problem
from torchyard_core.sweeps.model import Search
from torchyard_core.sweeps.search_checks import check_arguments, check_placeholders, check_search
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.model import FrozenModel, Topology
from torchyard_core.yaml_io.model_validation import validate, without_unknown_keys
from torchyard_core.yaml_io.parser import shown
from torchyard_core.yaml_io.writer import dump_yaml
from torchyard_core.yaml_io.yaml_file import Document, parse_document, read_text


@dataclass(frozen=True)
class SearchFile:
    """The result of reading a file. `search` is None for an invalid file, and `problems` contains the errors."""

    document: Document
    search: Search | None
    problems: tuple[Problem, ...]
    """Problems of reading: unknown keys, wrong values."""
    readable: Search | None = None
    """The search without its unknown keys, for checks; None if it has other errors."""

    @property
    def source(self) -> str:
        """The path of the file as the user entered it, or another name for the source of the text."""
        return self.document.source

    def check(self, topology: Topology | None = None) -> tuple[Problem, ...]:
        """Returns the problems of reading and of the search, sorted by line and column.

        With `topology`, the parameters that its arguments do not use are problems too.
        """
        found = list(self.problems)
        if self.readable is not None:
            checks = [check_search(self.readable)]
            if topology is not None:
                checks.append(check_arguments(self.readable, topology))
            found += _problems(chain.from_iterable(checks), self.document, self.readable)
        return tuple(sorted(found, key=lambda problem: (problem.line or 0, problem.column or 0)))

    def check_topology(self, source: TopologyFile) -> tuple[Problem, ...]:
        """Returns the problems of a topology whose arguments contain parameters that this search does not have."""
        if self.readable is None or source.topology is None:
            return ()
        found = check_placeholders(self.readable, source.topology, self.source)
        return tuple(_problems(found, source.document, source.topology))


def _problems(findings: Findings, document: Document, model: FrozenModel) -> list[Problem]:
    """Returns the first problems, with their lines and columns in a document that contains a model."""
    data = model.model_dump(mode="json")
    return [
        Problem(
            *(one.severity, one.code, one.message, document.line(one.place), shown(one.place, data)),
            column=document.column(one.place),
        )
        for one in islice(findings, MAX_PROBLEMS)
    ]


def is_search(data: Any) -> bool:
    """Returns whether the data of a YAML document is that of a search file and not of a topology."""
    return isinstance(data, dict) and "pools" not in data and not {"parameters", "objective"}.isdisjoint(data)


def read_search(path: Path | str) -> SearchFile:
    """Reads a search file. Raises FileProblem if the file is unreadable or invalid YAML."""
    return search_from_text(read_text(Path(path)), str(path))


def search_from_text(text: str, source: str = "search") -> SearchFile:
    """Reads a search from text. Raises FileProblem for invalid YAML."""
    return search_from_document(parse_document(text, source))


def search_from_document(document: Document) -> SearchFile:
    """Returns the search in a parsed document."""

    def column(place: Place) -> int | None:
        return document.column(place)

    written = document.composed.written
    search, found = validate(Search, document.data, written, document.line, column)
    readable = search
    if any(problem.code == "unknown-key" for problem in found):
        readable, _ = validate(Search, without_unknown_keys(Search, document.data), written, document.line, column)
    if document.problems:
        search = None
    return SearchFile(document, search, (*document.problems, *found), readable)


def dump_search(search: Search) -> str:
    """Returns the search as YAML with the keys that were set, in the order of the model."""
    return dump_yaml(search.model_dump(mode="json", exclude_unset=True, exclude_none=True))
