"""The metrics of ranks: receives the datagrams of scripts, and combines the latest values of a replica's ranks."""

from __future__ import annotations

import asyncio
import math
import os
import socket
from typing import Any, Callable, Optional

from torchyard_agent.peer_credentials import UCRED
from torchyard_agent.protocol import metrics_report, paths

Metrics = dict[str, Optional[float]]
"""Metrics as JSON values. None means that a value is NaN or infinite."""

_MOST_WAITING = 4096
"""Maximum number of datagrams in one read. It exceeds the length of the kernel's queue (net.unix.max_dgram_qlen)."""
_BATCH = 64
"""Maximum number of datagrams that one callback of the event loop reads."""


def to_json(metrics: dict[str, float]) -> Metrics:
    """Converts metrics to JSON values: steps become integers, and NaN and infinities become None."""
    result: Metrics = {}
    for name, value in metrics.items():
        if not math.isfinite(value):
            result[name] = None
        else:
            result[name] = int(value) if name == "step" else value
    return result


class LatestMetrics:
    """The latest metrics of each replica on this host, combined from the metrics of its ranks."""

    def __init__(self, replicas: set[str]):
        self._ranks: dict[str, dict[int, dict[str, float]]] = {name: {} for name in replicas}

    def forget(self, replica: str) -> None:
        """Drops the metrics of a replica that is being restarted."""
        self._ranks[replica] = {}

    def take(self, datagram: bytes) -> str | None:
        """Stores the metrics of a datagram, and returns the replica that sent them.

        Returns None if the datagram is invalid or its replica does not belong to this host.
        """
        try:
            decoded = metrics_report.decode(datagram)
        except (OverflowError, RecursionError):
            # Python raises these errors if the JSON contains numbers that are out of range or is nested too deeply.
            return None
        if decoded is None or decoded[0] not in self._ranks:
            return None
        replica, local_rank, metrics = decoded
        numbers = self._ranks[replica].setdefault(local_rank, {})
        numbers.update(metrics)
        # Several datagrams together may contain more metric names than are kept.
        if len(metrics_report.custom_metrics(numbers)) < len(numbers.keys() - set(metrics_report.METRICS)):
            self._ranks[replica][local_rank] = metrics_report.valid_metrics(numbers)
        return replica

    def of(self, replica: str) -> Metrics:
        """Returns the metrics of a replica, combined from its ranks.

        `step` is the highest step of all ranks, and `throughput` is the sum over all ranks. All other metrics are those
        of the lowest local rank.

        Returns an empty dict before the first report.
        """
        ranks = self._ranks[replica]
        if not ranks:
            return {}
        merged = dict(ranks[min(ranks)])
        steps = [metrics["step"] for metrics in ranks.values() if "step" in metrics]
        if steps:  # Servers do not report a step.
            merged["step"] = max(steps)
        rates = [metrics["throughput"] for metrics in ranks.values() if "throughput" in metrics]
        if rates:
            merged["throughput"] = sum(rates)
        return to_json(merged)

    def all(self) -> dict[str, Metrics]:
        return {name: self.of(name) for name, ranks in self._ranks.items() if ranks}


class MetricsReceiver:
    """A datagram socket at an abstract address that accepts metrics from processes of this user.

    The constructor binds the socket, and `serve` begins to read from it.
    """

    def __init__(self) -> None:
        self.address = paths.random_socket(os.getuid())
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.setblocking(False)
        self._socket.bind(self.address)
        self._on_datagram: Callable[[bytes], Any] = lambda datagram: None

    def serve(self, on_datagram: Callable[[bytes], Any]) -> None:
        self._on_datagram = on_datagram
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def read_last(self) -> None:
        """Reads the datagrams that a process sent before it exited.

        The event loop may notice the exit before it has read these datagrams.
        """
        self._read(_MOST_WAITING)

    def _read(self, most: int = _BATCH) -> None:
        for _ in range(most):
            try:
                datagram, ancillary, _, _ = self._socket.recvmsg(
                    metrics_report.MAX_REPORT + 1, socket.CMSG_SPACE(UCRED.size)
                )
            except OSError:  # Nothing is left to read, or the socket was closed.
                return
            if _sender(ancillary) == os.getuid():
                self._on_datagram(datagram)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """Returns the UID of a datagram's sender, as reported by the kernel, or None if it is not reported."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(UCRED.unpack(data[: UCRED.size])[1])
    return None
