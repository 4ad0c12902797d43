"""`torchyard plan`: the placement of a topology's replicas, without starting them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchyard_core.cli.context import CommandContext, command_context
from torchyard_core.cli.file_or_stdin import FILE, SET, topology_of
from torchyard_core.cli.output import Json, print_json, remark, say, table
from torchyard_core.errors import UsageError
from torchyard_core.formatting import number_ranges

if TYPE_CHECKING:
    from torchyard_core.engines.slurm.plan_on_cluster import PlanOnCluster
    from torchyard_core.fleet.inventory import Inventory
    from torchyard_core.problems import Problem
    from torchyard_core.topology.file import TopologyFile

HEADINGS = ("REPLICA", "ROLE", "RANKS", "GANG", "HOST", "GPUS", "COMMAND")


def plan(
    context: typer.Context,
    file: Annotated[Path, FILE],
    set_: Annotated[list[str] | None, SET] = None,
    show: Annotated[
        str | None, typer.Option(metavar="REPLICA", help="Print this replica's whole command and environment.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="CLUSTER", help="Plan for a cluster of the fleet file, like `run --on`."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the rank, host, GPUs and command of each replica. Starts nothing.

    Contacts no host: it uses the facts found by `hosts check`. For a cluster, it logs in to read the shapes of the
    nodes, and prints the request for nodes. `hpc.1` is then the first of these nodes, which Slurm chooses at the start.

    Exit code 1: the topology could not start; the problems are on stderr. 3: the cluster does not answer.

    Example: torchyard plan examples/digits/three-hosts.yaml --show worker-0
    """
    from torchyard_core.launch.plan_preview import plan_as_json
    from torchyard_core.launch.rank_assignment import plan as make_plan

    chosen = command_context(context)
    source = topology_of(file).with_overrides(set_ or [])
    inventory = chosen.inventory()
    known = chosen.known(inventory)
    on_cluster = _plan_on_cluster(chosen, inventory, source, on)
    planned = None if on_cluster is None else on_cluster.plan
    if on_cluster is not None:
        answer = plan_as_json(on_cluster.plan, on_cluster.slots)
        problems: Sequence[Problem] = on_cluster.plan.problems
    elif source.topology is None:
        problems = source.check(known)
        answer = {"name": None, "strategy": None, "replicas": []}
        answer["problems"] = [problem.to_json() for problem in problems]
    else:
        planned = make_plan(source.topology, known, found=source.check(known), line=source.line)
        answer = plan_as_json(planned, known)
        problems = planned.problems
    answer["nodes"] = [] if on_cluster is None else [one.to_json() for one in on_cluster.components]
    for problem in problems:
        remark(problem.printed(source.source))
    if as_json:
        print_json(answer)
    elif show is not None:
        _print_replica(answer, show)
    elif planned is not None:
        gpus = {replica.name: number_ranges(gpu.index for gpu in replica.gpus) or "-" for replica in planned.replicas}
        table(HEADINGS, [_row(replica, gpus[replica["name"]]) for replica in answer["replicas"]])
    if not as_json and show is None and on_cluster is not None and on_cluster.components:
        from torchyard_core.engines.slurm.planned_nodes import request_text

        say()
        say(f"Slurm is asked for {request_text(on_cluster.components)}.")
    if planned is None or not planned.can_start:
        raise typer.Exit(1)


def _plan_on_cluster(
    chosen: CommandContext, inventory: Inventory, source: TopologyFile, on: str | None
) -> PlanOnCluster | None:
    """Returns the plan on the cluster `on`, or else on the topology's cluster; None if neither names a cluster."""
    from torchyard_core.fleet.cluster import cluster_named_by

    named = on
    if named is None and source.topology is not None:
        clusters = {cluster.name for cluster in inventory.clusters}
        if not any(clusters & set(pool.hosts or ()) for pool in source.topology.pools):
            return None
        cluster = cluster_named_by(source.topology, inventory.clusters)
        named = cluster.name if cluster is not None else None
    with chosen.fleet(inventory.hosts) as fleet:
        from torchyard_core.engines.registry import engine_of, on_place, plan_on_cluster

        if on is not None:
            source = on_place(source, on, fleet)
        if source.topology is None:
            return None
        if named is None:
            engine_of(source.topology, fleet)  # Raises UsageError, because only some pools name a cluster.
            return None
        return plan_on_cluster(source, named, fleet)


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
