"""Averaging in a background thread, while training continues."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torchyard_roles.strategies.diloco.group_average import Outcome


class BackgroundAverage:
    """A thread that runs `call`, which averages a fragment. It starts at once."""

    def __init__(self, call: Callable[[], Outcome]) -> None:
        self._call = call
        self._outcome = Outcome.KEPT
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="diloco-average", daemon=True)
        self._thread.start()

    def wait(self) -> Outcome:
        """Waits for the end of `call`, and returns its outcome or raises its error."""
        self._thread.join()
        if self._problem is not None:
            raise self._problem
        return self._outcome

    def abandon(self, within_s: float) -> None:
        """Waits for the end of the thread, at most `within_s` seconds.

        Close the connections of the exchange first, so that it ends.
        """
        self._thread.join(within_s)

    def _run(self) -> None:
        try:
            self._outcome = self._call()
        except BaseException as error:  # wait() raises this error again.
            self._problem = error
