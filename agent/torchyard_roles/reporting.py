"""Sends a rank's reports to its keeper: a datagram each, dropped rather than waited for."""

from __future__ import annotations

import os
import socket

from torchyard_agent.protocol import report
from torchyard_roles.environment import Environment


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
        datagram = report.encode(self._replica, self._local_rank, metrics)
        if len(datagram) > report.MAX_REPORT:
            known = {name: value for name, value in metrics.items() if name in report.METRICS}
            datagram = report.encode(self._replica, self._local_rank, known)
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
