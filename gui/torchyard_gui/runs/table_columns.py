"""Which columns of the replicas' table are shown: those with something to say, as long as there is room. Pure."""

from __future__ import annotations

from collections.abc import Collection

NAME, STATE, HOST, GPUS, STEP, LOSS, RATE, COMPUTE, EXCHANGE, WAIT, STALE, DROPPED, SKIPPED, USE, MEMORY, PAST = range(
    16
)

WIDTHS = {
    NAME: 114, STATE: 174, HOST: 70, GPUS: 50, STEP: 62, LOSS: 66, RATE: 84, COMPUTE: 78, EXCHANGE: 80, WAIT: 74,
    STALE: 82, DROPPED: 76, SKIPPED: 74, USE: 56, MEMORY: 74, PAST: 60,
}  # fmt: skip
NARROW = {NAME: 120, STATE: 132, HOST: 66, STEP: 56, LOSS: 62, RATE: 80}
"""Where there is no room for all of them: what is longer is elided, and in the tool tip."""
STEP_PARTS = (COMPUTE, EXCHANGE, WAIT, STALE, DROPPED, SKIPPED)
GIVE_WAY = (GPUS, MEMORY, SKIPPED, PAST, USE, COMPUTE, DROPPED, HOST, LOSS)
"""The first to go where there is no room. The side panel tells of a chosen replica what the table leaves out."""


def fitting_columns(room: int, told: Collection[int]) -> dict[int, int]:
    """Columns with their widths in pixels. `told`: the parts of a step that some replica has a value of."""
    shown = {column: width for column, width in WIDTHS.items() if column not in STEP_PARTS or column in told}
    if sum(shown.values()) <= room:
        return shown
    shown = {column: NARROW.get(column, width) for column, width in shown.items()}
    for column in GIVE_WAY:
        if sum(shown.values()) <= room:
            break
        shown.pop(column, None)
    return shown
