"""All that is drawn of a calendar, put together once for each change of it, not for each repaint."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter

from torchyard_core.booking.idle import Verdict, verdict
from torchyard_core.booking.intervals import Interval
from torchyard_gui.bookings import words
from torchyard_gui.bookings.blocks import Block, Usage, blocks_of, steps, strip_of, usage_of
from torchyard_gui.bookings.filters import Filter
from torchyard_gui.bookings.lanes import LANE, Lanes, lanes_of, short_model
from torchyard_gui.bridge.bookings_model import Seen

Strip = tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Picture:
    """`strips` go with `blocks` by number; `paled` are bookings that the filter does not mean."""

    lanes: Lanes = field(default_factory=lambda: lanes_of(()))
    blocks: tuple[Block, ...] = ()
    strips: tuple[Strip, ...] = ()
    usage: Usage = field(default_factory=lambda: Usage({}, {}, {}))
    folded: Mapping[str, tuple[tuple[Interval, int], ...]] = field(default_factory=dict)
    paled: frozenset[str] = frozenset()
    notes: Mapping[str, str] = field(default_factory=dict)
    """By booking: what agents say of its idleness."""
    states: Mapping[str, str] = field(default_factory=dict)
    """By host: the mark of its state."""
    asides: Mapping[str, str] = field(default_factory=dict)
    """By host: its GPUs' model, or its cores."""
    person: str = ""
    zone: str = "UTC"
    now: datetime | None = None
    by_lane: Mapping[int, tuple[Block, ...]] = field(default_factory=dict)
    """The blocks on each lane, by the lane's top, by start."""

    def following(self, block: Block) -> tuple[Block, ...]:
        """The next block on the block's first lane, if there is one."""
        lane = self.by_lane.get(block.top, ())
        number = bisect_left(lane, block.end, key=_start)
        return lane[number : number + 1]


_start = attrgetter("start")


def _by_lane(blocks: tuple[Block, ...]) -> dict[int, tuple[Block, ...]]:
    lanes: dict[int, list[Block]] = {}
    for block in blocks:
        for top in range(block.top, block.bottom, LANE):
            lanes.setdefault(top, []).append(block)
    return {top: tuple(sorted(found, key=_start)) for top, found in lanes.items()}


def picture_of(
    seen: Seen,
    now: datetime,
    folded: frozenset[str],
    chosen: Filter,
    states: Mapping[str, str],
    cores: Mapping[str, int],
) -> Picture:
    """`states` and `cores` are the fleet's, by host."""
    lanes = lanes_of(chosen.slots(seen.slots), folded)
    blocks = blocks_of(seen.bookings, lanes)
    usage = usage_of(seen.uses, seen.bookings, seen.idle, now)
    paled = frozenset(booking.id for booking in seen.bookings if not chosen.matches(booking))
    return Picture(
        lanes=lanes,
        blocks=blocks,
        strips=tuple(strip_of(block, usage.used) for block in blocks),
        usage=usage,
        folded={row.host: steps(row.slots, seen.bookings) for row in lanes.rows if row.kind == "folded"},
        paled=paled,
        notes=_notes(seen, now),
        states=states,
        asides=_asides(lanes, cores),
        person=seen.person,
        zone=seen.zone,
        now=now,
        by_lane=_by_lane(blocks),
    )


def mark_of(state: str) -> str:
    """A host's state, by the names of `paint_state`."""
    return {"ready": "ok", "degraded": "warning", "unknown": "unknown"}.get(state, "failed")


def _notes(seen: Seen, now: datetime) -> dict[str, str]:
    notes = {}
    for evidence in seen.idle:
        booking = next((one for one in seen.bookings if one.id == evidence.booking_id), None)
        if booking is None:
            continue
        found = verdict(booking, seen.idle, seen.rules, now)
        if found.verdict is Verdict.FINE or found.frees_at is None:
            continue
        when = words.clock(found.frees_at, seen.zone)
        if found.verdict is Verdict.WARN:
            idle = words.length((now - max(evidence.idle_since, booking.start)).total_seconds())
            notes[booking.id] = words.translate("Bookings", "idle {time}, frees {when}").format(time=idle, when=when)
        else:
            notes[booking.id] = words.translate("Bookings", "would have freed {when}").format(when=when)
    return notes


def _asides(lanes: Lanes, cores: Mapping[str, int]) -> dict[str, str]:
    asides = {}
    for row in lanes.rows:
        if row.is_lane:
            continue
        models = {short_model(slot) for slot in row.slots if not slot.is_cpu}
        if len(models) == 1:
            asides[row.host] = models.pop()
        elif models:
            asides[row.host] = words.slots_count(slot.id for slot in row.slots)
        elif row.host in cores:
            asides[row.host] = words.translate("Bookings", "{count} cores").format(count=cores[row.host])
    return asides
