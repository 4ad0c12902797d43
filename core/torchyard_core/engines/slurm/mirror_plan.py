"""Decides how bookings of a cluster's nodes and reservations in Slurm are brought into agreement. Pure functions.

Both sides may have changed since they last agreed. The *base* is that last agreement; it tells which side has changed.
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
        """Returns whether both hold the same from now on. The start of what has begun no longer matters."""
        same_start = self.start == other.start or (self.start <= now and other.start <= now)
        return self.nodes == other.nodes and self.end == other.end and same_start


@dataclass(frozen=True)
class Reserve:
    """Creates the reservation of a booking, or changes it."""

    booking_id: str
    hold: Hold
    is_new: bool


@dataclass(frozen=True)
class Unreserve:
    """Ends the reservation of a booking that no longer holds its nodes."""

    booking_id: str


@dataclass(frozen=True)
class Rebook:
    """Changes a booking after a change of its reservation in Slurm."""

    booking_id: str
    hold: Hold


@dataclass(frozen=True)
class LetGo:
    """Releases or cancels a booking whose reservation was deleted in Slurm before its end."""

    booking_id: str


Step = Reserve | Unreserve | Rebook | LetGo


def steps_between(
    bookings: Mapping[str, Hold],
    ended: Collection[str],
    reservations: Mapping[str, Hold],
    base: Mapping[str, Hold],
    now: int,
) -> list[Step]:
    """Returns the steps after which bookings and reservations agree.

    Args:
        bookings: The live bookings of the cluster's nodes that this user mirrors, by ID.
        ended: IDs of bookings that no longer hold their nodes. The reservations of other bookings are left alone.
        reservations: The reservations of bookings in Slurm, by the booking's ID.
        base: What each booking and its reservation held when they last agreed.
        now: The time in seconds since 1970.
    """
    steps: list[Step] = []
    for one in sorted({*bookings, *reservations}):
        wanted, found, before = bookings.get(one), reservations.get(one), base.get(one)
        if wanted is None or wanted.end <= now:
            if found is not None and one in ended:
                steps.append(Unreserve(one))
        elif found is None:
            # Slurm removes a reservation at its end, which is no deletion.
            was_deleted = before is not None and before.end > now
            steps.append(LetGo(one) if was_deleted else Reserve(one, wanted, is_new=True))
        elif not wanted.equals(found, now):
            booking_is_unchanged = before is not None and before.equals(wanted, now)
            steps.append(Rebook(one, found) if booking_is_unchanged else Reserve(one, wanted, is_new=False))
    return steps
