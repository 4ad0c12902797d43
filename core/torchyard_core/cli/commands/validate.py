"""`torchyard validate`: the problems of a topology file, and of a search file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchyard_core.cli.context import command_context
from torchyard_core.cli.file_or_stdin import FILE, SET, topology_of
from torchyard_core.cli.output import Json, print_json, remark, say
from torchyard_core.errors import UsageError
from torchyard_core.next_steps import ValidateSweep

if TYPE_CHECKING:
    from torchyard_core.problems import Problem


def validate(
    context: typer.Context,
    file: Annotated[Path, FILE],
    search: Annotated[
        Path | None,
        typer.Argument(
            metavar="SEARCH", help="A search file, to check for a sweep of the topology.", show_default=False
        ),
    ] = None,
    set_: Annotated[list[str] | None, SET] = None,
    as_json: Json = False,
) -> None:
    """Print the problems of a topology file, one per line: `file:line: severity code message`.

    Hosts are checked against the fleet file if it exists. With a search file, its problems follow, as `torchyard sweep`
    would report them. A search file alone is checked without the arguments that use its parameters.

    Exit code 0: no problems, or only warnings. 1: errors. 2: a file cannot be read, or is not YAML.

    Example: torchyard validate examples/digits/three-hosts.yaml

    Example: torchyard validate topology.yaml search.yaml
    """
    from torchyard_core.fleet.cluster import clusters_as_hosts
    from torchyard_core.problems import has_errors
    from torchyard_core.sweeps.search_file import are_swapped, is_search, read_search, search_from_document

    chosen = command_context(context)
    source = topology_of(file)
    if is_search(source.document.data):
        if search is not None or set_:
            is_second = search is not None and are_swapped(source.document, read_search(search).document)
            raise UsageError(
                f"{source.source} is a search file; with {'SEARCH' if search is not None else '--set'}, FILE is a "
                "topology.",
                code="usage",
                hint=ValidateSweep(str(search) if is_second else "TOPOLOGY", source.source),
            )
        problems = search_from_document(source.document).check()
        _print([(source.source, problems)], as_json=as_json)
        if not as_json:
            advice = ValidateSweep("TOPOLOGY", source.source).sentence()
            remark(f"The topology's arguments, which use the parameters, were not checked. {advice}")
        raise typer.Exit(1 if has_errors(problems) else 0)
    source = source.with_overrides(set_ or [])
    inventory = chosen.inventory()
    known = (*chosen.known(inventory), *clusters_as_hosts(inventory.clusters, source.topology))
    problems = source.check(known if inventory.document is not None else None)
    found = [(source.source, problems)]
    if search is not None:
        read = read_search(search)
        found = [(source.source, (*problems, *read.check_topology(source))), (read.source, read.check(source.topology))]
    _print(found, as_json=as_json)
    if inventory.document is None and not as_json:
        remark(f"Hosts were not checked: there is no fleet file ({inventory.path}).")
    if any(has_errors(problems) for _, problems in found):
        raise typer.Exit(1)


def _print(found: Sequence[tuple[str, Sequence[Problem]]], *, as_json: bool) -> None:
    """Prints the problems of a file, and then those of the search file that was checked with it, if any."""
    if as_json:
        first, *others = [
            {"file": file, "problems": [problem.to_json() for problem in problems]} for file, problems in found
        ]
        print_json({**first, "search": others[0]} if others else first)
        return
    for file, problems in found:
        for problem in problems:
            say(problem.printed(file))
        if not problems:
            say(f"{file}: no problems.")
