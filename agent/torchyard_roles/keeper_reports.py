"""Sends metrics reports to the keeper, one datagram each. A report is dropped if the keeper's queue is full."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable

from torchyard_agent.protocol import metrics_report
from torchyard_roles.environment import Environment

SERVING_EVERY_S = 1.0
"""Interval in seconds between the reports of a server. Keepers forward reports at the same interval."""
LAST_WAIT_S = 0.2
"""Longest time in seconds for which the last report waits for space in the keeper's queue."""


class Reporter:
    """The sender of reports to the keeper.

    Training does not depend on the keeper: sending raises no errors, and by default does not wait.
    """

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
        """Whether reports can be sent.

        False if there is no keeper, and in forked children such as DataLoader workers.
        """
        return self._socket is not None and os.getpid() == self._process

    def send(self, metrics: dict[str, float], wait_s: float = 0.0) -> bool:
        """Sends a report, and returns whether it was sent. Waits at most `wait_s` for space in the keeper's queue.

        A report that is too long is sent without the script's own metrics.
        """
        if self._socket is None or not self.is_open:
            return False
        datagram = metrics_report.encode(self._replica, self._local_rank, metrics)
        if len(datagram) > metrics_report.MAX_REPORT:
            standard = {name: value for name, value in metrics.items() if name in metrics_report.METRICS}
            datagram = metrics_report.encode(self._replica, self._local_rank, standard)
        try:
            self._socket.settimeout(wait_s)
            self._socket.sendto(datagram, self._address)
        except OSError:  # The queue is full or the keeper has exited. Lost reports are acceptable.
            return False
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class ServingReports:
    """Periodic reports of a server or reducer, sent by a background thread.

    Args:
        figures: A function that returns metrics with names from `metrics_report.METRICS`. The thread calls it for each
            report, and __exit__() calls it for the last one.
        traffic: A function that returns the number of bytes sent and received so far, from which the rate is computed.
            It is called like `figures`, and also by __init__().
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

    def __enter__(self) -> ServingReports:
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
        while not self._ends.wait(SERVING_EVERY_S):
            self._reporter.send(self._now())

    def _now(self) -> dict[str, float]:
        then, before = self._before
        self._before = now, traffic = time.monotonic(), self._traffic()
        return {**self._figures(), "bytes_s": (traffic - before) / max(now - then, 1e-3)}
