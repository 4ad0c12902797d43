"""Arguments that refer to a document: a file, or `-` for stdin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from torchyard_core.errors import FileProblem

if TYPE_CHECKING:
    from torchyard_core.topology.file import TopologyFile


FILE = typer.Argument(metavar="FILE", help="The topology file; - reads it from stdin.", show_default=False)
SET = typer.Option("--set", metavar="PATH=VALUE", help="Change a value: pools.workers.replicas=2. Repeatable.")


def text_of(file: Path) -> tuple[str, str]:
    """Returns the text of a file and its name for messages. Raises FileProblem if it cannot be read."""
    from torchyard_core.yaml_io.file_reader import MAX_BYTES, read_text

    if str(file) != "-":
        return read_text(file), str(file)
    try:
        text = typer.get_text_stream("stdin").read(MAX_BYTES + 1)
    except UnicodeDecodeError:
        raise FileProblem("stdin: this is not UTF-8 text.", code="unreadable_file") from None
    if len(text) > MAX_BYTES:
        raise FileProblem(f"stdin: this is over the limit of {MAX_BYTES // 2**20} MB.", code="unreadable_file")
    return text.removeprefix("\ufeff"), "stdin"


def topology_of(file: Path) -> TopologyFile:
    """Returns the topology in a file. Paths in a topology from stdin are relative to the current folder.

    Raises FileProblem if the file cannot be read.
    """
    from torchyard_core.topology.file import read_topology, topology_from_text

    if str(file) != "-":
        return read_topology(file)
    text, source = text_of(file)
    return topology_from_text(text, source, Path.cwd())
