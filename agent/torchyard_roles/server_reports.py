"""The periodic reports of servers and reducers to the keeper. Trainers report their steps (`training_metrics`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from torchyard_roles.environment import Environment
from torchyard_roles.keeper_reports import Reporter

EVERY_S = 1.0
"""Interval in seconds between the reports of a server. Keepers forward reports at the same interval."""
LAST_WAIT_S = 0.2
"""Longest time in seconds for which the last report waits for space in the keeper's queue."""


class ServerReports:
    """Periodic reports of a server or reducer, sent by a background thread.

    Args:
        figures: A function that returns metrics with names from `metrics_report.METRICS`. The thread calls it for each
            report, and __exit__() calls it for the last one.
        traffic: A function that returns the number of bytes sent and received so far, from which the rate is computed.
            It is called at the same times as `figures`, and also by __init__().
    """

    def __init__(
        self, environment: Environment, figures: Callable[[], dict[str, float]], traffic: Callable[[], int]
    ) -> None:
        self._reporter = Reporter(environment)
        self._figures = figures
        self._traffic = traffic
        self._ends = threading.Event()
        self._before = (time.monotonic(), traffic())
        self._thread = threading.Thread(target=self._send_all, name="reports", daemon=True)

    def __enter__(self) -> ServerReports:
        if self._reporter.is_open:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Sends the last report, and ends the thread."""
        self._ends.set()
        if self._reporter.is_open:
            self._thread.join()
            self._reporter.send(self._now(), LAST_WAIT_S)
        self._reporter.close()

    def _send_all(self) -> None:
        while not self._ends.wait(EVERY_S):
            self._reporter.send(self._now())

    def _now(self) -> dict[str, float]:
        then, before = self._before
        self._before = now, traffic = time.monotonic(), self._traffic()
        return {**self._figures(), "bytes_s": (traffic - before) / max(now - then, 1e-3)}
