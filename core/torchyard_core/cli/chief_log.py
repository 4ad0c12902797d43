"""The chief's log beside a run that is followed: what the script prints is what most people watch for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from torchyard_core.errors import TorchyardError
from torchyard_core.launch.agent_interface import AgentLink, Reattach
from torchyard_core.launch.runs.known_runs import LogReader

LAST_LINES_S = 5.0
"""How long the last lines may take once the run is over."""
RETRY_S = 2.0


class ChiefLog:
    """Reads one replica's log on a thread of its own and hands out its lines."""

    def __init__(self, run_id: str, replica: str, link: AgentLink, reattach: Reattach, show: Callable[[str], None]):
        self._reader = LogReader(run_id, replica, 0, link, reattach)
        self._show = show
        self._left = threading.Event()
        self._showing = threading.Lock()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._read, name=f"log-{replica}", daemon=True)

    def __enter__(self) -> ChiefLog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._left.is_set():
            self._thread.join(LAST_LINES_S)
        self.leave()

    def leave(self) -> None:
        """Shows no more lines, and waits for none: the run goes on without us."""
        self._left.set()
        with self._showing:  # what is being shown just now comes before whatever the caller says next
            pass

    def raise_failure(self) -> None:
        """Raises the OSError that a line could not be shown for: nobody reads our output any more."""
        if self._failure is not None:
            raise self._failure

    def _read(self) -> None:
        while not self._left.is_set() and not self._reader.ended:
            try:
                for line in self._reader.lines(wait=True):
                    with self._showing:
                        if not self._left.is_set():
                            self._show(line)
            except OSError as error:
                self._failure = error
                return
            except TorchyardError:
                self._left.wait(RETRY_S)  # the follower tells about the connection; the log goes on where it was
