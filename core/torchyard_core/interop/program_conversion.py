"""Converts programs of topologies to and from other systems, which run a Python module or a command in a container."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from torchyard_core.interop.remarks import Remark
from torchyard_core.topology.model import Launcher, Pool, Program, Role, Topology

SCRIPT = "train.py"
"""The script of a placeholder program, for a document that names no program."""
PYTHON = "python"


def missing_program(remarks: list[Remark], *, command: bool = False) -> dict[str, Any]:
    """Returns a placeholder program for a document without a program, and adds a remark."""
    remarks.append(Remark(f"the document does not say what to run; it is {SCRIPT} here: change `program`."))
    if command:
        return {"launcher": "command", "command": [PYTHON, SCRIPT]}
    return {"script": SCRIPT}


def of_module(module: str, args: Sequence[str], *, torch: bool) -> dict[str, Any]:
    """Returns a program that runs a Python module. The launcher is `torch` or, if `torch=False`, `command`."""
    what: dict[str, Any] = {"module": module} if torch else {"launcher": "command", "command": [PYTHON, "-m", module]}
    return what | ({"args": list(args)} if args else {})


def words(program: Program, pool: Pool | None = None) -> list[str]:
    """Returns the words of the command line of a replica in `pool`. Placeholders are not replaced."""
    args = [*program.args, *(pool.args if pool is not None else ())]
    if program.launcher is Launcher.COMMAND:
        return [*program.command, *args]
    what = ["-m", program.module] if program.module else [program.script or SCRIPT]
    return [program.python or PYTHON, *what, *args]


def as_module(program: Program, remarks: list[Remark]) -> tuple[str, list[str]]:
    """Returns a module and its arguments, for systems that can only run a module of a package.

    A script becomes a module of the same name. A command that runs no Python program becomes the module `main`.
    """
    args = list(program.args)
    if program.module:
        return program.module, args
    command = list(program.command)
    if program.launcher is Launcher.COMMAND and "-m" in command[1:-1] and "python" in PurePosixPath(command[0]).name:
        at = command.index("-m")
        return command[at + 1], [*command[at + 2 :], *args]
    script = program.script
    if program.launcher is Launcher.COMMAND:
        found = next((position for position, word in enumerate(command) if word.endswith(".py")), None)
        if found is None:
            remarks.append(Remark(f"`{' '.join(command)}` is no Python module; put it into one, named here `main`."))
            return "main", args
        script, args = command[found], [*command[found + 1 :], *args]
    module = ".".join(PurePosixPath(script or SCRIPT).with_suffix("").parts)
    remarks.append(Remark(f"{script} is written as the module {module}: it must be in the package that you upload."))
    return module, args


def role_pools(topology: Topology, remarks: list[Remark], *roles: Role, one_machine: bool = True) -> list[Pool]:
    """Returns the pools with the given roles, the chief's first.

    If `roles` contains the chief but there is no chief pool, one worker of the first pool of workers forms a pool of
    its own as the chief. `one_machine` merges the pools of each role, for systems with one machine type per role, and
    adds a remark if the pools differ.
    """
    pools = [pool for role in roles for pool in topology.pools if pool.role is role]
    if Role.CHIEF in roles and not any(pool.role is Role.CHIEF for pool in pools):
        first = next(position for position, pool in enumerate(pools) if pool.role is Role.WORKER)
        worker = pools[first]
        pools[first] = worker.model_copy(update={"replicas": worker.replicas - 1})
        pools.insert(0, worker.model_copy(update={"name": "chief", "role": Role.CHIEF, "replicas": 1}))
        remarks.append(Remark("there is no chief pool: worker-0, which is the chief, becomes the first replica there."))
    pools = [pool for pool in pools if pool.replicas]
    return _merged(pools, remarks) if one_machine else pools


def _merged(pools: list[Pool], remarks: list[Remark]) -> list[Pool]:
    merged: dict[Role, Pool] = {}
    for pool in pools:
        first = merged.setdefault(pool.role, pool)
        if first is not pool:
            merged[pool.role] = first.model_copy(update={"replicas": first.replicas + pool.replicas})
            if _needs(first) != _needs(pool):
                remarks.append(
                    Remark(f"pool `{pool.name}` becomes part of `{first.name}`: there, one kind of machine a role.")
                )
    return list(merged.values())


def _needs(pool: Pool) -> tuple[Any, ...]:
    return pool.gpus, pool.machine, pool.cpus, pool.memory_gb, pool.gpu_model, pool.gpu_memory_gb, pool.env, pool.args
