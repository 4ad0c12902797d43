"""The session of a window. The session is saved at every change, so that the next window can restore it even after a
crash.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QLockFile, QObject, QTimer

from torchyard_core.atomic_write import replace_content

SETTLE_MS = 200
"""Delay in milliseconds after a change, so that a burst of changes causes one write."""
ALIVE_EVERY_MS = 30_000
"""Interval in milliseconds at which the state is written with the current time even if nothing has changed."""
PRIVATE = 0o600


@dataclass(frozen=True)
class SessionState:
    """The contents of a window, and the states of runs and hosts at the time `seen_at`, in seconds since 1970."""

    page: str
    file: Path | None
    """The open topology file; None for an untitled one."""
    run: str = ""
    """The ID of the selected run."""
    seen_at: float = 0.0
    live_runs: tuple[str, ...] = ()
    """IDs of the runs that had not ended."""
    hosts: tuple[str, ...] = ()
    """Names of the hosts that answered."""

    def to_text(self) -> str:
        fields = {**vars(self), "file": str(self.file) if self.file is not None else None}
        return json.dumps(fields, ensure_ascii=False, indent=1) + "\n"

    @staticmethod
    def from_text(text: str) -> SessionState | None:
        """Returns the state, or None if the text does not contain a valid state."""
        try:
            found = json.loads(text)
            return SessionState(
                str(found["page"]),
                Path(found["file"]) if found["file"] is not None else None,
                str(found["run"]),
                float(found["seen_at"]),
                tuple(map(str, found["live_runs"])),
                tuple(map(str, found["hosts"])),
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


class WindowSession(QObject):
    """The session of one window. A second window with the same folder neither reads nor writes the session."""

    def __init__(self, file: Path, current: Callable[[], SessionState], parent: QObject) -> None:
        """Creates the session. `current` returns the state to write."""
        super().__init__(parent)
        self._file = file
        self._current = current
        self._lock = QLockFile(str(file.with_suffix(".lock")))
        self._lock.setStaleLockTime(0)  # The lock must not expire as long as the process that holds it is running.
        self._soon = QTimer(self, singleShot=True, interval=SETTLE_MS)
        self._soon.timeout.connect(self.write)
        self._alive = QTimer(self, interval=ALIVE_EVERY_MS)
        self._alive.timeout.connect(self.write)
        self.is_ours = self._take_lock()
        self.before = self._read() if self.is_ours else None
        """The state of the last window, or None."""

    def start(self) -> None:
        """Starts writing the state. Called once the last state has been restored."""
        if self.is_ours:
            self._alive.start()
            self.changed()

    def changed(self) -> None:
        """Schedules writing the state."""
        if self._alive.isActive():
            self._soon.start()

    def write(self) -> None:
        """Writes the state. If writing fails, the only consequence is that the session cannot be restored."""
        try:
            replace_content(self._file, self._current().to_text(), PRIVATE)
        except OSError:
            return

    def close(self) -> None:
        """Writes the last state, and releases the session so that another window can use it."""
        self._soon.stop()
        if self._alive.isActive():
            self._alive.stop()
            self.write()
        self._lock.unlock()

    def _take_lock(self) -> bool:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return False
        return self._lock.tryLock(0)

    def _read(self) -> SessionState | None:
        try:
            return SessionState.from_text(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
