"""Reading of search files, with line and column of each problem."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from torchyard_core.errors import FileProblem
from torchyard_core.problems import MAX_PROBLEMS, Findings, Place, Problem, has_errors
from torchyard_core.sweeps.model import Search
from torchyard_core.sweeps.search_checks import check_arguments, check_placeholders, check_search
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.model import FrozenModel, Topology
from torchyard_core.yaml_io.document import Document, parse_document
from torchyard_core.yaml_io.file_reader import read_text
from torchyard_core.yaml_io.model_validation import validate, without_unknown_keys
from torchyard_core.yaml_io.parser import shown
from torchyard_core.yaml_io.writer import dump_yaml


@dataclass(frozen=True)
class SearchFile:
    """The result of reading a search file. For an invalid file, `search` is None and `problems` has the errors."""

    document: Document
    search: Search | None
    problems: tuple[Problem, ...]
    """Problems found while reading the file: unknown keys, wrong values."""
    readable: Search | None = None
    """The search without the file's unknown keys, for further checks; None if the file has other errors."""

    @property
    def source(self) -> str:
        """The path of the file as the user entered it, or another name for the source of the text."""
        return self.document.source

    def check(self, topology: Topology | None = None) -> tuple[Problem, ...]:
        """Returns the problems found by reading the file and by checking the search, sorted by line and column.

        If `topology` is given, parameters that the topology's arguments do not use are problems too.
        """
        found = list(self.problems)
        if self.readable is not None:
            checks = [check_search(self.readable)]
            if topology is not None:
                checks.append(check_arguments(self.readable, topology))
            found += _problems(chain.from_iterable(checks), self.document, self.readable)
        return tuple(sorted(found, key=lambda problem: (problem.line or 0, problem.column or 0)))

    def check_topology(self, source: TopologyFile) -> tuple[Problem, ...]:
        """Returns a problem for each parameter in the topology's arguments that this search does not define."""
        if self.readable is None or source.topology is None:
            return ()
        found = check_placeholders(self.readable, source.topology, self.source)
        return tuple(_problems(found, source.document, source.topology))


def _problems(findings: Findings, document: Document, model: FrozenModel) -> list[Problem]:
    """Converts findings about a model to at most MAX_PROBLEMS problems, with lines and columns in the document."""
    data = model.model_dump(mode="json")
    return [
        Problem(
            *(one.severity, one.code, one.message, document.line(one.place), shown(one.place, data)),
            column=document.column(one.place),
        )
        for one in islice(findings, MAX_PROBLEMS)
    ]


def is_search(data: Any) -> bool:
    """Returns whether the data of a YAML document belongs to a search file rather than to a topology."""
    return isinstance(data, dict) and "pools" not in data and not {"parameters", "objective"}.isdisjoint(data)


def are_swapped(topology: Document, search: Document) -> bool:
    """Returns whether the user has given a topology and a search file in the wrong order."""
    return is_search(topology.data) and isinstance(search.data, dict) and "pools" in search.data


def read_search(path: Path | str) -> SearchFile:
    """Reads a search file. Raises FileProblem if the file is unreadable or invalid YAML."""
    return search_from_text(read_text(Path(path)), str(path))


def search_from_text(text: str, source: str = "search") -> SearchFile:
    """Reads a search from text. Raises FileProblem for invalid YAML."""
    return search_from_document(parse_document(text, source))


def search_in_record(text: str) -> Search | None:
    """Returns the search in the record of a sweep, or None if this version of Torchyard cannot use it."""
    try:
        read = search_from_text(text)
    except FileProblem:
        return None
    return None if has_errors(read.check()) else read.search


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
    """Returns the search as YAML: the keys that were set explicitly, in the order of the model's fields."""
    return dump_yaml(search.model_dump(mode="json", exclude_unset=True, exclude_none=True))
