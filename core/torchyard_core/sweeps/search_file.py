"""Reading of search files, with line and column of each problem."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from torchyard_core.problems import MAX_PROBLEMS, Place, Problem
from torchyard_core.sweeps.model import Search
from torchyard_core.sweeps.search_checks import check_arguments, check_search
from torchyard_core.topology.model import Topology
from torchyard_core.yaml_io.model_validation import validate
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

    @property
    def source(self) -> str:
        """The path of the file as the user entered it, or another name for the source of the text."""
        return self.document.source

    def check(self, topology: Topology | None = None) -> tuple[Problem, ...]:
        """Returns the problems of reading and of the search, sorted by line and column.

        With `topology`, the use of the parameters in its arguments is also checked.
        """
        found = list(self.problems)
        if self.search is not None:
            checks = [check_search(self.search)]
            if topology is not None:
                checks.append(check_arguments(self.search, topology))
            data = self.search.model_dump(mode="json")
            document = self.document
            for one in islice(chain.from_iterable(checks), MAX_PROBLEMS):
                line, column = document.line(one.place), document.column(one.place)
                path = shown(one.place, data)
                found.append(Problem(one.severity, one.code, one.message, line, path, column=column))
        return tuple(sorted(found, key=lambda problem: (problem.line or 0, problem.column or 0)))


def read_search(path: Path | str) -> SearchFile:
    """Reads a search file. Raises FileProblem if the file is unreadable or invalid YAML."""
    return search_from_text(read_text(Path(path)), str(path))


def search_from_text(text: str, source: str = "search") -> SearchFile:
    """Reads a search from text. Raises FileProblem for invalid YAML."""
    document = parse_document(text, source)

    def column(place: Place) -> int | None:
        return document.column(place)

    search, found = validate(Search, document.data, document.composed.written, document.line, column)
    if document.problems:
        search = None
    return SearchFile(document, search, (*document.problems, *found))


def dump_search(search: Search) -> str:
    """Returns the search as YAML with the keys that were set, in the order of the model."""
    return dump_yaml(search.model_dump(mode="json", exclude_unset=True, exclude_none=True))
