"""Edits of a topology, as pure functions that return the changed topology.

Replicas have no names in the file: `worker-3` is the fourth worker of all pools. Adding or removing replicas therefore
changes the numbers of other replicas. Their pins and positions in the layout are renamed accordingly.

An invalid edit raises UsageError.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from torchyard_core.errors import UsageError
from torchyard_core.problems import no_lines
from torchyard_core.topology.model import MAX_REPLICAS, FrozenModel, Pool, Program, Role, Topology
from torchyard_core.topology.replicas import replicas_of
from torchyard_core.yaml_io.model_validation import validate

Block = TypeVar("Block", bound=FrozenModel)
Members = Sequence[Sequence[str | None]]
"""The current names of the replicas of each pool. None stands for a new replica."""

POOL_NAMES = {
    Role.CHIEF: "chief",
    Role.WORKER: "workers",
    Role.PS: "servers",
    Role.REDUCER: "reducers",
    Role.EVALUATOR: "eval",
}


def empty_topology(name: str) -> Topology:
    """Returns a topology without pools. Only an editor may use such a topology."""
    return Topology.model_construct(_fields_set={"version", "name"}, version=1, name=name, pools=(), program=Program())


def with_parts(topology: Topology, **parts: Any) -> Topology:
    """Returns the topology with the given top-level keys replaced.

    The keys `pins`, `strategy` and `layout` are omitted from the file if they have no content.
    """
    given = {name: getattr(topology, name) for name in topology.model_fields_set} | parts
    if not given.get("pins", True):
        del given["pins"]
    if "strategy" in given and not given["strategy"].model_fields_set:
        del given["strategy"]
    if given.get("layout", True) is None:
        del given["layout"]
    given.setdefault("program", topology.program)
    given["pools"] = tuple(given["pools"]) if "pools" in given else topology.pools
    return Topology.model_construct(_fields_set=set(given), **given)


def changed_block(block: Block, changes: Mapping[str, Any]) -> Block:
    """Returns a block with some keys changed. A key that is changed to its default value is omitted from the file.

    Raises UsageError for an invalid value.
    """
    data = block.model_dump(mode="json", exclude_unset=True)
    for key, value in changes.items():
        field = type(block).model_fields[key]
        if not field.is_required() and value == field.get_default(call_default_factory=True):
            data.pop(key, None)
        else:
            data[key] = value
    return _validated(type(block), data)


def _validated(block: type[Block], data: Mapping[str, Any]) -> Block:
    changed, problems = validate(block, dict(data), {}, no_lines)
    if changed is None:
        raise UsageError("; ".join(problem.message for problem in problems), code="wrong-value")
    return changed


def members_of(topology: Topology) -> list[list[str]]:
    """Returns the names of each pool's replicas."""
    members: list[list[str]] = [[] for _ in topology.pools]
    for replica in replicas_of(topology):
        members[replica.pool_index].append(replica.name)
    return members


def pools_of(topology: Topology, names: Collection[str]) -> tuple[int, ...]:
    """Returns the positions of the pools that contain the given replicas."""
    wanted = set(names)
    return tuple(position for position, members in enumerate(members_of(topology)) if wanted.intersection(members))


def rebuilt(topology: Topology, pools: Sequence[Pool], members: Members) -> Topology:
    """Returns the topology with new pools. `members` lists the existing replicas of each new pool.

    Pins and positions in the layout follow their replicas. Pools without members are removed.
    """
    kept = [(pool, names) for pool, names in zip(pools, members, strict=True) if names]
    total = sum(len(names) for _, names in kept)
    if total > MAX_REPLICAS:
        raise UsageError(f"{total} replicas are over the limit of {MAX_REPLICAS}", code="too-many-replicas")
    changed = tuple(_sized(pool, len(names)) for pool, names in kept)
    after = with_parts(topology, pools=changed)
    renamed = {
        old: new
        for (_, olds), news in zip(kept, members_of(after), strict=True)
        for old, new in zip(olds, news, strict=True)
        if old is not None
    }
    known = {name for names in members_of(topology) for name in names}
    return with_parts(after, pins=_moved(topology.pins, known, renamed), layout=_layout_moved(topology, known, renamed))


def _sized(pool: Pool, replicas: int) -> Pool:
    if replicas == pool.replicas:
        return pool
    changes: dict[str, Any] = {"replicas": replicas}
    if pool.min_replicas is not None and pool.min_replicas > replicas:
        changes["min_replicas"] = replicas
    return changed_block(pool, changes)


def _moved(by_name: Mapping[str, Any], known: Collection[str], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Returns the entries with the new names of their replicas as keys, without the entries of removed replicas.

    Entries whose names never belonged to a replica are kept, because the checks report them.
    """
    moved: dict[str, Any] = {}
    for name, value in by_name.items():
        if name not in known:
            moved.setdefault(name, value)
        elif name in renamed:
            moved[renamed[name]] = value
    return moved


def _layout_moved(topology: Topology, known: Collection[str], renamed: Mapping[str, str]) -> dict[str, Any] | None:
    nodes = (topology.layout or {}).get("nodes")
    if topology.layout is None or not isinstance(nodes, dict):
        return topology.layout
    return {**topology.layout, "nodes": _moved(nodes, known, renamed)}


def add_replicas(
    topology: Topology, role: Role, count: int = 1, *, gpus: int = 0, pool: int | None = None
) -> tuple[Topology, tuple[str, ...]]:
    """Adds replicas of a role to the pool at position `pool`, by default to the role's last pool or else to a new pool.

    `gpus` is the number of GPUs per replica of a new pool. Returns the topology and the names of the new replicas.
    """
    if count < 1:
        raise UsageError(f"the number of replicas to add is {count}; it must be 1 or more", code="wrong-value")
    if role is Role.CHIEF and (count > 1 or any(other.role is Role.CHIEF for other in topology.pools)):
        raise UsageError("a run has one chief", code="chief-count")
    of_role = [position for position, other in enumerate(topology.pools) if other.role is role]
    pools = list(topology.pools)
    members: list[list[str | None]] = [list(names) for names in members_of(topology)]
    if pool is None and of_role:
        pool = of_role[-1]
    if pool is None:
        pool = len(pools)
        name = free_pool_name(topology, POOL_NAMES[role])
        pools.append(
            _validated(Pool, {"name": name, "role": role.value, "replicas": count} | ({"gpus": gpus} if gpus else {}))
        )
        members.append([])
    first = len(members[pool])
    members[pool] += [None] * count
    after = rebuilt(topology, pools, members)
    return after, tuple(members_of(after)[pool][first:])


def free_pool_name(topology: Topology, wish: str) -> str:
    """Returns the requested name if it is free, otherwise that name with the lowest free number, beginning with 2."""
    taken = {pool.name for pool in topology.pools}
    number = 1
    name = wish
    while name in taken:
        number += 1
        name = f"{wish}-{number}"
    return name


def remove_replicas(topology: Topology, names: Collection[str]) -> Topology:
    """Removes replicas, and pools that have become empty."""
    gone = set(names)
    members = [[name for name in pool if name not in gone] for pool in members_of(topology)]
    return rebuilt(topology, topology.pools, members)


def set_pools(topology: Topology, positions: Collection[int], **changes: Any) -> Topology:
    """Changes keys of the pools at the given positions. Raises UsageError for an invalid value."""
    if "name" in changes:
        _refuse_taken_name(topology, positions, changes["name"])
    pools = list(topology.pools)
    members: list[list[str | None]] = [list(names) for names in members_of(topology)]
    for position in positions:
        pools[position] = changed_block(pools[position], changes)
        if "replicas" in changes or "role" in changes:
            _refuse_chiefs(pools, position)
        if "replicas" in changes:
            count = pools[position].replicas
            members[position] = (members[position] + [None] * count)[:count]
            pools[position] = _without_too_high_minimum(pools[position], topology.pools[position])
    return rebuilt(topology, pools, members)


def _without_too_high_minimum(pool: Pool, before: Pool) -> Pool:
    """Lowers `min_replicas` to the number of replicas if it has become too high.

    A minimum that was already too high before the edit is left unchanged, because the checks report it.
    """
    least = pool.min_replicas
    if least is None or least <= pool.replicas or (before.min_replicas or 0) > before.replicas:
        return pool
    return changed_block(pool, {"min_replicas": pool.replicas})


def _refuse_chiefs(pools: Sequence[Pool], position: int) -> None:
    pool = pools[position]
    another = any(other.role is Role.CHIEF for other in pools if other is not pool)
    if pool.role is Role.CHIEF and (pool.replicas != 1 or another):
        raise UsageError("a run has one chief", code="chief-count")


def _refuse_taken_name(topology: Topology, positions: Collection[int], name: Any) -> None:
    others = {pool.name for position, pool in enumerate(topology.pools) if position not in positions}
    if name in others or len(positions) > 1:
        raise UsageError(f"another pool is called `{name}`; each needs a name of its own", code="duplicate-pool")


def set_strategy(topology: Topology, **changes: Any) -> Topology:
    """Changes keys of the strategy. Raises UsageError for an invalid value."""
    return with_parts(topology, strategy=changed_block(topology.strategy, changes))


def set_program(topology: Topology, **changes: Any) -> Topology:
    """Changes keys of the program. Raises UsageError for an invalid value."""
    return with_parts(topology, program=changed_block(topology.program, changes))


def set_name(topology: Topology, name: str) -> Topology:
    """Changes the run's name. Raises UsageError for an invalid name."""
    if not name.strip():
        raise UsageError("a topology needs a name", code="wrong-value")
    if len(name) > 100:
        raise UsageError("name must be text of at most 100 characters", code="wrong-value")
    return with_parts(topology, name=name)


def set_layout(topology: Topology, layout: Mapping[str, Any] | None) -> Topology:
    """Changes the positions, notes and frames in the editor."""
    return with_parts(topology, layout=dict(layout) if layout else None)


def set_pins(topology: Topology, pins: Mapping[str, str | None]) -> Topology:
    """Pins replicas, or removes a pin if its value is None.

    `manual_placement.pins_for` computes the pins of replicas that the user drops on a host or GPU.
    """
    after = {name: target for name, target in {**topology.pins, **pins}.items() if target is not None}
    return with_parts(topology, pins=after)


def unpin(topology: Topology, names: Collection[str]) -> Topology:
    """Removes the pins of replicas, so that the planner places them."""
    return set_pins(topology, dict.fromkeys(names))
