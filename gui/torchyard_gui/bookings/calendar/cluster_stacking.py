"""Stacking of a cluster's jobs, reservations and bookings that overlap on a node's lane. Does not depend on Qt.

Jobs that overlap each other on a lane are drawn as one block. A job or reservation that overlaps a booking or a
reservation is drawn as a bar at the lower edge of the lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torchyard_core.booking.model import Booking, is_of_cluster
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.calendar.blocks import is_shown


@dataclass(frozen=True)
class Stacked:
    """The bookings, jobs and reservations to draw."""

    bookings: tuple[Booking, ...]
    bars: frozenset[str] = frozenset()
    """The IDs of the entries of `bookings` that are drawn as bars."""
    groups: tuple[Booking, ...] = ()
    """The entries of `bookings` that each stand for several jobs and reservations on one lane."""


class ClusterStacking:
    """Stacks a cluster's bookings, jobs and reservations. As long as these do not change, `of` returns the
    same objects for them, because the display list detects changes by object identity.
    """

    def __init__(self) -> None:
        self._given: tuple[Booking, ...] = ()
        self._zone = ""
        self._stacked = Stacked(())

    def of(self, bookings: Sequence[Booking], zone: str) -> Stacked:
        """Returns the entries to draw for all bookings, jobs and reservations."""
        given = tuple(one for one in bookings if one.gpus and is_of_cluster(one.gpus[0]))
        if self._zone != zone or list(map(id, given)) != list(map(id, self._given)):
            self._given, self._zone, self._stacked = given, zone, _stacked(given, zone)
        if not self._stacked.bars and not self._stacked.groups:
            return Stacked(tuple(bookings))
        others = (one for one in bookings if not (one.gpus and is_of_cluster(one.gpus[0])))
        return replace(self._stacked, bookings=(*others, *self._stacked.bookings))


def _stacked(given: Sequence[Booking], zone: str) -> Stacked:
    """Returns the entries to draw for bookings of nodes, jobs and reservations."""
    own = [one for one in given if not is_of_cluster(one.id)]
    reservations = [one for one in given if is_of_cluster(one.id) and not _is_job(one)]
    jobs = [one for one in given if is_of_cluster(one.id) and _is_job(one)]
    full: dict[str, list[Booking]] = {}
    """The bookings and reservations that are drawn over the full height of a lane, by node."""
    bars = set()
    for one in (*own, *reservations, *jobs):
        if not is_shown(one):
            continue
        others = (other for node in one.gpus for other in full.get(node, ()))
        if is_of_cluster(one.id) and any(_overlap(one, other) for other in others):
            bars.add(one.id)
        elif not _is_job(one):  # A job does not turn other jobs into bars: overlapping jobs are drawn as one block.
            for node in one.gpus:
                full.setdefault(node, []).append(one)
    drawn, groups = list(own), []
    left = {one.id: set(one.gpus) for one in (*reservations, *jobs)}
    for is_bar in (False, True):
        members = [one for one in (*reservations, *jobs) if (one.id in bars) == is_bar]
        for node in sorted({gpu for one in members for gpu in one.gpus}):
            for group in _groups(one for one in members if node in one.gpus):
                if len(group) == 1:
                    continue
                groups.append(_group(node, group, zone))
                if is_bar:
                    bars.add(groups[-1].id)
                for one in group:
                    left[one.id].discard(node)
    for one in (*reservations, *jobs):
        if one.id in bars or left[one.id] != set(one.gpus):
            if left[one.id]:
                drawn.append(replace(one, gpus=tuple(gpu for gpu in one.gpus if gpu in left[one.id])))
        else:
            drawn.append(one)
    return Stacked((*drawn, *groups), frozenset(bars), tuple(groups))


def _is_job(one: Booking) -> bool:
    return is_of_cluster(one.id) and one.id.partition("/")[2].startswith("job ")


def _overlap(one: Booking, other: Booking) -> bool:
    return one.start < other.until and other.start < one.until


def _groups(members: Iterable[Booking]) -> list[list[Booking]]:
    """Groups the jobs and reservations of one lane that overlap in time. Different groups do not overlap."""
    found: list[list[Booking]] = []
    for one in sorted(members, key=lambda one: (one.start, one.id)):
        if found and one.start < max(other.until for other in found[-1]):
            found[-1].append(one)
        else:
            found.append([one])
    return found


def _group(node: str, members: Sequence[Booking], zone: str) -> Booking:
    """Returns a booking that stands for several jobs and reservations on a node, and lists them in its purpose."""
    first = members[0]
    jobs = sum(map(_is_job, members))
    title = labels.translate("Bookings", "{count} jobs")
    if jobs < len(members):
        title = labels.translate("Bookings", "{count} jobs and reservations")
    owners = dict.fromkeys(one.owner for one in members)
    lines = [f"{one.title} · {one.owner} · {labels.end_text(one, zone)}" for one in members]
    return replace(
        first,
        id=f"{node} {first.id.partition('/')[2]} +{len(members) - 1}",
        title=title.format(count=len(members)),
        owner=", ".join(owners),
        purpose="\n".join(lines),
        gpus=(node,),
        end=max(one.until for one in members),
    )
