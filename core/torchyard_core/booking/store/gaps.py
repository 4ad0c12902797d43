"""What is booked of each GPU, seen by somebody who looks for a long gap.

The database looks for the gaps: of 100,000 bookings it hands over the few beside which something long is free.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from torchyard_core.booking.find_slot import Busy
from torchyard_core.booking.intervals import Interval


def too_busy(connection: Connection, gpus: Sequence[str], since: datetime, until: datetime, length: timedelta) -> Busy:
    """What is booked of these GPUs in that time, and between two bookings what is shorter than `length`."""
    lite = connection.dialect.name == "sqlite"
    firsts_of, gaps_of = (_FIRSTS_IN_SQLITE, _GAPS_IN_SQLITE) if lite else (_FIRSTS, _GAPS)
    bounds: dict[str, Any] = {"gpus": json.dumps(list(gpus)), "since": since, "until": until}
    if lite:
        bounds |= {"since": int(since.timestamp()), "until": int(until.timestamp())}
    asked = {**bounds, "length": int(length.total_seconds()) if lite else length}

    def moment(value: Any) -> datetime:
        return datetime.fromtimestamp(value, UTC) if lite else value

    taken_from: dict[str, Any] = dict(connection.execute(firsts_of, bounds).all())
    busy: dict[str, list[Interval]] = defaultdict(list)
    for gpu, ends, after in connection.execute(gaps_of, asked):
        busy[gpu].append(Interval(moment(taken_from[gpu]), moment(ends)))
        taken_from[gpu] = after
    return dict(busy)


_FIRSTS = text("""
    SELECT gpu, (
        SELECT MIN(starts) FROM booking_gpus
        WHERE live AND booking_gpus.gpu = wanted.gpu AND starts < :until AND ends > :since
    ) FROM json_array_elements_text(CAST(:gpus AS json)) AS wanted (gpu)
""")
_FIRSTS_IN_SQLITE = text("""
    SELECT value, (
        SELECT MIN(starts) FROM booking_gpus WHERE live = 1 AND gpu = value AND starts < :until AND ends > :since
    ) FROM json_each(:gpus)
""")
# Live rows of one GPU never overlap: the next by start is the one after it. One answers for both ends of a gap.
# GPU by GPU, each in the order of its index: all at once, PostgreSQL sorts them on disk.
_GAPS = text("""
    SELECT wanted.gpu, gaps.* FROM json_array_elements_text(CAST(:gpus AS json)) AS wanted (gpu) CROSS JOIN LATERAL (
        SELECT ends, after FROM (
            SELECT ends, LEAD(starts) OVER (ORDER BY starts) AS after
            FROM booking_gpus WHERE live AND gpu = wanted.gpu AND starts < :until AND ends > :since
        ) AS taken WHERE after IS NULL OR after - ends >= :length
    ) AS gaps ORDER BY wanted.gpu, gaps.ends
""")
# SQLite looks each next one up in the index faster than it numbers all of them in a window.
_GAPS_IN_SQLITE = text("""
    SELECT gpu, ends, (
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
