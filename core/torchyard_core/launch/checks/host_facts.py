"""Pure functions that check the plan and the answers to `host.facts`, before any data is sent to the hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torchyard_core.errors import agent_problem
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.next_steps import RemoveHost, SetField, SetHostField
from torchyard_core.topology.model import Launcher, Role, Shard, StrategyKind, Topology

SHARDING_TORCH = (2, 6)
"""The oldest version of torch with which Torchyard shards models."""
MIN_DISK_MB = 200
"""Free space in MB that a launch needs on the disk of the agent's folder."""


def check_host(topology: Topology, host: str, facts: dict[str, Any]) -> list[Check]:
    """Returns the checklist lines for one host from its answer to `host.facts`."""
    return [
        *_check_python(topology, host, facts),
        _check_disk(host, facts),
        *(
            Check("host", host, True, problem.message, problem.advice, warning=True)
            for problem in (agent_problem(host, raw) for raw in facts.get("problems", []))
            if problem.code not in _CHECKED_SEPARATELY
        ),
    ]


def check_working_folders(plan: Plan) -> list[Check]:
    """Returns a warning for each host on which several replicas may write to the same working folder.

    With the launcher `torch`, only trainers and evaluators are counted, because replicas of other roles do not execute
    the training loop.
    """
    any_writes = plan.topology.program.launcher is Launcher.COMMAND
    writers = Counter(
        planned.host for planned in plan.replicas if any_writes or planned.trains or planned.role is Role.EVALUATOR
    )
    return [
        Check(
            "folder",
            host,
            True,
            f"{writers[host]} replicas share the run's working folder: files of the same name overwrite each other.",
            "Write below TORCHYARD_RUN_DIR, which is separate for each replica, or on rank 0 only.",
            warning=True,
        )
        for host in plan.hosts
        if writers[host] > 1
    ]


def check_sharding(plan: Plan) -> list[Check]:
    """Returns an error if several hosts would save a sharded model without a shared checkpoint folder."""
    topology = plan.topology
    hosts = {planned.host for planned in plan.replicas if planned.trains}
    if topology.strategy.shard is Shard.NONE or topology.program.checkpoint_dir is not None or len(hosts) < 2:
        return []
    message = (
        f"A sharded model is saved by all {len(hosts)} hosts into one folder, but program.checkpoint_dir is not set."
    )
    advice = ("Set it to a folder that all hosts share.", SetField("program.checkpoint_dir"))
    return [Check("strategy", "", False, message, advice)]


def check_machines(facts: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """Returns an error for each host that has the same daemon as an earlier host of the run."""
    lines: list[Check] = []
    first: dict[str, str] = {}
    for host, found in facts.items():
        known = first.setdefault(str(found.get("daemon") or host), host)
        if known != host:
            message = f"{host} is the same machine as {known}, with the same user: a run can use it only once."
            lines.append(Check("host", host, False, message, ("Remove one of them.", RemoveHost(host))))
    return lines


def check_strategy(topology: Topology, joins: bool | None) -> list[Check]:
    """Returns a warning if the strategy needs `torchyard_roles` and the program does not import it.

    `joins` tells whether the program imports `torchyard_roles`; None means that this is unknown.
    """
    kind = topology.strategy.kind
    if joins is not False or kind in (StrategyKind.NONE, StrategyKind.ALL_REDUCE):
        return []
    return [
        Check(
            "strategy",
            "",
            True,
            f"The program does not import torchyard_roles, so {kind} has no effect: parameter servers and reducers run "
            "the script like workers do, and worker groups exchange nothing.",
            ("Call torchyard_roles.join() in it, or choose all_reduce.", SetField("strategy.kind")),
            warning=True,
        )
    ]


_CHECKED_SEPARATELY = frozenset({"no_torch", "no_python", "python_missing", "python_too_old", "disk_low"})


def _check_python(topology: Topology, host: str, facts: dict[str, Any]) -> list[Check]:
    if topology.program.launcher is not Launcher.TORCH:
        return []
    python = facts.get("python") or {}
    if not python.get("version"):
        problem = next((p for p in facts.get("problems", []) if "python" in str(p.get("code", ""))), None)
        reason = problem["message"] if problem else "no Python for the programs was found on this host"
        message = reason.replace("on this host", f"on {host}") + "."
        hint = (SetHostField(host, "python"), SetField("program.python"))
        return [Check("python", host, False, message, hint)]
    lines = [Check("python", host, True, f"Python {python['version']} at {python['path']}")]
    if facts.get("torch"):
        lines.append(_check_torch(topology, host, python["path"], str(facts["torch"])))
    elif topology.program.setup:
        # `setup` may activate a virtual environment with another interpreter.
        message = f"torch is not installed for {python['path']} on {host}; `setup` may activate an environment with it."
        lines.append(Check("torch", host, True, message, warning=True))
    else:
        install = (
            f"Install it there with `{python['path']} -m pip install torch`, or choose an interpreter that has it.",
            SetHostField(host, "python"),
        )
        lines.append(Check("torch", host, False, f"torch is not installed for {python['path']} on {host}.", install))
    return lines


def _check_torch(topology: Topology, host: str, python: str, version: str) -> Check:
    """Returns the checklist line about torch on a host.

    The line prevents the launch if the version of torch is too old for a sharded model.
    """
    numbers = tuple(int(number) for number in version.split("+")[0].split(".")[:2] if number.isdecimal())
    if topology.strategy.shard is Shard.NONE or numbers >= SHARDING_TORCH:
        return Check("torch", host, True, f"torch {version}")
    oldest = ".".join(map(str, SHARDING_TORCH))
    message = f"torch {version} on {host} is too old for strategy.shard, which needs {oldest} or newer."
    advice = (
        f"Upgrade it there with `{python} -m pip install --upgrade torch`, or set strategy.shard to none.",
        SetField("strategy.shard"),
    )
    return Check("torch", host, False, message, advice)


def _check_disk(host: str, facts: dict[str, Any]) -> Check:
    if facts.get("disk_free_gb") is None:
        return Check("disk", host, True, "free disk space unknown", warning=True)
    free = float(facts["disk_free_gb"]) * 1024
    if free >= MIN_DISK_MB:
        return Check("disk", host, True, f"{free / 1024:.0f} GB free")
    message = f"the disk of {host} is full: {free:.0f} MB free for the agent's folder, {MIN_DISK_MB:.0f} MB needed."
    return Check(
        "disk", host, False, message, ("Free disk space, or choose another folder.", SetHostField(host, "agent_dir"))
    )
