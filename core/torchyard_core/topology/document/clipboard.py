"""Copies and pastes replicas, within a topology or between two topologies.

The text on the clipboard is JSON: each pool with the number of copied replicas, and a list of their pins. It contains
no names of replicas, since the numbers in these names differ between topologies.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torchyard_core.errors import UsageError
from torchyard_core.problems import no_lines
from torchyard_core.topology.document.edits import free_pool_name, members_of, rebuilt, set_pins
from torchyard_core.topology.model import Pool, Role, Topology
from torchyard_core.topology.placement.pin_syntax import GpuChoice, parse_pin
from torchyard_core.yaml_io.model_validation import validate

FORMAT = "torchyard-replicas"
MAX_CHARACTERS = 8 * 1024 * 1024


@dataclass(frozen=True)
class Copied:
    """Copied replicas of one pool, with a pin or None for each."""

    pool: Pool
    pins: tuple[str | None, ...]


def copy_replicas(topology: Topology, names: Collection[str]) -> str:
    """Returns the replicas as text for the clipboard."""
    wanted = set(names)
    entries = []
    for pool, members in zip(topology.pools, members_of(topology), strict=True):
        chosen = [name for name in members if name in wanted]
        if chosen:
            data = pool.model_dump(mode="json", exclude_unset=True) | {"replicas": len(chosen)}
            if pool.min_replicas is not None:
                data["min_replicas"] = min(pool.min_replicas, len(chosen))
            entries.append({"pool": data, "pins": [topology.pins.get(name) for name in chosen]})
    return json.dumps({FORMAT: 1, "replicas": entries}, indent=1, ensure_ascii=False)


def read_copied(text: str) -> tuple[Copied, ...]:
    """Parses text that `copy_replicas` has returned. Raises UsageError for other text."""
    try:
        data = json.loads(text) if len(text) <= MAX_CHARACTERS else None
        if not isinstance(data, dict) or data.get(FORMAT) != 1:
            raise ValueError
        copied = tuple(_entry(entry) for entry in data["replicas"])
    except (ValueError, KeyError, TypeError, RecursionError):
        copied = ()
    if not copied:
        raise UsageError("the clipboard holds no replicas", code="nothing-to-paste")
    return copied


def _entry(entry: Any) -> Copied:
    pool, problems = validate(Pool, entry["pool"], {}, no_lines)
    pins = tuple(entry["pins"])
    if pool is None or len(pins) != pool.replicas or not all(pin is None or isinstance(pin, str) for pin in pins):
        raise ValueError(problems)
    return Copied(pool, pins)


def paste_replicas(topology: Topology, copied: Sequence[Copied]) -> tuple[Topology, tuple[str, ...]]:
    """Returns the topology with the copied replicas, and the names of these replicas.

    A replica is added to the pool that equals its original pool except for `replicas` and `min_replicas`, or to a new
    pool if there is none. A second chief is not pasted. A pin is dropped if another replica is already pinned to one of
    its GPUs. Raises UsageError if nothing remains to be pasted, or if there would be too many replicas.
    """
    pools = list(topology.pools)
    members: list[list[str | None]] = [list(names) for names in members_of(topology)]
    new: list[tuple[int, int, str | None]] = []
    for part in copied:
        if part.pool.role is Role.CHIEF and any(pool.role is Role.CHIEF for pool in pools):
            continue
        position = next((at for at, pool in enumerate(pools) if _alike(pool, part.pool)), None)
        if position is None:
            position = len(pools)
            so_far = topology.model_copy(update={"pools": tuple(pools)})
            pools.append(part.pool.model_copy(update={"name": free_pool_name(so_far, part.pool.name)}))
            members.append([])
        for pin in part.pins:
            new.append((position, len(members[position]), pin))
            members[position].append(None)
    if not new:
        raise UsageError("a run has one chief", code="chief-count")
    after = rebuilt(topology, pools, members)
    named = members_of(after)
    names = tuple(named[position][number] for position, number, _ in new)
    return _pinned(after, dict(zip(names, (pin for _, _, pin in new), strict=True))), names


def duplicate_replicas(topology: Topology, names: Collection[str]) -> tuple[Topology, tuple[str, ...]]:
    """Returns the topology with copies of the given replicas, and their names. Does not use the clipboard."""
    return paste_replicas(topology, read_copied(copy_replicas(topology, names)))


def _alike(one: Pool, other: Pool) -> bool:
    apart = {"replicas", "min_replicas"}
    return one.model_dump(exclude=apart) == other.model_dump(exclude=apart)


def _pinned(topology: Topology, wanted: dict[str, str | None]) -> Topology:
    taken: set[tuple[str, int]] = set()
    for pinned in topology.pins.values():
        taken.update(_gpus(_choice(pinned)))
    pins: dict[str, str | None] = {}
    for name, text in wanted.items():
        choice = _choice(text) if text is not None else None
        gpus = _gpus(choice)
        if choice is None or taken.intersection(gpus):
            continue
        taken.update(gpus)
        pins[name] = text
    return set_pins(topology, pins)


def _choice(text: str) -> GpuChoice | None:
    try:
        return parse_pin(text)
    except ValueError:
        return None


def _gpus(choice: GpuChoice | None) -> list[tuple[str, int]]:
    return [] if choice is None else [(choice.host, index) for index in choice.indices or ()]
