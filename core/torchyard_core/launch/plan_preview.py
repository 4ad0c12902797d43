"""The plan as `torchyard plan` prints it, with placeholders for values that are known only at launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torchyard_core.launch.port_assignment import ports_needed
from torchyard_core.launch.rank_assignment import Plan, PlannedReplica
from torchyard_core.launch.replica_plans import PreparedHost, replica_specs
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Program

AT_LAUNCH = "<chosen at launch>"
NO_HOST = "<no host>"
RUN_ID = "<run id>"
RUN_FOLDER = "<run folder>"
SECRET = "***"


def host_python(host: HostFacts, program: Program) -> str:
    """Returns the host's interpreter for a program.

    The interpreter that the fleet file names takes precedence. Without one, the result is the interpreter that was
    found on the host, or `python3` (the first on PATH) if none was found or the program has a `setup`. A `setup` may
    activate an environment (`source .venv/bin/activate`).
    """
    if host.python:
        return host.python
    return "python3" if program.setup or not host.found_python else host.found_python


def preview_sites(plan: Plan, hosts: Sequence[HostFacts]) -> dict[str, PreparedHost]:
    """Returns the plan's hosts as if they were prepared, with placeholders for values that are known only at launch."""
    facts = {host.name: host for host in (*hosts, HostFacts(NO_HOST))}
    return {
        name: PreparedHost(
            address=facts[name].data_address or facts[name].address or name,
            interface=facts[name].interface or AT_LAUNCH,
            run_dir=RUN_FOLDER,
            python=host_python(facts[name], plan.topology.program),
            ports=(AT_LAUNCH,) * count,
        )
        for name, count in ports_needed(plan).items()
    }


def plan_as_json(plan: Plan, hosts: Sequence[HostFacts]) -> dict[str, Any]:
    """Returns the output of `torchyard plan --json`, with the command and environment of each replica's first rank."""
    secrets = dict.fromkeys(plan.topology.program.secrets, SECRET)
    placed = _with_placeholders(plan)
    sites = preview_sites(placed, hosts)
    replicas = []
    for planned, share in zip(plan.replicas, replica_specs(placed, sites, RUN_ID, store=AT_LAUNCH), strict=True):
        rank = share["ranks"][0]
        replicas.append(_replica(planned, rank["argv"], rank["env"] | secrets))
    return {
        "name": plan.name,
        "strategy": plan.topology.strategy.kind.value,
        "replicas": replicas,
        "problems": [problem.to_json() for problem in plan.problems],
    }


def _with_placeholders(plan: Plan) -> Plan:
    """Returns the plan with unplaced replicas moved to a placeholder host, so that all commands can be shown."""
    replicas = tuple(planned if planned.host else replace(planned, host=NO_HOST) for planned in plan.replicas)
    return replace(plan, replicas=replicas, hosts=tuple(dict.fromkeys(planned.host or "" for planned in replicas)))


def _replica(planned: PlannedReplica, command: list[str], env: dict[str, str]) -> dict[str, Any]:
    return {
        "name": planned.name,
        "role": planned.role.value,
        "index": planned.index,
        "gang": planned.gang,
        "rank": planned.first_rank,
        "ranks": planned.ranks,
        "host": planned.host,
        "gpus": [gpu.uuid for gpu in planned.gpus],
        "command": command,
        "env": env,
    }
