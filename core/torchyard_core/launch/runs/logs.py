"""Logs of a run's ranks, read from its hosts."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterator, Mapping
from typing import Any

from torchyard_core.launch.agent_interface import AgentLink, Reattach

LOG_WAIT_S = 10.0
"""Maximum time in seconds that a host waits for new log lines before it answers."""
TAIL_PIECE = 64 * 1024
"""Bytes that are read at a time when searching for a log's last lines."""


class LogReader:
    """The lines of one rank's log, from its start, also while it grows."""

    def __init__(self, run_id: str, replica: str, local_rank: int, link: AgentLink, reattach: Reattach):
        self.replica = replica
        self.local_rank = local_rank
        self._run_id = run_id
        self._link = link
        self._reattach = reattach
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._part = ""
        self.ended = False

    def skip_to_last(self, count: int) -> None:
        """Skips to the last `count` complete lines."""
        self._offset = 0
        size = end = int(self._read(0.0, limit=0)["size"])
        while end and count:
            self._offset = max(0, end - TAIL_PIECE)
            data = base64.b64decode(self._read(0.0, limit=end - self._offset)["data"])
            end = self._offset
            while (newline := data.rfind(b"\n")) >= 0:
                data = data[:newline]
                begin = end + newline + 1
                count -= begin < size  # no line begins after the newline at the end of the file
                if not count:
                    self._offset = begin
                    return
        self._offset = end

    def lines(self, *, wait: bool) -> Iterator[str]:
        """Yields new complete lines. With `wait`, the host waits up to LOG_WAIT_S for new lines."""
        while not self.ended:
            answer = self._read(LOG_WAIT_S if wait else 0.0)
            data = base64.b64decode(answer["data"])
            self._offset = int(answer["next"])
            self.ended = bool(answer["ended"])
            *whole, self._part = (self._part + self._decoder.decode(data, self.ended)).split("\n")
            yield from whole
            if self.ended and self._part:
                yield self._part
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


def log_readers(
    shown: dict[str, Any], replica: str | None, links: Mapping[str, AgentLink], reattach: Reattach
) -> list[LogReader]:
    """A reader for each log of the run, or of one replica, on the hosts in `links`."""
    wanted = {found["name"]: str(found["host"]) for found in shown["replicas"] if replica in (None, found["name"])}
    readers = []
    for host in dict.fromkeys(wanted.values()):
        if host not in links:
            continue
        for log in links[host].call("logs.list", {"run_id": shown["run_id"]}):
            name, _, rank = str(log["name"]).removesuffix(".log").partition(".")
            if wanted.get(name) == host:
                readers.append(LogReader(shown["run_id"], name, int(rank or 0), links[host], reattach))
    order = list(wanted)
    return sorted(readers, key=lambda reader: (order.index(reader.replica), reader.local_rank))
