"""Sends a process's reports to its keeper: a datagram each, dropped rather than waited for."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable

from torchyard_agent.protocol import metrics_report
from torchyard_roles.environment import Environment

SERVING_EVERY_S = 1.0
"""Between two reports of who serves: as often as keepers pass them on."""
LAST_WAIT_S = 0.2
"""How long the last one may wait for room in the keeper's queue."""


class Reporter:
    """Never raises, and waits only if told to: whether the keeper listens is no business of the training's."""

    def __init__(self, environment: Environment) -> None:
        self._replica = environment.replica
        self._local_rank = environment.local_rank
        self._address = environment.report_address.replace("@", "\0", 1)
        self._process = os.getpid()
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    @property
    def is_open(self) -> bool:
        """False where nobody listens for reports, and in a forked child (a loader's worker), which is no rank."""
        return self._socket is not None and os.getpid() == self._process

    def send(self, metrics: dict[str, float], wait_s: float = 0.0) -> bool:
        """Whether it went off. `wait_s`: how long it may wait for room in the keeper's queue."""
        if self._socket is None or not self.is_open:
            return False
        datagram = metrics_report.encode(self._replica, self._local_rank, metrics)
        if len(datagram) > metrics_report.MAX_REPORT:
            known = {name: value for name, value in metrics.items() if name in metrics_report.METRICS}
            datagram = metrics_report.encode(self._replica, self._local_rank, known)
        try:
            self._socket.settimeout(wait_s)
            self._socket.sendto(datagram, self._address)
        except OSError:  # the queue is full, or the keeper is gone: reports are lossy by contract
            return False
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class ServingReports:
    """Tells the keeper once a second how a server or reducer is doing, from a thread of its own.

    `figures` gives numbers by the names of `report.METRICS`; `traffic` the bytes sent and received so far, of which
    bytes a second are made. Both are called from that thread.
    """

    def __init__(
        self,
        environment: Environment,
        figures: Callable[[], dict[str, float]],
        traffic: Callable[[], int],
        every_s: float = SERVING_EVERY_S,
    ) -> None:
        self._reporter = Reporter(environment)
        self._figures = figures
        self._traffic = traffic
        self._every_s = every_s
        self._ends = threading.Event()
        self._before = (time.monotonic(), traffic())
        self._thread = threading.Thread(target=self._send_all, name="reports", daemon=True)

    def __enter__(self) -> ServingReports:
        if self._reporter.is_open:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Sends the last figures, and ends the thread."""
        self._ends.set()
        if self._reporter.is_open:
            self._thread.join()
            self._reporter.send(self._now(), LAST_WAIT_S)
        self._reporter.close()

    def _send_all(self) -> None:
        while not self._ends.wait(self._every_s):
            self._reporter.send(self._now())

    def _now(self) -> dict[str, float]:
        then, before = self._before
        self._before = now, traffic = time.monotonic(), self._traffic()
        return {**self._figures(), "bytes_s": (traffic - before) / max(now - then, 1e-3)}
