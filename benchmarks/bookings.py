"""Benchmark of a calendar with 100,000 bookings of 256 GPUs, in SQLite and in a separate PostgreSQL server.

Promises at p95: the search for conflicts together with the insert takes at most 5 ms in SQLite and 10 ms in PostgreSQL;
finding a slot takes at most 200 ms, even if no slot satisfies the request and every gap is examined. PostgreSQL runs
with fsync.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from tests.core.booking.cluster import cluster

from benchmarks.harness import Promise, record, show, timed
from torchyard_core.booking.model import Booking, Draft, Slot, State
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.slot_search import Wish
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.booking.store.booking_writer import insert_rows
from torchyard_core.booking.store.database_engine import transaction

HOSTS, GPUS_OF_EACH = 32, 8
BOOKINGS = 100_000
LONG, APART = timedelta(hours=4), timedelta(hours=1)
INSERTS, SEARCHES = 400, 20
LIMITS_MS = {"SQLite": 5.0, "PostgreSQL": 10.0}
FIND_LIMIT_MS = 200.0
SLOTS = [
    Slot(f"GPU-{host:02}-{number}", f"gpu-{host:02}", number, "NVIDIA A100", 81920)
    for host in range(HOSTS)
    for number in range(GPUS_OF_EACH)
]


def fill(store: BookingStore, now: datetime) -> None:
    """Fills a calendar in which every GPU is booked for 4 of 5 hours during 81 days."""
    store.remember_slots(SLOTS)
    made = []
    for number in range(BOOKINGS):
        slot, turn = SLOTS[number % len(SLOTS)], number // len(SLOTS)
        start = now + timedelta(days=1) + turn * (LONG + APART)
        fields = (f"b{number}", store.person, f"run {number}", "", (slot.id,), start, start + LONG)
        made.append(Booking(*fields, "UTC", State.BOOKED, now, now))
    for first in range(0, BOOKINGS, 5000):
        with transaction(store.session.engine, writes=True) as connection:
            insert_rows(connection, made[first : first + 5000])
    with store.session.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")


def measure(store: BookingStore) -> dict[str, list[float]]:
    """Returns the durations of each operation in milliseconds."""
    chance = random.Random(1)
    now = store.now()
    store.set_rules(Rules(longest_h=None, furthest_days=None, quota_gpu_hours=None))
    gaps = chance.sample(range(1, BOOKINGS // len(SLOTS)), INSERTS // 2)
    inserts: list[float] = []
    for number in range(INSERTS):
        first = chance.randrange(HOSTS) * GPUS_OF_EACH + chance.randrange(GPUS_OF_EACH - 1)
        group = tuple(slot.id for slot in SLOTS[first : first + 1 + number % 2])
        # Each new booking fits between two existing ones. Two consecutive requests fall into the same gap.
        gap_start = now + timedelta(days=1) + gaps[number // 2] * (LONG + APART) - APART
        start = gap_start + timedelta(minutes=10 + 20 * (number % 2))
        draft = Draft("new", group, start, start + APART / 3, "UTC")
        inserts.append(timed(partial(store.book, draft)) * 1000)
    wish = Wish(4, timedelta(minutes=20), now + timedelta(days=2), min_memory_gb=40)
    nowhere = replace(wish, length=timedelta(hours=6), latest=now + timedelta(days=80))
    return {
        "book, ms": inserts,
        "find a slot, ms": [timed(lambda: store.find(wish)) * 1000 for _ in range(SEARCHES)],
        "find none in 80 days, ms": [timed(lambda: store.find(nowhere)) * 1000 for _ in range(SEARCHES)],
    }


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def main() -> list[Promise]:
    """Measures both stores, one after the other, in one process."""
    found: dict[str, list[float]] = {}
    promises: list[Promise] = []
    with tempfile.TemporaryDirectory() as folder, cluster(fsync=True) as server:
        stores = {
            "SQLite": open_store(f"sqlite:///{Path(folder) / 'bookings.sqlite3'}", "kim"),
            "PostgreSQL": open_store(server.url("owner", "team"), "owner"),
        }
        for kind, store in stores.items():
            with closing(store):
                fill(store, datetime.now(UTC).replace(microsecond=0))
                acts = measure(store)
            found |= {f"{kind}: {act}": values for act, values in acts.items()}
            booked, some, none = (p95(values) for values in acts.values())
            promises.append(Promise(f"{kind}: look for clashes and insert, p95", booked, LIMITS_MS[kind], "ms"))
            promises.append(Promise(f"{kind}: find a slot, p95", max(some, none), FIND_LIMIT_MS, "ms"))
    show("100,000 bookings over 256 GPUs", found, "ms")
    record("bookings", found, promises)
    return promises


if __name__ == "__main__":
    main()
