"""Finds where a problem of the topology can be fixed. The location follows from the problem's path, such as
`pools.workers.replicas`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from torchyard_core.problems import Problem
from torchyard_core.topology.document.edits import members_of
from torchyard_core.topology.model import Launcher, Topology
from torchyard_gui.widgets.next_steps import quoted

HOSTS = "hosts"
"""The name of the block for problems with hosts. The key of such a problem is the host's name."""


@dataclass(frozen=True)
class ProblemPlace:
    """The place where a problem can be fixed."""

    block: str
    """The block of the file: `pools`, `pins`, `strategy`, `program`, HOSTS, or "" for the top level."""
    key: str
    replicas: tuple[str, ...]
    """The replicas to select; empty if the problem is not about particular replicas."""


def place_of(problem: Problem, topology: Topology, unplaced: Collection[str] = ()) -> ProblemPlace:
    """Returns the place where a problem can be fixed.

    If the hosts lack resources for a pool, the place contains those replicas of the pool that are in `unplaced` or, if
    there are none, all replicas of the pool.
    """
    block, _, rest = problem.path.partition(".")
    if block == "pins":
        known = {name for names in members_of(topology) for name in names}
        return ProblemPlace("pins", "", (rest,) if rest in known else ())
    if block == "pools":
        names = [pool.name for pool in topology.pools]
        pool = pool_of(problem, names)
        if pool is None:
            return ProblemPlace("pools", "", ())
        members = tuple(members_of(topology)[names.index(pool)])
        lost = tuple(name for name in members if name in unplaced) if problem.code == "no-room" else ()
        return ProblemPlace("pools", _key(problem, f"pools.{pool}"), lost or members)
    if block == HOSTS:
        return ProblemPlace(HOSTS, rest, ())
    if block in ("strategy", "program"):
        return ProblemPlace(block, rest.partition(".")[0] or whole_block_key(topology, block), ())
    return ProblemPlace("", block, ())


def whole_block_key(topology: Topology, block: str) -> str:
    """Returns the key in which a problem that concerns a whole block can be fixed, such as a missing program."""
    if block == "strategy":
        return "kind"
    return "command" if topology.program.launcher is Launcher.COMMAND else "script"


def pool_of(problem: Problem, names: Sequence[str]) -> str | None:
    """Returns the pool that a problem concerns, or None if the problem concerns no pool.

    Names may contain dots, so the pool with the longest matching name is returned.
    """
    path = problem.path.removeprefix("pools.")
    if path == problem.path:
        return None
    fits = [name for name in names if path == name or path.startswith(f"{name}.")]
    return max(fits, key=len, default=None)


def keys_of_block(problems: Sequence[Problem], block: str, pools: Sequence[str] = ()) -> dict[str, str]:
    """Returns the message of the first problem with each key of a block. The key "" stands for the block itself."""
    found: dict[str, str] = {}
    for problem in problems:
        around = block
        if block == "pools":
            pool = pool_of(problem, pools)
            if pool is None:
                continue
            around = f"pools.{pool}"
        elif problem.path != block and not problem.path.startswith(f"{block}."):
            continue
        found.setdefault(_key(problem, around), problem.message)
    return found


def in_window(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Returns the problems with their messages reworded for the window."""
    return tuple(replace(problem, message=quoted(problem.message)) for problem in problems)


def _key(problem: Problem, around: str) -> str:
    return problem.path.removeprefix(around).removeprefix(".").partition(".")[0]
