"""Work beside the GUI thread, with its results in it.

Work runs on threads that nobody waits for at the end (`torchyard_core.background_thread`). What it returns, raises or
tells comes to the GUI thread by one queued signal, and nothing comes any more once the window is closed: a login that
hangs then neither keeps the program nor finds widgets that are gone.
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
    """Raised in work that was cancelled, where it can be left."""


class Job:
    """One piece of work under way. All of it is safe to use from any thread."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._finished = threading.Event()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def is_finished(self) -> bool:
        """Whether its result was handed over, or nobody wants it any more."""
        return self._finished.is_set() or self._cancelled.is_set()

    def cancel(self) -> None:
        """Nobody wants the result: neither `done` nor `failed` will be called. Work that asks stops at once."""
        self._cancelled.set()

    def checkpoint(self, *told: Any) -> None:
        """Called by the work where it may be left. Raises Cancelled. Takes what a progress callback is given."""
        if self._cancelled.is_set():
            raise Cancelled

    def finish(self) -> bool:
        """True for who may hand over the result: the first that asks, unless it was cancelled."""
        if self.is_finished:
            return False
        self._finished.set()
        return True


class _Gate:
    """Lets calls through to the GUI thread until it is shut, which is for good."""

    def __init__(self, emit: Callable[[Call], None]):
        self._emit = emit
        self._lock = threading.Lock()
        self._open = True

    def post(self, call: Call) -> None:
        # Under the lock: the object whose signal this is cannot go while it emits.
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
    """Runs work on threads, and calls back in the GUI thread."""

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
        """Runs `work` on a thread; then `done` with its result, or `failed` with what went wrong, in the GUI thread.

        Neither is called after `cancel`, after `close`, or when `owner` (say, a dialog) is gone. An error that nobody
        thought of is logged with its traceback and told as a sentence.
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
            except Exception as error:  # the outer edge of a thread: logged, and told
                explained = explain(error)
                gate.post(lambda: hand_over(failed, explained))
            else:
                gate.post(lambda: hand_over(done, result))

        if gate.is_open:
            in_background(act)
        else:
            job.cancel()
        return job

    def tell(self, call: Callable[..., None], *args: Any) -> None:
        """Calls `call` in the GUI thread soon, from whatever thread; not at all once closed."""
        self._gate.post(lambda: call(*args))

    def close(self) -> None:
        """Nothing comes through any more. Threads under way end by themselves; nobody waits."""
        self._gate.shut()

    def _call(self, call: Call) -> None:
        # What was posted before the gate shut may still lie in the event queue.
        if self._gate.is_open:
            call()


def explain(error: Exception) -> TorchyardError:
    """The error itself where it explains itself; any other is logged, and told as what it is."""
    if isinstance(error, TorchyardError):
        return error
    log.error("a job failed", exc_info=error)
    what = str(error) or type(error).__name__
    return TorchyardError(
        f"something went wrong that Torchyard did not foresee: {what}",
        code="unforeseen",
        hint="The log has the details; please report it.",
    )
