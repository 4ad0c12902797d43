"""`torchyard plan`: the placement of a topology's replicas, without starting them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from torchyard_core.cli.context import command_context
from torchyard_core.cli.file_arguments import FILE, SET, topology_of
from torchyard_core.cli.output import Json, print_json, remark, say, table
from torchyard_core.errors import UsageError
from torchyard_core.formatting import number_ranges

HEADINGS = ("REPLICA", "ROLE", "RANKS", "GANG", "HOST", "GPUS", "COMMAND")


def plan(
    context: typer.Context,
    file: Annotated[Path, FILE],
    set_: Annotated[list[str] | None, SET] = None,
    show: Annotated[
        str | None, typer.Option(metavar="REPLICA", help="Print this replica's whole command and environment.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the rank, host, GPUs and command of each replica. Starts nothing and contacts no host.

    Uses the facts found by `hosts check`. The nodes of a cluster are known only at a launch: its name stands for them.

    Exit code 1: the topology could not start; the problems are on stderr.

    Example: torchyard plan examples/digits/three-hosts.yaml --show worker-0
    """
    from torchyard_core.fleet.cluster import clusters_as_hosts
    from torchyard_core.launch.plan_preview import plan_as_json
    from torchyard_core.launch.rank_assignment import plan as make_plan

    chosen = command_context(context)
    source = topology_of(file).with_overrides(set_ or [])
    inventory = chosen.inventory()
    known = (*chosen.known(inventory), *clusters_as_hosts(inventory.clusters, source.topology))
    problems = source.check(known)
    if source.topology is None:
        planned = None
        answer: dict[str, Any] = {"name": None, "strategy": None, "replicas": []}
        answer["problems"] = [problem.to_json() for problem in problems]
    else:
        planned = make_plan(source.topology, known, found=problems, line=source.line)
        answer = plan_as_json(planned, known)
        problems = planned.problems
    for problem in problems:
        remark(problem.printed(source.source))
    if as_json:
        print_json(answer)
    elif show is not None:
        _print_replica(answer, show)
    elif planned is not None:
        gpus = {replica.name: number_ranges(gpu.index for gpu in replica.gpus) or "-" for replica in planned.replicas}
        table(HEADINGS, [_row(replica, gpus[replica["name"]]) for replica in answer["replicas"]])
    if planned is None or not planned.can_start:
        raise typer.Exit(1)


def _row(replica: dict[str, Any], gpus: str) -> list[str]:
    first, count = replica["rank"], replica["ranks"]
    ranks = "-" if first is None else str(first) if count == 1 else f"{first}-{first + count - 1}"
    command = shlex.join(replica["command"])
    return [replica["name"], replica["role"], ranks, replica["gang"], replica["host"] or "(none)", gpus, command]


def _print_replica(answer: dict[str, Any], name: str) -> None:
    replicas = {replica["name"]: replica for replica in answer["replicas"]}
    if name not in replicas:
        there = ", ".join(replicas) or "none"
        raise UsageError(f"the plan has no replica {name}.", code="no_replica", hint=f"It has: {there}.")
    replica = replicas[name]
    say(shlex.join(replica["command"]))
    say()
    for variable, value in sorted(replica["env"].items()):
        say(f"{variable}={shlex.quote(value)}")
