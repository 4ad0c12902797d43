"""The problems that checks find in short topologies, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.host_facts import HostFacts

WORKERS = "{name: w, role: worker, replicas: 2}"
SERVERS = "{name: s, role: ps, replicas: 2}"
REDUCERS = "{name: r, role: reducer, replicas: 2}"


def problems(
    *pools: str,
    strategy: str = "{}",
    program: str = "{script: a.py}",
    pins: str = "{}",
    hosts: Sequence[HostFacts] | None = None,
    name: str = "x",
) -> list[str]:
    """Returns each problem as `line severity code message`. The pools begin on line 5."""
    lines = "".join(f"  - {pool}\n" for pool in pools)
    text = f"version: 1\nname: {name}\nstrategy: {strategy}\npools:\n{lines}pins: {pins}\nprogram: {program}\n"
    read = topology_from_text(text, "f")
    assert read.problems == ()
    return [problem.printed("f").removeprefix("f:") for problem in read.check(hosts)]
