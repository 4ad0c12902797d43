"""`torchyard validate`: the problems of a topology file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchyard_core.cli.context import command_context
from torchyard_core.cli.file_arguments import FILE, SET, topology_of
from torchyard_core.cli.output import Json, print_json, remark, say


def validate(
    context: typer.Context,
    file: Annotated[Path, FILE],
    set_: Annotated[list[str] | None, SET] = None,
    as_json: Json = False,
) -> None:
    """Print the problems of a topology file, one per line: `file:line: severity code message`.

    Hosts are checked against the fleet file if it exists. Exit code 0: no problems, or only warnings. 1: errors. 2: the
    file cannot be read, or is not YAML.

    Example: torchyard validate examples/digits/three-hosts.yaml
    """
    from torchyard_core.fleet.cluster import clusters_as_hosts
    from torchyard_core.problems import has_errors

    chosen = command_context(context)
    source = topology_of(file).with_overrides(set_ or [])
    inventory = chosen.inventory()
    known = (*chosen.known(inventory), *clusters_as_hosts(inventory.clusters, source.topology))
    problems = source.check(known if inventory.document is not None else None)
    if as_json:
        print_json({"file": source.source, "problems": [problem.to_json() for problem in problems]})
    else:
        for problem in problems:
            say(problem.printed(source.source))
        if not problems:
            say(f"{source.source}: no problems.")
        if inventory.document is None:
            remark(f"Hosts were not checked: there is no fleet file ({inventory.path}).")
    if has_errors(problems):
        raise typer.Exit(1)
