"""What a problem is about: a pool, a replica, a key. Problems say it as a path, `pools.workers.replicas`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from torchyard_core.problems import Problem
from torchyard_core.topology.document.edits import members_of
from torchyard_core.topology.model import Launcher, Topology
from torchyard_gui.widgets.advice import in_the_window

HOSTS = "hosts"
"""The block of problems about hosts themselves, whose key is the host."""


@dataclass(frozen=True)
class ProblemPlace:
    """Where a problem can be mended."""

    block: str
    """`pools`, `pins`, `strategy`, `program`, HOSTS, or "" for the top of the file."""
    key: str
    replicas: tuple[str, ...]
    """To select; empty for what is about the design as a whole."""


def place_of(problem: Problem, topology: Topology, unplaced: Collection[str] = ()) -> ProblemPlace:
    """Where a problem can be mended. `unplaced`: replicas that have no place; of a pool without room for all, they are
    what it is about, and not those that have one."""
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
    """The key to mend where a block as a whole is wrong: nothing is to be run, or no strategy chosen."""
    if block == "strategy":
        return "kind"
    return "command" if topology.program.launcher is Launcher.COMMAND else "script"


def pool_of(problem: Problem, names: Sequence[str]) -> str | None:
    """Which of these pools a problem is about. Names may hold dots: the longest that fits counts."""
    path = problem.path.removeprefix("pools.")
    if path == problem.path:
        return None
    fits = [name for name in names if path == name or path.startswith(f"{name}.")]
    return max(fits, key=len, default=None)


def keys_of_block(problems: Sequence[Problem], block: str, pools: Sequence[str] = ()) -> dict[str, str]:
    """The first message for each key of a block; of the block as a whole under ""."""
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
    """Problems with the advice that the window has for them, instead of the command line's."""
    return tuple(replace(problem, message=in_the_window(problem.message)) for problem in problems)


def _key(problem: Problem, around: str) -> str:
    return problem.path.removeprefix(around).removeprefix(".").partition(".")[0]
