"""Reads one rank's log on its host by byte offset, and reports when the log grows.

A thread is needed only to open the connection. All signals are emitted on the GUI thread.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.errors import AgentRefused, TorchyardError
from torchyard_core.launch.runs.log_times import LogTimes
from torchyard_core.launch.runs.logs import LOG_WAIT_S
from torchyard_gui.bridge.background_jobs import Job, Jobs, explain

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import DaemonClient
    from torchyard_core.fleet.fleet import Fleet

WATCH_EVERY_MS = 200
"""Milliseconds between an answer and the next query while a log is growing."""
RETRY_MS = 2000
PAGE_BYTES = 64 * 1024

Taken = Callable[[bytes, int], None]
"""Called with the data and the size of the whole log."""


class LogFeed(QObject):
    """The log of one rank. `size` is the last known length of the log in bytes."""

    grown = Signal(bytes, int)
    """Emitted with new data and their offset. If the new data do not fit into one message, only the first part is
    emitted.

    `size` and `times` are already updated.
    """
    ended_changed = Signal()
    lost = Signal(object)
    """Emitted with a TorchyardError when the host does not answer. The feed keeps trying to reach the host."""
    found = Signal()
    """Emitted when the host answers for the first time, and when it answers again after `lost`."""
    failed = Signal(object)
    """Emitted with a TorchyardError when the agent refuses a query. The query is not repeated."""

    def __init__(
        self,
        run_id: str,
        host: str,
        replica: str,
        local_rank: int,
        fleet: Callable[[], Fleet],
        jobs: Jobs,
        parent: QObject | None = None,
    ):
        super().__init__(parent)
        self.host = host
        self.replica = replica
        self.local_rank = local_rank
        self.size = 0
        self.times = LogTimes()
        self.ended = False
        """Whether the log is complete."""
        self._run_id = run_id
        self._fleet = fleet
        self._jobs = jobs
        self._link: DaemonClient | None = None
        self._linking: Job | None = None
        self._closed = False
        self._waiting: list[tuple[int, int, Taken]] = []
        self._again = QTimer(self, singleShot=True)
        self._again.timeout.connect(self._watch)
        self._connect()

    @property
    def is_open(self) -> bool:
        return self._link is not None and self._link.is_open

    def read(self, offset: int, limit: int, taken: Taken) -> None:
        """Reads a range of the log and calls `taken` with the data. If the host does not answer, tries again later."""
        if self._closed:
            return
        if not self.is_open:
            self._waiting.append((offset, limit, taken))
            self._connect()
            return
        asked = (offset, limit, taken)

        def took(answer: dict[str, Any]) -> None:
            taken(base64.b64decode(answer["data"]), int(answer["size"]))

        self._ask(offset, limit, took, lambda: self._waiting.append(asked))

    def close(self) -> None:
        """Stops the feed. No signal is emitted afterwards."""
        self._closed = True
        self._again.stop()
        self._waiting.clear()
        if self._linking is not None:
            self._linking.cancel()

    def _connect(self) -> None:
        if self._linking is None and not self._closed:
            host, fleet = self.host, self._fleet
            self._linking = self._jobs.run(
                lambda: fleet().link(host, install=False), self._connected, self._unreachable, owner=self
            )

    def _connected(self, link: DaemonClient) -> None:
        self._linking, self._link = None, link
        self.found.emit()
        waiting, self._waiting = self._waiting, []
        for asked in waiting:
            self.read(*asked)
        self._watch()

    def _unreachable(self, error: TorchyardError) -> None:
        self._linking = None
        if not self._closed:
            self.lost.emit(error)
            self._again.start(RETRY_MS)

    def _watch(self) -> None:
        """Asks the host to answer as soon as the log grows."""
        if self._closed:
            return
        if not self.is_open:
            self._connect()
            return
        begin = self.size

        def took(answer: dict[str, Any]) -> None:
            ended = bool(answer["ended"])
            self.size = max(self.size, int(answer["size"]))
            self.times.add(answer["times"])
            if self.size > begin:
                self.grown.emit(base64.b64decode(answer["data"]), begin)
            if ended != self.ended:
                self.ended = ended
                self.ended_changed.emit()
            if not ended:
                self._again.start(WATCH_EVERY_MS)

        self._ask(begin, PAGE_BYTES, took, lambda: None, wait_s=LOG_WAIT_S, times_to_end=True)

    def _ask(
        self, offset: int, limit: int, took: Callable[[dict[str, Any]], None], lost: Callable[[], None], **more: Any
    ) -> None:
        params = {
            "run_id": self._run_id,
            "replica": self.replica,
            "local_rank": self.local_rank,
            "offset": offset,
            "limit": limit,
            **more,
        }
        link = self._link
        assert link is not None

        def answered(future: Future[dict[str, Any]]) -> None:
            self._jobs.tell(self._answered, future, took, lost)

        link.submit("logs.read", params).add_done_callback(answered)

    def _answered(
        self, future: Future[dict[str, Any]], took: Callable[[dict[str, Any]], None], lost: Callable[[], None]
    ) -> None:
        if self._closed:
            return
        problem = future.exception()
        if problem is None:
            took(future.result())
            return
        lost()
        error = explain(problem) if isinstance(problem, Exception) else TorchyardError(str(problem))
        if isinstance(error, AgentRefused):
            self.failed.emit(error)
        else:
            self.lost.emit(error)
            self._again.start(RETRY_MS)
