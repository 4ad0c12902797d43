"""Sends metrics reports to the keeper as datagrams. A report is lost if the keeper's queue is full."""

from __future__ import annotations

import os
import socket

from torchyard_agent.protocol import metrics_report
from torchyard_roles.environment import Environment


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
