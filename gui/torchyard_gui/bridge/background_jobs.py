"""Background work with results on the GUI thread.

Work runs on threads that the program does not join when it exits (`torchyard_core.background_thread`). Results, errors
and progress arrive on the GUI thread through a queued signal, and never after the window is closed. Therefore, a login
that hangs neither delays the exit nor leads to calls to deleted widgets.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import shiboken6
from PySide6.QtCore import QObject, Qt, Signal

from torchyard_core.background_thread import in_background
from torchyard_core.errors import TorchyardError

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Call = Callable[[], None]


class Cancelled(Exception):
    """Raised by `Job.checkpoint` and `Job.wait` if the job was cancelled."""


class Job:
    """A background task. All methods except `finish` are thread-safe."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._finished = threading.Event()
        self._lock = threading.Lock()
        self._wakers: list[Call] = []

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def is_finished(self) -> bool:
        """Whether the result has been delivered or the job has been cancelled."""
        return self._finished.is_set() or self._cancelled.is_set()

    def cancel(self) -> None:
        """Cancels the job: `done` and `failed` are not called, and the work stops at its next checkpoint."""
        with self._lock:
            self._cancelled.set()
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def on_cancel(self, wake: Call) -> None:
        """Registers `wake`, which is called when the job is cancelled, or at once if the job is already cancelled.
        `wake` must not block.
        """
        with self._lock:
            if not self.is_cancelled:
                self._wakers.append(wake)
                return
        wake()

    def checkpoint(self, *progress: Any) -> None:
        """Raises Cancelled if the job was cancelled.

        Accepts and ignores any arguments, so that the method can be used as a progress callback.
        """
        if self._cancelled.is_set():
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Blocks the job's thread for `seconds`. Raises Cancelled as soon as the job is cancelled."""
        self._cancelled.wait(seconds)
        self.checkpoint()

    def finish(self) -> bool:
        """Claims the delivery of the result. Returns False if it was claimed before or the job was cancelled."""
        if self.is_finished:
            return False
        self._finished.set()
        return True


class _Gate:
    """Forwards calls to the GUI thread until the gate is closed. A closed gate cannot be opened again."""

    def __init__(self, emit: Callable[[Call], None]):
        self._emit = emit
        self._lock = threading.Lock()
        self._open = True

    def post(self, call: Call) -> None:
        # `shut` waits for this lock, so the QObject that owns the signal is not deleted while the signal is emitted.
        with self._lock:
            if self._open:
                self._emit(call)

    def shut(self) -> None:
        with self._lock:
            self._open = False

    @property
    def is_open(self) -> bool:
        return self._open


class Jobs(QObject):
    """Runs work on threads and delivers the results on the GUI thread."""

    _posted = Signal(object)

    def __init__(self, parent: QObject | None = None):
        super().__init__(parent)
        self._gate = _Gate(self._posted.emit)
        self._posted.connect(self._call, Qt.ConnectionType.QueuedConnection)
        self.destroyed.connect(self._gate.shut)

    def run(
        self,
        work: Callable[[], Result],
        done: Callable[[Result], None] | None = None,
        failed: Callable[[TorchyardError], None] | None = None,
        *,
        owner: QObject | None = None,
        job: Job | None = None,
    ) -> Job:
        """Runs `work` on a background thread, then calls `done` or `failed` on the GUI thread.

        Neither callback is called after `cancel`, after `close`, or after `owner`, such as a dialog, has been deleted.
        Unexpected exceptions are logged with their traceback and passed to `failed` as an error.
        """
        job = job or Job()
        gate = self._gate

        def hand_over(callback: Callable[[Any], None] | None, value: Any) -> None:
            if owner is not None and not shiboken6.isValid(owner):
                job.cancel()
            if job.finish() and callback is not None:
                callback(value)

        def act() -> None:
            try:
                result = work()
            except Cancelled:
                job.cancel()
            except Exception as error:  # An exception would be lost with the thread, so `failed` gets it.
                explained = explain(error)
                gate.post(lambda: hand_over(failed, explained))
            else:
                gate.post(lambda: hand_over(done, result))

        act.__name__ = getattr(work, "__qualname__", "job")  # `in_background` names the thread after the function.
        if gate.is_open:
            in_background(act)
        else:
            job.cancel()
        return job

    def tell(self, call: Callable[..., None], *args: Any) -> None:
        """Schedules a call on the GUI thread. May be called on any thread. Has no effect after `close`."""
        self._gate.post(lambda: call(*args))

    def close(self) -> None:
        """Discards all later results. Threads that are running are not interrupted."""
        self._gate.shut()

    def _call(self, call: Call) -> None:
        # Calls that were posted before `close` may still be in the event queue.
        if self._gate.is_open:
            call()


def explain(error: Exception) -> TorchyardError:
    """Returns a TorchyardError unchanged. Any other exception is logged and wrapped in a TorchyardError."""
    if isinstance(error, TorchyardError):
        return error
    log.error("a job failed", exc_info=error)
    what = str(error) or type(error).__name__
    return TorchyardError(
        f"something went wrong that Torchyard did not foresee: {what}",
        code="unforeseen",
        hint="The log has the details; please report it.",
    )
