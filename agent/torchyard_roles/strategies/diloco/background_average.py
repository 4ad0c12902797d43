"""Averaging in a background thread, while training continues."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torchyard_roles.strategies.diloco.group_average import Outcome


class BackgroundAverage:
    """Runs `call`, which averages a fragment, in a thread that starts immediately."""

    def __init__(self, call: Callable[[], Outcome]) -> None:
        self._call = call
        self._outcome = Outcome.KEPT
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="diloco-average", daemon=True)
        self._thread.start()

    def wait(self) -> Outcome:
        """Waits until `call` has finished, and returns its result or raises its exception."""
        self._thread.join()
        if self._problem is not None:
            raise self._problem
        return self._outcome

    def abandon(self, within_s: float) -> None:
        """Waits at most `within_s` seconds for the thread to end.

        The caller must first close the connections of the exchange, which makes the thread end.
        """
        self._thread.join(within_s)

    def _run(self) -> None:
        try:
            self._outcome = self._call()
        except BaseException as error:  # wait() raises the exception in the waiting thread.
            self._problem = error
