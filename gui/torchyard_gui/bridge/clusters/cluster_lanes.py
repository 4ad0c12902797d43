"""The calendar lanes of cluster nodes, with their reservations and jobs, and the mirroring of node bookings to
Slurm.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Booking, cluster_of, is_of_cluster
from torchyard_core.errors import TorchyardError
from torchyard_gui.bridge.background_jobs import Job
from torchyard_gui.bridge.bookings_model import BookingsModel, CalendarState

if TYPE_CHECKING:
    from torchyard_core.app.cluster_bookings import MirroredChange
    from torchyard_core.engines.slurm.cluster_calendar import ClusterCalendar
    from torchyard_core.engines.slurm.reservation_mirror import Mirrored

READ_EVERY_MS = 60_000


class ClusterLanes(QObject):
    """The calendars of the fleet's clusters.

    The calendars are read once a minute while a calendar is visible, or while the user has live bookings of nodes.
    Before each read, these bookings are mirrored to Slurm.
    """

    changed = Signal()
    deleted = Signal(object)
    """Emitted with the bookings that have ended because their reservations were deleted in Slurm."""

    def __init__(self, model: BookingsModel, parent: QObject | None = None):
        super().__init__(parent)
        self._model = model
        fleet = model.fleet
        self.calendars: dict[str, ClusterCalendar] = {}
        """The last known calendar of each cluster."""
        self.errors: dict[str, TorchyardError] = {}
        """The error of each cluster that did not answer the last request."""
        self._fleet = fleet
        self._reading: dict[str, Job] = {}
        self._wanted: set[str] = set()
        """Clusters whose calendars are to be requested again after the request in progress has been answered."""
        self._results: dict[str, Mirrored] = {}
        """The result of the last mirroring of each cluster."""
        self._seen_by: dict[str, tuple[ClusterCalendar, str, ClusterCalendar]] = {}
        """For each cluster, the calendar as it was read, the user, and the calendar as this user sees it."""
        self._is_watched = False
        self._mirrored: tuple[Booking, ...] = ()
        """The user's live bookings of nodes."""
        self._clock = QTimer(self, interval=READ_EVERY_MS)
        self._clock.timeout.connect(self._tick)
        fleet.hosts_changed.connect(self._fleet_changed)
        fleet.clusters.changed.connect(self._cluster_checked)
        model.mirrored.connect(self._change_mirrored)

    def watch(self, on: bool) -> None:
        """Sets whether a calendar is visible. While it is, the clusters' calendars are read."""
        was, self._is_watched = self._is_watched, on
        if on and not was:
            self._clock.start()
            self.read()
        elif not on and not self._mirrored:
            self._clock.stop()

    def close(self) -> None:
        """Stops reading the calendars; called when the window closes."""
        self._clock.stop()

    def bookings_changed(self) -> None:
        """Mirrors the user's bookings of nodes to Slurm if they have changed."""
        seen = self._model.seen
        own = (one for one in seen.bookings if one.owner == seen.person and any(map(is_of_cluster, one.gpus)))
        before, self._mirrored = self._mirrored, tuple(one for one in own if one.is_live)
        if self._mirrored != before:
            if not self._clock.isActive():
                self._clock.start()
            self.read()

    def read(self) -> None:
        """Requests the calendar of each cluster.

        If a request is in progress, another one is sent when it has been answered.
        """
        for cluster in self._fleet.inventory.clusters:
            if self._is_reading(cluster.name):
                self._wanted.add(cluster.name)
            else:
                self._read(cluster.name)

    def _tick(self) -> None:
        """Requests the calendar of each cluster that has no request in progress."""
        for cluster in self._fleet.inventory.clusters:
            if not self._is_reading(cluster.name):
                self._read(cluster.name)

    def _is_reading(self, name: str) -> bool:
        return name in self._reading and not self._reading[name].is_finished

    def _read(self, name: str) -> None:
        fleet, store, caches = self._fleet, self._model.store, self._model.home.caches
        mirrors = any(cluster_of(gpu) == name for gpu in self._own_gpus())

        def ask() -> tuple[Mirrored | None, ClusterCalendar]:
            from torchyard_core.engines.registry import mirror_reservations, read_cluster_calendar

            done = mirror_reservations(fleet.fleet, name, store(), caches) if mirrors else None
            return done, read_cluster_calendar(fleet.fleet, name)

        self._reading[name] = fleet.jobs.run(ask, partial(self._arrived, name), partial(self._failed, name), owner=self)

    def _read_again(self, name: str) -> None:
        """Requests the calendar of a cluster again if `read` was called while a request to it was in progress."""
        if name in self._wanted:
            self._wanted.discard(name)
            self._read(name)

    def _own_gpus(self) -> set[str]:
        """Returns the GPUs and nodes of all of the user's bookings, including bookings that no longer hold them."""
        seen = self._model.seen
        return {gpu for booking in seen.bookings if booking.owner == seen.person for gpu in booking.gpus}

    def merged(self, seen: CalendarState) -> CalendarState:
        """Returns `seen` with the lanes and bookings of the clusters added."""
        if not self.calendars:
            return seen
        known, booked = {slot.id for slot in seen.slots}, {booking.id for booking in seen.bookings}
        calendars = self._seen_by_user()
        slots = tuple(slot for one in calendars for slot in one.slots if slot.id not in known)
        bookings = tuple(booking for one in calendars for booking in one.without(booked))
        return replace(seen, slots=(*seen.slots, *slots), bookings=(*seen.bookings, *bookings))

    def _seen_by_user(self) -> list[ClusterCalendar]:
        """Returns the clusters' calendars, in which the user's name replaces the user's logins on the clusters."""
        person = self._model.seen.person
        for name, read in self.calendars.items():
            before = self._seen_by.get(name)
            if before is None or before[0] is not read or before[1] != person:
                self._seen_by[name] = read, person, read.seen_by(person)
        return [self._seen_by[name][2] for name in self.calendars]

    def notes(self, seen: CalendarState) -> dict[str, str]:
        """Returns notes about node bookings that are not exclusive, by booking ID."""
        if not self.calendars:
            return {}
        of_nodes = [one for one in seen.bookings if one.is_live and any(map(is_of_cluster, one.gpus))]
        notes = {booking.id: self._note(booking, seen.person) for booking in of_nodes}
        return {booking_id: note for booking_id, note in notes.items() if note}

    def _note(self, booking: Booking, person: str) -> str:
        """Returns why a live booking of nodes is not exclusive; returns "" if it is exclusive or if this is unknown."""
        cluster = cluster_of(booking.gpus[0])
        known, result = self.calendars.get(cluster), self._results.get(cluster)
        if known is None or known.has_reservation(booking.id):
            return ""
        if result is not None and booking.owner == person:
            if booking.id in result.exclusive:
                return ""
            if booking.id in result.problems:
                why = result.problems[booking.id].message
                return self.tr("not exclusive: {why}").format(why=why)
            if not result.may_reserve:
                text = self.tr("not exclusive: {cluster} lets only operators reserve nodes")
                return text.format(cluster=cluster)
        return self.tr("not exclusive: {cluster} has no reservation").format(cluster=cluster)

    def booking(self, booking_id: str) -> Booking | None:
        """Returns a job or reservation by its ID."""
        every = (booking for one in self._seen_by_user() for booking in one.bookings)
        return next((booking for booking in every if booking.id == booking_id), None)

    def reservation_at(self, nodes: Collection[str], time: Interval, seen: CalendarState) -> Booking | None:
        """Returns the first reservation that includes one of the nodes and overlaps the interval `time`.

        Reservations that mirror bookings in `seen` are omitted. If Slurm does not let the user reserve nodes on a
        cluster, the user's own reservations on that cluster are omitted too.
        """
        mirrored = {booking.id for booking in seen.bookings}
        every = (booking for one in self._seen_by_user() for booking in one.without(mirrored))
        found = (
            one
            for one in every
            if one.title.startswith("reservation ")
            and not set(one.gpus).isdisjoint(nodes)
            and not one.interval.within(time).is_empty
            and not (seen.person in one.owner.split(", ") and self._never_reserves(cluster_of(one.id)))
        )
        return min(found, key=lambda one: one.start, default=None)

    def _never_reserves(self, cluster: str) -> bool:
        """Returns whether it is known that Slurm does not let the user reserve nodes."""
        result = self._results.get(cluster)
        return result is not None and not result.may_reserve

    def mark_of(self, cluster: str) -> str:
        """Returns the state mark of a cluster."""
        return "unknown" if cluster in self.errors else "ok"

    def _change_mirrored(self, change: MirroredChange[object]) -> None:
        """Stores the mirroring results of a change that the user has just made."""
        self._results |= {result.cluster: result for result in change.mirrored}
        self.changed.emit()

    def _offer_nodes(self) -> None:
        """Adds the nodes to the slots of the calendar model, so that they can be booked."""
        self._model.node_slots = tuple(slot for one in self.calendars.values() for slot in one.slots)

    def _arrived(self, cluster: str, answer: tuple[Mirrored | None, ClusterCalendar]) -> None:
        result, found = answer
        if result is not None:
            self._results[cluster] = result
            if result.deleted:
                self.deleted.emit(result.deleted)
        before = self.calendars.get(cluster)
        if before is not None and before.bookings == found.bookings:
            found = replace(found, bookings=before.bookings)
        self.calendars[cluster] = found
        self.errors.pop(cluster, None)
        self._offer_nodes()
        self.changed.emit()
        self._read_again(cluster)

    def _failed(self, cluster: str, error: TorchyardError) -> None:
        self.errors[cluster] = error
        self.changed.emit()
        self._read_again(cluster)

    def _cluster_checked(self, name: str) -> None:
        """Reads the calendars again once a check has reached a cluster that did not answer the last request."""
        status = self._fleet.clusters.status(name)
        if self._clock.isActive() and name in self.errors and status is not None and status.answers:
            self.read()

    def _fleet_changed(self) -> None:
        """Removes the lanes of clusters that are no longer in the fleet file."""
        names = {cluster.name for cluster in self._fleet.inventory.clusters}
        for known in (self.calendars, self.errors, self._results, self._seen_by):
            for name in known.keys() - names:
                del known[name]
        self._wanted &= names
        self._offer_nodes()
        self.changed.emit()
        if self._clock.isActive():
            self.read()
