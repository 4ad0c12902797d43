"""Queries for long gaps between the bookings of each GPU.

The database finds the gaps. It returns one row for each busy period between two long gaps, instead of one row for each
booking.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.search.slot_search import Busy
from torchyard_core.booking.store.tables import Junk, moment_of


def busy_intervals(
    connection: Connection, gpus: Sequence[str], since: datetime, until: datetime, length: timedelta
) -> Busy:
    """Returns the busy times of the GPUs. Gaps shorter than `length` count as busy."""
    is_sqlite = connection.dialect.name == "sqlite"
    parameters: dict[str, Any] = {"gpus": json.dumps(list(gpus)), "since": since, "until": until, "length": length}
    if is_sqlite:
        seconds = {"since": int(since.timestamp()), "until": int(until.timestamp())}
        parameters |= {**seconds, "length": int(length.total_seconds())}

    def moment(value: Any) -> datetime | Junk:
        return moment_of(value) if is_sqlite else value

    taken_from: dict[str, Any] = {}
    if is_sqlite:
        taken_from |= dict(connection.execute(_FIRSTS_IN_SQLITE, parameters).all())
    busy: dict[str, list[Interval]] = defaultdict(list)
    for gpu, first, ends, after in connection.execute(_GAPS_IN_SQLITE if is_sqlite else _GAPS, parameters):
        begin, end = moment(taken_from.get(gpu, first)), moment(ends)
        if not isinstance(begin, Junk) and not isinstance(end, Junk):  # A row with an invalid time is skipped.
            busy[gpu].append(Interval(begin, end))
        taken_from[gpu] = after
    return dict(busy)


# In SQLite, all statements of a transaction see the same state of the bookings. In PostgreSQL (READ COMMITTED) each
# statement sees the state at its own time, so a single statement has to read all data.
_FIRSTS_IN_SQLITE = text("""
    SELECT value, (
        SELECT MIN(starts) FROM booking_gpus WHERE live = 1 AND gpu = value AND starts < :until AND ends > :since
    ) FROM json_each(:gpus)
""")
# Live bookings of one GPU never overlap. The next row by start is therefore the next booking, and one result row can
# hold both ends of a gap. The lateral join visits one GPU after another in the order of the index; without the join,
# PostgreSQL sorts all rows on disk.
_GAPS = text("""
    SELECT wanted.gpu, gaps.* FROM json_array_elements_text(CAST(:gpus AS json)) AS wanted (gpu) CROSS JOIN LATERAL (
        SELECT first, ends, after FROM (
            SELECT ends, LEAD(starts) OVER by_start AS after, FIRST_VALUE(starts) OVER by_start AS first
            FROM booking_gpus WHERE live AND gpu = wanted.gpu AND starts < :until AND ends > :since
            WINDOW by_start AS (ORDER BY starts)
        ) AS taken WHERE after IS NULL OR after - ends >= :length
    ) AS gaps ORDER BY wanted.gpu, gaps.ends
""")
# In SQLite, finding each next row with the index is faster than a window function.
_GAPS_IN_SQLITE = text("""
    SELECT gpu, NULL, ends, (
        SELECT MIN(starts) FROM booking_gpus AS next
        WHERE next.live = 1 AND next.gpu = taken.gpu AND next.starts >= taken.ends AND next.starts < :until
    ) FROM booking_gpus AS taken
    WHERE live = 1 AND gpu IN (SELECT value FROM json_each(:gpus)) AND starts < :until AND ends > :since
    AND NOT EXISTS (
        SELECT 1 FROM booking_gpus AS soon
        WHERE soon.live = 1 AND soon.gpu = taken.gpu
        AND soon.starts >= taken.ends AND soon.starts < MIN(taken.ends + :length, :until)
    ) ORDER BY gpu, ends
""")
