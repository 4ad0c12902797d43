"""All that is drawn of a calendar, put together once for each change of it, not for each repaint."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple

from torchyard_core.booking.idle import Verdict, verdict
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Booking, Slot
from torchyard_gui.bookings import words
from torchyard_gui.bookings.blocks import Block, Usage, UsageSoFar, blocks_of_one, steps, strip_of
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
    return Pictures().of(seen, now, folded, chosen, states, cores)


class Pictures:
    """Pictures of one calendar, each made from the last one: a change of one booking costs what that one costs."""

    def __init__(self) -> None:
        self._usage = UsageSoFar()
        self._of_lanes: tuple[tuple[Slot, ...], frozenset[str]] | None = None
        self._lanes = lanes_of(())
        self._uses: object = None
        self._chosen: Filter | None = None
        self._drawn: dict[str, _Drawn] = {}
        self._folded: dict[str, tuple[tuple[Interval, int], ...]] = {}

    def of(
        self,
        seen: Seen,
        now: datetime,
        folded: frozenset[str],
        chosen: Filter,
        states: Mapping[str, str],
        cores: Mapping[str, int],
    ) -> Picture:
        """As picture_of()."""
        slots = chosen.slots(seen.slots)
        same = self._of_lanes == (slots, folded)
        if not same:
            self._of_lanes, self._lanes = (slots, folded), lanes_of(slots, folded)
        lanes = self._lanes
        usage = self._usage.of(seen.uses, seen.bookings, seen.idle, now)
        same = same and self._uses is seen.uses and self._chosen == chosen
        self._uses, self._chosen = seen.uses, chosen
        before, self._drawn = self._drawn, {}
        for booking in seen.bookings:
            known = before.get(booking.id) if same else None
            if known is None or known.booking is not booking:
                own = [(block, strip_of(block, usage.used)) for block in blocks_of_one(booking, lanes)]
                known = _Drawn(booking, own, not chosen.matches(booking))
            self._drawn[booking.id] = known
        self._fold(seen, before if same else {})
        drawn = sorted((each for one in self._drawn.values() for each in one.blocks), key=_place)
        blocks = tuple(block for block, _ in drawn)
        return Picture(
            lanes=lanes,
            blocks=blocks,
            strips=tuple(strip for _, strip in drawn),
            usage=usage,
            folded=dict(self._folded),
            paled=frozenset(name for name, one in self._drawn.items() if one.is_paled),
            notes=_notes(seen, now),
            states=states,
            asides=_asides(lanes, cores),
            person=seen.person,
            zone=seen.zone,
            now=now,
            by_lane=_by_lane(blocks),
        )

    def _fold(self, seen: Seen, before: Mapping[str, _Drawn]) -> None:
        """What is booked of folded hosts; only of those whose bookings have changed, where there is a last picture."""
        changed = {
            gpu
            for drawn, others in ((before, self._drawn), (self._drawn, before))
            for name, one in drawn.items()
            if others.get(name) is not one
            for gpu in one.booking.gpus
        }
        for row in self._lanes.rows:
            if row.kind == "folded" and (not before or any(slot.id in changed for slot in row.slots)):
                self._folded[row.host] = steps(row.slots, seen.bookings)
        shown = {row.host for row in self._lanes.rows if row.kind == "folded"}
        self._folded = {host: found for host, found in self._folded.items() if host in shown}


class _Drawn(NamedTuple):
    """What a booking is drawn as."""

    booking: Booking
    blocks: list[tuple[Block, Strip]]
    is_paled: bool


def _place(drawn: tuple[Block, Strip]) -> tuple[int, float]:
    return drawn[0].top, drawn[0].start


def rows_changed(before: Picture, after: Picture) -> list[tuple[int, int]] | None:
    """Top and bottom of what is to be drawn again; None where that may be anything."""
    same = ("states", "asides", "notes", "person", "zone")
    if before.lanes is not after.lanes or before.usage.used is not after.usage.used:
        return None
    if before.now is None or after.now is None or _minute(before.now) != _minute(after.now):
        return None  # what is written on blocks tells of the time
    if any(getattr(before, name) != getattr(after, name) for name in same):
        return None
    old, new = {id(block) for block in before.blocks}, {id(block) for block in after.blocks}
    changed = [block for block in before.blocks if id(block) not in new]
    changed += [block for block in after.blocks if id(block) not in old]
    if before.paled ^ after.paled - {block.booking.id for block in changed}:
        return None
    hosts = {row.host for row in after.lanes.rows if before.folded.get(row.host) != after.folded.get(row.host)}
    rows = [(row.top, row.bottom) for row in after.lanes.rows if row.host in hosts and row.kind == "folded"]
    return rows + [(block.top, block.bottom) for block in changed]


def _minute(moment: datetime) -> int:
    return int(moment.timestamp() // 60)


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
