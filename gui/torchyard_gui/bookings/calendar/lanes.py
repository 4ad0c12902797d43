"""Lanes down: one a GPU below its host, or the host alone where it is folded. No Qt."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import groupby

from torchyard_core.booking.model import Slot
from torchyard_gui.theme.tokens import METRICS

LANE, HOST, FOLDED = METRICS.lane, METRICS.host_row, METRICS.host_folded
SHOWN_AT_FIRST = 64
"""Where a fleet has more lanes than this, its hosts are folded at first."""


@dataclass(frozen=True)
class Row:
    """A host's heading (`slots` are its own), a folded host, or one lane (of one slot)."""

    kind: str
    host: str
    slots: tuple[Slot, ...]
    top: int
    height: int

    @property
    def bottom(self) -> int:
        return self.top + self.height

    @property
    def is_lane(self) -> bool:
        return self.kind == "lane"


@dataclass(frozen=True)
class Lanes:
    """All rows, from the top down; `lane_of` a slot that has a lane of its own now."""

    rows: tuple[Row, ...]
    height: int
    lane_of: dict[str, Row] = field(default_factory=dict)
    lanes: tuple[Row, ...] = ()
    _tops: tuple[int, ...] = ()

    def row_at(self, y: float) -> Row | None:
        """The row at a height; None below the last."""
        if not self.rows or y < 0 or y >= self.height:
            return None
        return self.rows[bisect_right(self._tops, y) - 1]

    def between(self, top: float, bottom: float) -> tuple[Row, ...]:
        """The rows that a strip touches."""
        first = max(bisect_right(self._tops, top) - 1, 0)
        return tuple(row for row in self.rows[first : bisect_right(self._tops, bottom)] if row.bottom > top)

    def lane_at(self, y: float) -> Row | None:
        """The lane at a height: of a heading the first below it, below all the last."""
        if not self.lanes:
            return None
        row = self.row_at(min(max(y, 0), self.height - 1))
        if row is None or row.is_lane:
            return row
        return next((lane for lane in self.lanes if lane.top >= row.top), self.lanes[-1])

    def number_of(self, slot_id: str) -> int:
        """Which lane it is, counted from the top; -1 where it has none."""
        row = self.lane_of.get(slot_id)
        return -1 if row is None else self.lanes.index(row)


def lanes_of(slots: Iterable[Slot], folded: Collection[str] = ()) -> Lanes:
    """The rows of these slots, by host and number."""
    rows: list[Row] = []
    y = 0
    for host, of_host in groupby(sorted(slots, key=_order), key=lambda slot: slot.host):
        own = tuple(of_host)
        kind, height = ("folded", FOLDED) if host in folded else ("host", HOST)
        rows.append(Row(kind, host, own, y, height))
        y += height
        if kind == "host":
            for slot in own:
                rows.append(Row("lane", host, (slot,), y, LANE))
                y += LANE
    lanes = tuple(row for row in rows if row.is_lane)
    return Lanes(tuple(rows), y, {row.slots[0].id: row for row in lanes}, lanes, tuple(row.top for row in rows))


def _order(slot: Slot) -> tuple[bool, str, int, str]:
    """Hosts without GPUs come last."""
    return (slot.is_cpu, *slot.sort_key())


def folded_at_first(slots: Iterable[Slot], keep_open: Collection[str] = ()) -> set[str]:
    """Hosts without GPUs, where others have some; of a large fleet all, but those that are named."""
    known = list(slots)
    with_gpu = {slot.host for slot in known if not slot.is_cpu}
    if len(known) <= SHOWN_AT_FIRST:
        return {slot.host for slot in known} - with_gpu if with_gpu else set()
    lanes = 0
    folded = {slot.host for slot in known}
    for host in sorted(set(keep_open)):
        lanes += sum(slot.host == host for slot in known)
        if lanes <= SHOWN_AT_FIRST:
            folded.discard(host)
    return folded


def short_model(slot: Slot) -> str:
    """`H100 80 GB` of `NVIDIA H100 80GB HBM3`: what tells one card from another in little room."""
    if slot.is_cpu:
        return ""
    name = re.sub(r"(?i)\b(nvidia|geforce|amd|instinct|tesla|quadro)\b", "", slot.model)
    name = re.sub(r"(?i)[- ]?(\d+ ?GB).*$", "", name)
    name = re.sub(r"(?i)[- ](sxm\d*|pcie|hbm\d*e?)\b.*$", "", name).strip(" -")
    # Vendors count memory in GiB, less what the card keeps for itself.
    gigabytes = round(slot.memory_mb / 1024) if slot.memory_mb else 0
    return f"{name} {gigabytes} GB".strip() if gigabytes else name
