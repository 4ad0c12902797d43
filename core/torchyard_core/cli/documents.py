"""Documents that commands take: a file, or `-` for stdin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from torchyard_core.errors import FileProblem

if TYPE_CHECKING:
    from torchyard_core.topology.file import TopologyFile


def text_of(file: Path) -> tuple[str, str]:
    """(text, what people call it). Raises FileProblem."""
    from torchyard_core.topology.yaml_document import read_text

    if str(file) != "-":
        return read_text(file), str(file)
    try:
        return typer.get_text_stream("stdin").read(), "stdin"
    except UnicodeDecodeError:
        raise FileProblem("stdin: this is not UTF-8 text.", code="unreadable_file") from None


def topology_of(file: Path) -> TopologyFile:
    """The topology in a file; what comes from stdin lies in the current folder. Raises FileProblem."""
    from torchyard_core.topology.file import read_topology, topology_from_text

    if str(file) != "-":
        return read_topology(file)
    text, source = text_of(file)
    return topology_from_text(text, source, Path.cwd())
