"""Which columns of the replicas' table are shown: those with something to say, as long as there is room. Pure."""

from __future__ import annotations

from collections.abc import Collection

(
    NAME, STATE, HOST, GPUS, STEP, LOSS, RATE, COMPUTE, EXCHANGE, WAIT, STALE, DROPPED, SKIPPED, VERSION, CLIENTS,
    TRAFFIC, USE, MEMORY, PAST,
) = range(19)  # fmt: skip

WIDTHS = {
    NAME: 114, STATE: 174, HOST: 70, GPUS: 50, STEP: 62, LOSS: 66, RATE: 84, COMPUTE: 78, EXCHANGE: 80, WAIT: 74,
    STALE: 82, DROPPED: 76, SKIPPED: 74, VERSION: 72, CLIENTS: 74, TRAFFIC: 86, USE: 56, MEMORY: 74, PAST: 60,
}  # fmt: skip
NARROW = {NAME: 120, STATE: 132, HOST: 66, STEP: 56, LOSS: 62, RATE: 80}
"""Where there is no room for all of them: what is longer is elided, and in the tool tip."""
WHERE_TOLD = (COMPUTE, EXCHANGE, WAIT, STALE, DROPPED, SKIPPED, VERSION, CLIENTS, TRAFFIC)
GIVE_WAY = (GPUS, MEMORY, SKIPPED, CLIENTS, VERSION, PAST, USE, COMPUTE, DROPPED, TRAFFIC, HOST, LOSS)
"""The first to go where there is no room. The side panel tells of a chosen replica what the table leaves out."""


def fitting_columns(room: int, told: Collection[int]) -> dict[int, int]:
    """Columns with their widths in pixels. `told`: those of WHERE_TOLD that some replica has a value of."""
    shown = {column: width for column, width in WIDTHS.items() if column not in WHERE_TOLD or column in told}
    if sum(shown.values()) <= room:
        return shown
    shown = {column: NARROW.get(column, width) for column, width in shown.items()}
    for column in GIVE_WAY:
        if sum(shown.values()) <= room:
            break
        shown.pop(column, None)
    return shown
