"""Logs of a run's ranks, read from the run's hosts."""

from __future__ import annotations

import base64
import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torchyard_core.launch.agent_interface import AgentLink, Reattach
from torchyard_core.launch.runs.log_times import LogTimes

LOG_WAIT_S = 10.0
"""Maximum time in seconds for which a host waits for new log lines before it answers."""
TAIL_PIECE = 64 * 1024
"""Number of bytes that are read at once in the search for the last lines of a log."""


class LogLine(NamedTuple):
    """A line of a log. `time` is when its first byte was written, in seconds since 1970 by the clock of the host."""

    time: float
    text: str


class LogReader:
    """Reads the lines of one rank's log, even while the log is growing."""

    def __init__(
        self, run_id: str, replica: str, local_rank: int, link: AgentLink, reattach: Reattach, tail: int | None = None
    ):
        """Creates a reader that begins with the first line, or with the last `tail` lines of the current log."""
        self.replica = replica
        self.local_rank = local_rank
        self._run_id = run_id
        self._link = link
        self._reattach = reattach
        self._offset = 0
        self._tail = tail
        self._part = b""
        self._times = LogTimes()
        self.ended = False

    def _skip_to_last(self, count: int) -> None:
        self._offset = 0
        size = end = int(self._read(0.0, limit=0)["size"])
        while end and count:
            self._offset = max(0, end - TAIL_PIECE)
            data = base64.b64decode(self._read(0.0, limit=end - self._offset)["data"])
            end = self._offset
            while (newline := data.rfind(b"\n")) >= 0:
                data = data[:newline]
                begin = end + newline + 1
                count -= begin < size  # A newline at the end of the file does not start another line.
                if not count:
                    self._offset = begin
                    return
        self._offset = end

    def lines(self, *, wait: bool) -> Iterator[LogLine]:
        """Yields new complete lines. At the end of the log, also yields an incomplete last line.

        With `wait`, makes one request, for which the host waits up to LOG_WAIT_S for new lines. Otherwise, reads all
        lines that the log has now.
        """
        if self._tail is not None:
            self._skip_to_last(self._tail)
            self._tail = None
        while not self.ended:
            answer = self._read(LOG_WAIT_S if wait else 0.0)
            begin = self._offset - len(self._part)
            *whole, self._part = (self._part + base64.b64decode(answer["data"])).split(b"\n")
            self._offset = int(answer["next"])
            self.ended = bool(answer["ended"])
            self._times.add(answer["times"])
            for line in [*whole, self._part] if self.ended and self._part else whole:
                yield LogLine(self._times.time(begin), line.decode("utf-8", "replace"))
                begin += len(line) + 1
            if wait or self._offset >= int(answer["size"]):
                return

    def _read(self, wait_s: float, limit: int | None = None) -> dict[str, Any]:
        params = {
            "run_id": self._run_id,
            "replica": self.replica,
            "local_rank": self.local_rank,
            "offset": self._offset,
            "wait_s": wait_s,
        }
        if limit is not None:
            params["limit"] = limit
        if not self._link.is_open:
            self._link = self._reattach(self._link.host)
        answer: dict[str, Any] = self._link.call("logs.read", params, wait_s + 60.0)
        return answer


def merge_lines(logs: Iterable[tuple[LogReader, Iterable[LogLine]]]) -> Iterator[tuple[LogReader, LogLine]]:
    """Yields the lines of several logs in order of time. Lines with equal times are in the order of the logs.

    The times come from the hosts' clocks. Lines from different hosts may therefore be out of order if these clocks
    differ.
    """

    def with_reader(reader: LogReader, lines: Iterable[LogLine]) -> Iterator[tuple[LogReader, LogLine]]:
        return ((reader, line) for line in lines)

    return heapq.merge(*(with_reader(*log) for log in logs), key=lambda item: item[1].time)


def log_readers(
    shown: dict[str, Any],
    replica: str | None,
    links: Mapping[str, AgentLink],
    reattach: Reattach,
    tail: int | None = None,
) -> list[LogReader]:
    """Returns a reader for each log of the run, or of one replica, on the hosts in `links`."""
    wanted = {found["name"]: str(found["host"]) for found in shown["replicas"] if replica in (None, found["name"])}
    readers = []
    for host in dict.fromkeys(wanted.values()):
        if host not in links:
            continue
        for log in links[host].call("logs.list", {"run_id": shown["run_id"]}):
            name, _, rank = str(log["name"]).removesuffix(".log").partition(".")
            if wanted.get(name) == host:
                readers.append(LogReader(shown["run_id"], name, int(rank or 0), links[host], reattach, tail))
    order = list(wanted)
    return sorted(readers, key=lambda reader: (order.index(reader.replica), reader.local_rank))
