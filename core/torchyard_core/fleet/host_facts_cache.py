"""Cache of host facts, stored next to the fleet file, and conversion of the facts for the planner.

An entry is ignored if it is unreadable, or if the host's address has changed since the entry was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchyard_core.atomic_write import write_atomically
from torchyard_core.fleet.inventory import PRIVATE_MODE, Host
from torchyard_core.topology.host_facts import Gpu, HostFacts

MAX_BYTES = 64 * 1024 * 1024

Facts = Mapping[str, Any]
"""An agent's answer to `host.facts`. A cached answer also has the host's `address` and `checked_at` (RFC 3339, UTC)."""


def load_facts(path: Path) -> dict[str, Facts]:
    """Returns the cached facts by host. Returns an empty dictionary if the file cannot be read."""
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {name: facts for name, facts in data.items() if isinstance(facts, dict)}


def save_facts(path: Path, found: Iterable[tuple[Host, Facts]], now: datetime | None = None) -> None:
    """Replaces the cached facts of the given hosts. Raises FileProblem if the file cannot be written."""
    known = load_facts(path)
    for host, facts in found:
        known[host.name] = stamped(host, facts, now)
    write_atomically(path, json.dumps(known, indent=1, ensure_ascii=False) + "\n", PRIVATE_MODE)


def stamped(host: Host, facts: Facts, now: datetime | None = None) -> Facts:
    """Returns the facts in their cached form, with the host's address and the time (by default now)."""
    checked_at = (now or datetime.now(UTC)).isoformat(timespec="seconds").replace("+00:00", "Z")
    kept = {name: fact for name, fact in facts.items() if name != "bookings"}  # Bookings change too often to be cached.
    return {**kept, "address": _address(host), "checked_at": checked_at}


def forget_facts(path: Path, name: str) -> None:
    """Removes a host from the cache. Raises FileProblem if the file cannot be written."""
    known = load_facts(path)
    if known.pop(name, None) is not None:
        write_atomically(path, json.dumps(known, indent=1, ensure_ascii=False) + "\n", PRIVATE_MODE)


def rename_facts(path: Path, before: str, after: str) -> None:
    """Moves the cached facts of a renamed host. Raises FileProblem if the file cannot be written."""
    known = load_facts(path)
    if (facts := known.pop(before, None)) is not None:
        known[after] = facts
        write_atomically(path, json.dumps(known, indent=1, ensure_ascii=False) + "\n", PRIVATE_MODE)


def planner_hosts(hosts: Sequence[Host], known: Mapping[str, Facts]) -> tuple[HostFacts, ...]:
    """Returns the hosts for the planner from the fleet file and the cached facts. The use of their GPUs is unknown."""
    return tuple(_planner_host(host, known.get(host.name)) for host in hosts)


def _planner_host(host: Host, facts: Facts | None) -> HostFacts:
    if facts is None or facts.get("address") != _address(host):
        facts = {}
    cpus, memory = facts.get("cpus"), facts.get("memory_gb")
    python = facts.get("python")
    torch = facts.get("torch")
    return HostFacts(
        name=host.name,
        address=_address(host),
        labels=host.labels,
        cpus=cpus if isinstance(cpus, int) else None,
        memory_gb=float(memory) if isinstance(memory, (int, float)) else None,
        gpus=_gpus(facts.get("gpus")),
        checked=bool(facts),
        use_known=False,
        port_range=host.port_range,
        data_address=host.data_address,
        interface=host.interface,
        python=host.python,
        found_python=_text(python.get("path")) if isinstance(python, dict) else None,
        torch=_text(torch),
    )


def _address(host: Host) -> str | None:
    return None if host.local else host.address or host.name


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _gpus(found: Any) -> tuple[Gpu, ...]:
    try:
        return tuple(
            Gpu(int(gpu["index"]), str(gpu["uuid"]), str(gpu["name"]), int(gpu["memory_mb"])) for gpu in found or []
        )
    except (TypeError, KeyError, ValueError, OverflowError):
        return ()
