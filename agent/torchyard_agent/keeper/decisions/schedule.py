"""A run that waits for its time, and one whose booking ends: the primary's clockwork around `booked`.

Wall-clock times are compared with the wall clock again and again, at most half a minute apart: a clock may be set and
a host suspended meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection
from typing import Callable

from torchyard_agent.keeper.decisions import booking_policy
from torchyard_agent.keeper.decisions.booking_policy import Leave, Notice, OwnBooking
from torchyard_agent.keeper.timeouts import Patience
from torchyard_agent.protocol.calendar import Calendar

LOOK_EVERY_S = 30.0


class Timetable:
    """What a primary knows of its run's time."""

    def __init__(
        self,
        own: OwnBooking | None,
        start_at: float | None,
        gpus: Collection[str],
        patience: Patience,
        grace_s: float,
    ):
        self.own = own
        self.start_at = start_at
        self._gpus = frozenset(gpus)
        self._patience = patience
        self._grace_s = grace_s
        self._known: Calendar | None = None
        self._submitted = time.time()
        self._news = asyncio.Event()

    def learn(self, known: Calendar) -> None:
        """A newer calendar."""
        if self._known is None or known.taken >= self._known.taken:
            self._known = known
            self._news.set()

    async def due(self, told: Callable[[float], None]) -> booking_policy.Start:
        """Returns at the run's time, with whether it may begin. `told` of each change of that time."""
        assert self.start_at is not None
        announced = self.start_at
        while True:
            now = time.time()
            at = booking_policy.start_of(self.own, self.start_at, self._known, now)
            verdict = booking_policy.may_begin(self.own, self._gpus, self._known, self._submitted, now)
            if at <= now or (self.own is not None and verdict.refused.startswith("its booking is not")):
                return verdict
            if at != announced:
                announced = at
                told(at)
            await self._pass(at - now)

    async def watch_the_end(self, warn: Callable[[Leave], None], stop: Callable[[Leave], None]) -> None:
        """Warns of having to leave, and has the run stopped in time; returns then. For ever without a booking."""
        notice: Notice | None = None
        while self.own is not None:
            now = time.time()
            must = booking_policy.leave(self.own, self._gpus, self._known, now)
            waits = self._patience
            notice, act, look_at = booking_policy.what_now(
                notice,
                must,
                now,
                warn_s=waits.booking_warn_s,
                notice_s=waits.booking_notice_s,
                grace_s=self._grace_s,
            )
            if act == "stop" and must is not None:
                stop(must)
                return
            if act == "warn" and must is not None:
                warn(must)
                continue
            await self._pass(LOOK_EVERY_S if look_at is None else look_at - now)
        await asyncio.get_running_loop().create_future()

    async def _pass(self, seconds: float) -> None:
        """Sleeps, but for news and for a look at the clock now and then."""
        self._news.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), min(max(seconds, 0.01), LOOK_EVERY_S))
