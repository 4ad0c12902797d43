"""The display list of a calendar: all values that are drawn. The values are computed once per change rather than once
per repaint.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter

from torchyard_core.booking.intervals import Interval, merge
from torchyard_core.booking.model import Booking, Slot
from torchyard_core.booking.rules.idle_release import Verdict, verdict
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.calendar.blocks import BAR, Block, Usage, UsageBuilder, blocks_of, steps, strip_of
from torchyard_gui.bookings.calendar.lanes import LANE, Lanes, gpu_model, lanes_of
from torchyard_gui.bookings.filters import Filter
from torchyard_gui.bridge.bookings_model import CalendarState, UseNow

Strip = tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class DisplayList:
    """The values to draw.

    `strips` has one entry for each entry of `blocks`. `dimmed` contains the IDs of the bookings that do not match the
    filter.
    """

    lanes: Lanes = field(default_factory=lambda: lanes_of(()))
    blocks: tuple[Block, ...] = ()
    strips: tuple[Strip, ...] = ()
    usage: Usage = field(default_factory=lambda: Usage({}, {}, {}))
    folded: Mapping[str, tuple[tuple[Interval, int], ...]] = field(default_factory=dict)
    dimmed: frozenset[str] = frozenset()
    notes: Mapping[str, str] = field(default_factory=dict)
    """Notes about the idle time of bookings, by booking ID."""
    states: Mapping[str, str] = field(default_factory=dict)
    """The state mark of each host."""
    host_notes: Mapping[str, str] = field(default_factory=dict)
    """A note about each host: its GPU model, the number of GPUs if there are several models, or the number of CPU
    cores.
    """
    person: str = ""
    zone: str = "UTC"
    now: datetime | None = None
    used_now: Mapping[str, UseNow] = field(default_factory=dict)
    """The current use without a booking, by slot."""
    by_lane: Mapping[int, tuple[Block, ...]] = field(default_factory=dict)
    """The blocks of each lane, sorted by start. The key is the vertical position of the lane."""

    def has_bar(self, block: Block) -> bool:
        """Returns whether a bar is drawn over a block."""
        bottoms = () if block.is_bar else range(block.top + LANE, block.bottom + 1, LANE)
        bars = (one for bottom in bottoms for one in self.by_lane.get(bottom - BAR, ()))
        return any(one.start < block.end and block.start < one.end for one in bars)

    def following(self, block: Block) -> tuple[Block, ...]:
        """Returns the next block on the block's first lane, or an empty tuple if there is none."""
        lane = self.by_lane.get(block.top, ())
        number = bisect_left(lane, block.end, key=_start)
        return lane[number : number + 1]


_start = attrgetter("start")
_start_and_id = attrgetter("start", "booking.id")


class DisplayListBuilder:
    """Builds display lists incrementally: if one booking changes, the blocks of all other bookings are reused."""

    def __init__(self) -> None:
        self._usage = UsageBuilder()
        self._bars: Collection[str] = ()
        self._bookings: tuple[Booking, ...] = ()
        self._of_lanes: tuple[tuple[Slot, ...], frozenset[str]] | None = None
        self._lanes = lanes_of(())
        self._uses: object = None
        self._chosen: Filter | None = None
        self._own: dict[str, list[Block]] = {}
        """The blocks of each booking, by booking ID."""
        self._blocks: list[tuple[Block, Strip]] = []
        """All blocks, in drawing order."""
        self._by_lane: dict[int, tuple[Block, ...]] = {}
        self._paled: set[str] = set()
        self._folded: dict[str, tuple[tuple[Interval, int], ...]] = {}
        self._host_notes_key: tuple[Lanes, Mapping[str, int]] | None = None
        self._host_notes: dict[str, str] = {}

    def of(
        self,
        seen: CalendarState,
        now: datetime,
        folded: frozenset[str],
        chosen: Filter,
        states: Mapping[str, str],
        cores: Mapping[str, int],
        used_now: Mapping[str, UseNow] | None = None,
        bars: Collection[str] = (),
    ) -> DisplayList:
        """Returns the display list for the current calendar.

        Args:
            states: State mark of each host of the fleet.
            cores: Number of CPU cores of each host of the fleet.
            used_now: Slots that are in use without a booking at this moment.
            bars: IDs of the jobs and reservations that are drawn as bars. A job or reservation that becomes a bar must
                be a new object, because changes are detected by the identity of objects.
        """
        self._bars = bars
        slots = chosen.slots(seen.slots)
        same = self._of_lanes == (slots, folded)
        if not same:
            self._of_lanes, self._lanes = (slots, folded), lanes_of(slots, folded)
        lanes = self._lanes
        come, gone = _difference(self._bookings, seen.bookings)
        self._bookings = seen.bookings
        usage = self._usage.of(seen.uses, come, gone, seen.idle, now)
        same = same and self._uses is seen.uses and self._chosen == chosen
        self._uses, self._chosen = seen.uses, chosen
        if same:
            self._draw(come, gone, usage, chosen)
        else:
            self._own, self._blocks, self._by_lane, self._paled, self._folded = {}, [], {}, set(), {}
            self._draw(seen.bookings, (), usage, chosen)
        self._fold({gpu for booking in (*come, *gone) for gpu in booking.gpus})
        if self._host_notes_key != (lanes, cores):
            self._host_notes_key, self._host_notes = (lanes, cores), _make_host_notes(lanes, cores)
        return DisplayList(
            lanes=lanes,
            blocks=tuple(block for block, _ in self._blocks),
            strips=tuple(strip for _, strip in self._blocks),
            usage=usage,
            folded=dict(self._folded),
            dimmed=frozenset(self._paled),
            notes=_notes(seen, now),
            states=states,
            host_notes=self._host_notes,
            person=seen.person,
            zone=seen.zone,
            now=now,
            used_now=used_now or {},
            by_lane=dict(self._by_lane),
        )

    def _draw(self, come: Sequence[Booking], gone: Sequence[Booking], usage: Usage, chosen: Filter) -> None:
        old = [block for booking in gone for block in self._own.pop(booking.id, ())]
        self._paled.difference_update(booking.id for booking in gone)
        new: list[tuple[Block, Strip]] = []
        for booking in come:
            blocks = blocks_of(booking, self._lanes, as_bars=booking.id in self._bars)
            self._own[booking.id] = blocks
            new += [(block, strip_of(block, usage.used)) for block in blocks]
            if not chosen.matches(booking):
                self._paled.add(booking.id)
        left = {id(block) for block in old}
        self._blocks = [one for one in self._blocks if id(one[0]) not in left]
        if self._blocks:
            for one in new:
                insort(self._blocks, one, key=_place)
        else:
            self._blocks = sorted(new, key=_place)
        on: dict[int, list[Block]] = {top: [] for block in old for top in _tops(block)}
        for block, _ in new:
            for top in _tops(block):
                on.setdefault(top, []).append(block)
        for top, blocks in on.items():
            blocks += [block for block in self._by_lane.get(top, ()) if id(block) not in left]
            self._by_lane[top] = tuple(sorted(blocks, key=_start_and_id))
            if not blocks:
                del self._by_lane[top]

    def _fold(self, changed: Collection[str]) -> None:
        """Updates how many slots of each folded host are booked over time. `changed` contains the GPUs whose bookings
        have changed.
        """
        before, self._folded = self._folded, {}
        for row in self._lanes.rows:
            if row.kind != "folded":
                continue
            if row.host in before and not any(slot.id in changed for slot in row.slots):
                self._folded[row.host] = before[row.host]
            else:
                booked = self._usage.booked
                # Jobs of a cluster may overlap on a slot, and each slot must be counted once.
                self._folded[row.host] = steps(
                    time for slot in row.slots for time in merge(booked.get(slot.id, _NONE).values())
                )


_NONE: Mapping[str, Interval] = {}


def _difference(before: Sequence[Booking], after: Sequence[Booking]) -> tuple[list[Booking], list[Booking]]:
    """Returns the added and the removed bookings. A changed booking is in both lists."""
    if before is after:
        return [], []
    old, new = set(map(id, before)), set(map(id, after))
    return [one for one in after if id(one) not in old], [one for one in before if id(one) not in new]


def _place(drawn: tuple[Block, Strip]) -> tuple[int, float, str]:
    block = drawn[0]
    return block.top, block.start, block.booking.id


def _tops(block: Block) -> range:
    return range(block.top, block.bottom, LANE)


def rows_changed(before: DisplayList, after: DisplayList) -> list[tuple[int, int]] | None:
    """Returns the rows to repaint as (top, bottom), or None if everything must be repainted."""
    same = ("states", "host_notes", "notes", "person", "zone")
    if before.lanes is not after.lanes or before.usage.used is not after.usage.used:
        return None
    if before.now is None or after.now is None or _minute(before.now) != _minute(after.now):
        return None  # The texts of blocks change with the minute, so everything is repainted.
    if any(getattr(before, name) != getattr(after, name) for name in same):
        return None
    old, new = {id(block) for block in before.blocks}, {id(block) for block in after.blocks}
    changed = [block for block in before.blocks if id(block) not in new]
    changed += [block for block in after.blocks if id(block) not in old]
    if (before.dimmed ^ after.dimmed) - {block.booking.id for block in changed}:
        return None
    hosts = {row.host for row in after.lanes.rows if before.folded.get(row.host) != after.folded.get(row.host)}
    rows = [(row.top, row.bottom) for row in after.lanes.rows if row.host in hosts and row.kind == "folded"]
    used = {gpu for gpu, _ in before.used_now.items() ^ after.used_now.items()}
    rows += [(row.top, row.bottom) for gpu in used if (row := after.lanes.lane_of.get(gpu)) is not None]
    # A bar moves the label of the block that it is drawn over, so the whole lane is repainted.
    return rows + [(min(block.top, block.bottom - LANE), block.bottom) for block in changed]


def _minute(moment: datetime) -> int:
    return int(moment.timestamp() // 60)


def _notes(seen: CalendarState, now: datetime) -> dict[str, str]:
    notes = {}
    for evidence in seen.idle:
        booking = next((one for one in seen.bookings if one.id == evidence.booking_id), None)
        if booking is None:
            continue
        found = verdict(booking, seen.idle, seen.rules, now)
        if found.verdict is Verdict.FINE or found.frees_at is None:
            continue
        when = labels.clock(found.frees_at, seen.zone)
        if found.verdict is Verdict.WARN:
            idle = labels.duration_text((now - max(evidence.idle_since, booking.start)).total_seconds())
            notes[booking.id] = labels.translate("Bookings", "idle {time}, frees {when}").format(time=idle, when=when)
        else:
            notes[booking.id] = labels.translate("Bookings", "would have freed {when}").format(when=when)
    return notes


def _make_host_notes(lanes: Lanes, cores: Mapping[str, int]) -> dict[str, str]:
    host_notes = {}
    for row in lanes.rows:
        if row.is_lane:
            continue
        models = {gpu_model(slot) for slot in row.slots if not slot.is_cpu}
        if len(models) == 1:
            host_notes[row.host] = models.pop()
        elif models:
            host_notes[row.host] = labels.slots_count(slot.id for slot in row.slots)
        elif row.host in cores:
            host_notes[row.host] = labels.core_count(cores[row.host])
    return host_notes
