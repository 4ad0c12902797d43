"""Races of 20 processes on one calendar: 50 rounds of each kind, in SQLite and in PostgreSQL.

The result is the number of violated invariants, which must be 0. `TORCHYARD_SEED=N python -m benchmarks races` repeats
the requests of an earlier run.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from tests.attacks.races import RACES, Place, run
from tests.core.booking.cluster import cluster

from benchmarks.harness import Promise, record

CLIENTS, ROUNDS = 20, 50
SHOWN = 3
"""Largest number of a race's violations that are printed."""


def main() -> list[Promise]:
    seed = int(os.environ.get("TORCHYARD_SEED", "") or secrets.randbelow(1 << 32))
    print(f"\n{CLIENTS} clients, {ROUNDS} rounds of each race, seed {seed}")
    figures: dict[str, list[float]] = {}
    promises: list[Promise] = []
    with tempfile.TemporaryDirectory() as folder, cluster() as server:
        for race in RACES:
            places = {
                "SQLite": Place(Path(folder) / f"{race.__name__}.sqlite3"),
                "PostgreSQL": Place(server=server, database=server.empty()),
            }
            for kind, place in places.items():
                raced = run(place, race(), CLIENTS, ROUNDS, seed)
                name = f"{race.__name__} in {kind}"
                ends = ", ".join(f"{end} {count}" for end, count in sorted(raced.ends.items()))
                print(f"  {name:28} {len(raced.violations):4} violations; {ends}")
                for why in raced.violations[:SHOWN]:
                    print(f"    {why}")
                figures[name] = [float(len(raced.violations))]
                promises.append(Promise(f"races: {name}", len(raced.violations), 0, "violations"))
    record("races", figures, promises)
    return promises


if __name__ == "__main__":
    main()
