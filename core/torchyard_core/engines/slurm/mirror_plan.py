"""Decides how a cluster's bookings and Slurm's reservations are made equal after changes. Pure functions.

Both a booking and its reservation may have changed since they were last equal. The *base* is what both held then. The
one that differs from the base has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Hold:
    """The nodes that a booking or a reservation holds, and its times in seconds since 1970."""

    nodes: tuple[str, ...]
    start: int
    end: int

    def equals(self, other: Hold, now: int) -> bool:
        """Returns whether both hold the same nodes from now on. Two starts that are not after `now` count as equal."""
        same_start = self.start == other.start or (self.start <= now and other.start <= now)
        return self.nodes == other.nodes and self.end == other.end and same_start


@dataclass(frozen=True)
class Reserve:
    """A step that creates or changes a booking's reservation."""

    booking_id: str
    hold: Hold
    is_new: bool


@dataclass(frozen=True)
class Unreserve:
    """A step that ends the reservation of a booking that no longer holds nodes."""

    booking_id: str


@dataclass(frozen=True)
class Rebook:
    """A step that changes a booking as its reservation was changed in Slurm."""

    booking_id: str
    hold: Hold


@dataclass(frozen=True)
class LetGo:
    """A step that releases or cancels a booking whose reservation was deleted in Slurm before the booking's end."""

    booking_id: str


Step = Reserve | Unreserve | Rebook | LetGo


def steps_between(
    bookings: Mapping[str, Hold],
    ended: Collection[str],
    reservations: Mapping[str, Hold],
    base: Mapping[str, Hold],
    now: int,
) -> list[Step]:
    """Returns the steps after which the bookings and the reservations are equal.

    Args:
        bookings: The live bookings of the cluster's nodes that this user mirrors, by ID.
        ended: IDs of bookings that no longer hold their nodes. The reservations of other bookings are not changed.
        reservations: The reservations of bookings in Slurm, by the booking's ID.
        base: What each booking and its reservation held when both were last equal.
        now: The time in seconds since 1970.
    """
    steps: list[Step] = []
    for one in sorted({*bookings, *reservations}):
        wanted, found, before = bookings.get(one), reservations.get(one), base.get(one)
        if wanted is None or wanted.end <= now:
            if found is not None and one in ended:
                steps.append(Unreserve(one))
        elif found is None:
            # Slurm removes a reservation at its end, which does not count as a deletion by the user.
            was_deleted = before is not None and before.end > now
            steps.append(LetGo(one) if was_deleted else Reserve(one, wanted, is_new=True))
        elif not wanted.equals(found, now):
            booking_is_unchanged = before is not None and before.equals(wanted, now)
            steps.append(Rebook(one, found) if booking_is_unchanged else Reserve(one, wanted, is_new=False))
    return steps
