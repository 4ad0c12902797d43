"""Reading, checking and writing of topology files, with line numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from torchyard_core.problems import MAX_PROBLEMS, LineOf, Place, Problem, no_lines
from torchyard_core.topology.checks.pins import check_hosts, check_pins
from torchyard_core.topology.checks.pools import check_names, check_pools
from torchyard_core.topology.checks.program import check_exclude, check_files, check_program, check_variables
from torchyard_core.topology.checks.strategy import check_strategy
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology
from torchyard_core.topology.overrides import apply_overrides
from torchyard_core.yaml_io.document import Document, parse_document
from torchyard_core.yaml_io.file_reader import read_text
from torchyard_core.yaml_io.model_validation import validate
from torchyard_core.yaml_io.parser import shown
from torchyard_core.yaml_io.writer import dump_yaml


@dataclass(frozen=True)
class TopologyFile:
    """The result of reading a topology file. For an invalid file, `topology` is None and `problems` has the errors."""

    document: Document
    folder: Path | None
    """Folder of the file, to which `workdir` is relative; None for text without a file."""
    topology: Topology | None
    problems: tuple[Problem, ...]
    """Problems found while reading the file: unknown keys, wrong values."""

    @property
    def source(self) -> str:
        """The path of the file as the user entered it, or another name for the source of the text."""
        return self.document.source

    def line(self, place: Place) -> int | None:
        return self.document.line(place)

    def check(self, hosts: Sequence[HostFacts] | None = None) -> tuple[Problem, ...]:
        """Returns the problems found by reading the file and by checking the topology, sorted by line.

        If `hosts` is given, the names of hosts are checked too.
        """
        found = list(self.problems)
        if self.topology is not None:
            found += check_topology(self.topology, folder=self.folder, hosts=hosts, line=self.line)
        return tuple(sorted(found, key=lambda problem: problem.line or 0))

    def with_overrides(self, settings: Sequence[str]) -> TopologyFile:
        """Returns the file with overrides such as `pools.workers.replicas=2`.

        Raises UsageError for an invalid path or value.
        """
        if self.topology is None or not settings:
            return self
        return replace(self, topology=apply_overrides(self.topology, settings))


def check_topology(
    topology: Topology, *, folder: Path | None = None, hosts: Sequence[HostFacts] | None = None, line: LineOf = no_lines
) -> list[Problem]:
    """Returns the problems of a topology, at most MAX_PROBLEMS.

    Args:
        folder: The folder of the file; if given, the existence of files is checked.
        hosts: The hosts of the fleet; if given, names of hosts are checked.
        line: Returns the line of a setting in the file.
    """
    checks = [check_names(topology), check_pools(topology), check_strategy(topology), check_pins(topology, hosts)]
    checks += [check_program(topology), check_variables(topology), check_exclude(topology)]
    if hosts is not None:
        checks.append(check_hosts(topology, hosts))
    if folder is not None:
        checks.append(check_files(topology, folder))
    findings = list(islice(chain.from_iterable(checks), MAX_PROBLEMS))
    data = topology.model_dump(mode="json", include={"pools"}) if findings else None
    return [
        Problem(found.severity, found.code, found.message, line(found.place), shown(found.place, data))
        for found in findings
    ]


def read_topology(path: Path | str) -> TopologyFile:
    """Reads a topology file. Raises FileProblem if the file is unreadable or invalid YAML."""
    path = Path(path)
    return topology_from_text(read_text(path), str(path), path.absolute().parent)


def topology_from_text(text: str, source: str = "topology", folder: Path | None = None) -> TopologyFile:
    """Reads a topology from text. Raises FileProblem for invalid YAML."""
    document = parse_document(text, source)
    topology, found = validate(Topology, document.data, document.composed.written, document.line)
    problems = (*document.problems, *found)
    if document.problems:
        topology = None
    return TopologyFile(document, folder, topology, problems)


def dump(topology: Topology) -> str:
    """Returns the topology as YAML: the keys that were set explicitly, in the order of the model's fields."""
    return dump_yaml(topology.as_data())
