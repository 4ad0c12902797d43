"""Rows of the calendar: for each host, a heading with one lane per slot, or a single row if the host is folded.

Does not depend on Qt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import groupby

from torchyard_core.booking.model import Slot
from torchyard_core.gpu_names import model_with_memory
from torchyard_gui.theme.tokens import METRICS

LANE, HOST, FOLDED = METRICS.lane, METRICS.host_row, METRICS.host_folded
SHOWN_AT_FIRST = 64
"""Up to this number of slots, no host with GPUs is folded initially."""


@dataclass(frozen=True)
class Row:
    """A row of the calendar: the heading of a host, a folded host, or a lane. `slots` contains the slots of this host
    or lane.
    """

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
    """All rows from top to bottom. `lane_of` contains the lane of each slot by the slot's ID, except for slots of
    folded hosts.
    """

    rows: tuple[Row, ...]
    height: int
    lane_of: dict[str, Row] = field(default_factory=dict)
    lanes: tuple[Row, ...] = ()
    _tops: tuple[int, ...] = ()

    def row_at(self, y: float) -> Row | None:
        """Returns the row at a vertical position in pixels, or None outside the rows."""
        if not self.rows or y < 0 or y >= self.height:
            return None
        return self.rows[bisect_right(self._tops, y) - 1]

    def between(self, top: float, bottom: float) -> tuple[Row, ...]:
        """Returns the rows that are at least partly between two vertical positions in pixels."""
        first = max(bisect_right(self._tops, top) - 1, 0)
        return tuple(row for row in self.rows[first : bisect_right(self._tops, bottom)] if row.bottom > top)

    def lane_at(self, y: float) -> Row | None:
        """Returns the lane at a vertical position in pixels, or None if there are no lanes.

        For a position on a heading, on a folded host or above all rows, returns the next lane below the position or, if
        there is none, the last lane. For a position below all rows, returns the last lane.
        """
        if not self.lanes:
            return None
        row = self.row_at(min(max(y, 0), self.height - 1))
        if row is None or row.is_lane:
            return row
        return next((lane for lane in self.lanes if lane.top >= row.top), self.lanes[-1])

    def number_of(self, slot_id: str) -> int:
        """Returns the index of a slot's lane, or -1 if the slot has no lane."""
        row = self.lane_of.get(slot_id)
        return -1 if row is None else self.lanes.index(row)


def lanes_of(slots: Iterable[Slot], folded: Collection[str] = ()) -> Lanes:
    """Lays out the rows of slots, sorted by host and index. Hosts without GPUs come last."""
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
    """Returns the sort key of a slot. Hosts without GPUs are sorted last."""
    return (slot.is_cpu, *slot.sort_key())


def initially_folded(slots: Iterable[Slot], keep_open: Collection[str] = ()) -> set[str]:
    """Returns the hosts that are folded initially.

    With at most `SHOWN_AT_FIRST` slots, the hosts without GPUs are folded, provided that another host has GPUs. With
    more slots, all hosts are folded except the hosts in `keep_open`, up to a total of `SHOWN_AT_FIRST` lanes.
    """
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


def gpu_model(slot: Slot) -> str:
    """Returns the short name of a slot's GPU model with its memory, such as `H100 80 GB`; "" for a slot of CPUs."""
    return "" if slot.is_cpu else model_with_memory(slot.model, slot.memory_mb)


def gpu_models(slots: Iterable[Slot]) -> list[str]:
    """Returns the short names of the GPU models, sorted."""
    return sorted({gpu_model(slot) for slot in slots if not slot.is_cpu})
