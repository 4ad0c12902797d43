"""Benchmark of DiLoCo with parameter servers: a worker group at a quarter of the speed does not slow the others down.

    .venv/bin/python -m benchmarks slow_group

There are four groups and two servers, which are threads of one process and communicate over loopback, with `quorum: 3`
and a model of 4 MB. A group sleeps instead of computing, so that a busy machine hardly affects the measurement. The
value is the number of samples per second of all groups, divided by the sum of their own speeds without any exchange.
"""

from __future__ import annotations

from tests.roles.join_stores import serve_in_a_process
from tests.roles.strategies.diloco.outer_servers import share_of_own_speeds

from benchmarks.harness import Promise, show

ELEMENTS = 1_000_000
ROUND_S = 2.0
"""Seconds for which a fast group computes between two averages."""
SECONDS = 60.0


def main() -> list[Promise]:
    store = serve_in_a_process()
    try:
        share = share_of_own_speeds(store, ROUND_S, SECONDS, ELEMENTS)
    finally:
        store.end()
    show("samples per second with one group of four at a quarter of the speed, quorum 3", {"diloco": [share]}, "of own")
    return [Promise("loss by a slow group, quorum 3 of 4", 1 - share, 0.05, "of the groups' own speeds")]
