"""Bookings that conflict with a draft, and the nearest free alternatives."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import Connection, and_, select

import torchyard_core.booking.store.tables as tables
from torchyard_core.booking.model import Draft
from torchyard_core.booking.search.conflict import Clash, Clashing
from torchyard_core.booking.search.slot_search import Fit, Wish
from torchyard_core.booking.store.queries import BookingQueries
from torchyard_core.booking.store.store_session import StoreSession


@dataclass
class ConflictQueries:
    """Finds other bookings of the requested GPUs, and the nearest free alternatives."""

    _session: StoreSession
    _queries: BookingQueries

    def find_clashing(self, connection: Connection, draft: Draft, except_booking: str | None) -> tuple[Clashing, ...]:
        of = tables.booking_gpus
        which = and_(of.c.live, of.c.gpu.in_(draft.gpus), of.c.starts < draft.end, of.c.ends > draft.start)
        taken: dict[str, list[str]] = {}
        for booking_id, gpu in connection.execute(select(of.c.booking_id, of.c.gpu).where(which)):
            if booking_id != except_booking:
                taken.setdefault(booking_id, []).append(gpu)
        if not taken:
            return ()
        found = self._queries.load_bookings(connection, select(tables.bookings).where(tables.bookings.c.id.in_(taken)))
        return tuple(Clashing(one, tuple(sorted(taken[one.id]))) for one in found)

    def with_nearest(self, connection: Connection, clash: Clash, except_booking: str | None = None) -> Clash:
        conflict = clash.conflict
        nearest = self.nearest(connection, conflict.wanted, except_booking)
        return replace(conflict, nearest=nearest).as_error(self._queries.load_slots(connection), self._session.person)

    def nearest(self, connection: Connection, draft: Draft, except_booking: str | None = None) -> tuple[Fit, ...]:
        """Returns up to two later times at which the same GPUs are free, and up to two sets of alternative GPUs.

        Results are ordered by start time. Alternative GPUs are free at the requested time, and each has at least as
        much memory as the smallest requested one. If all requested GPUs are of one model, the alternatives are of that
        model too. Alternative nodes belong to the same cluster.
        """
        slots = {slot.id: slot for slot in self._queries.load_slots(connection)}
        chosen = [slots[gpu] for gpu in draft.gpus if gpu in slots]
        length = draft.interval.duration
        if not chosen or not length:
            return ()
        same = Wish(len(draft.gpus), length, draft.start, one_host=False, gpus=draft.gpus)
        person = draft.owner or self._session.person
        found = list(self._queries.find_in(connection, same, 2, person, draft.zone, except_booking))
        memory = min(slot.memory_mb for slot in chosen) / 1000
        models = {slot.model for slot in chosen}
        then = Wish(
            len(draft.gpus),
            length,
            draft.start,
            latest=draft.end,
            min_memory_gb=memory,
            model=models.pop() if len(models) == 1 else "",
            one_host=len({slot.host for slot in chosen}) == 1,
            hosts=tuple(dict.fromkeys(slot.host for slot in chosen)) if all(slot.node for slot in chosen) else (),
        )
        others: tuple[Fit, ...] = ()
        if not any(slot.is_cpu for slot in chosen):
            others = self._queries.find_in(connection, then, 2, person, draft.zone, except_booking)
        return tuple(dict.fromkeys(sorted([*others, *found], key=lambda fit: fit.start)))
