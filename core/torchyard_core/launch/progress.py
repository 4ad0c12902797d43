"""Progress reports of a launch, and waiting for hosts with cancellation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from torchyard_core.background_thread import Answers
from torchyard_core.errors import RunFailed, TorchyardError
from torchyard_core.formatting import utc_now
from torchyard_core.launch.checks.check import Check, failed


class Cancelled(Exception):
    """Raised after the user has cancelled a launch."""


@dataclass
class LaunchProgress:
    """The callbacks of a launch for checks, events and progress. They are called on the thread of the launch."""

    on_event: Callable[[dict[str, Any]], None]
    on_check: Callable[[Check], None] = lambda check: None
    on_progress: Callable[[str, int, int], None] = lambda step, done, total: None
    cancelled: Event = field(default_factory=Event)
    begin: float = field(default_factory=time.monotonic)

    def elapsed_s(self) -> float:
        """Returns the seconds since the start of the launch."""
        return round(time.monotonic() - self.begin, 3)

    def emit(self, event: str, **details: Any) -> None:
        """Reports an event as defined for `run --json`."""
        self.on_event({"event": event, "time": utc_now(), **details})

    def report_check(self, check: Check) -> None:
        """Reports a line of the checklist to `on_check`, and as an event."""
        self.on_check(check)
        event = check.to_event()
        self.on_event({"event": event["event"], "time": utc_now(), **event})

    def report_checks(self, checks: Sequence[Check]) -> None:
        """Reports lines of the checklist, then raises RunFailed for the first failed line."""
        for check in checks:
            self.report_check(check)
        red = failed(checks)
        if red:
            raise RunFailed(red[0].message, code=red[0].name, hint=red[0].advice)

    def stop_if_cancelled(self) -> None:
        """Raises Cancelled if the launch was cancelled."""
        if self.cancelled.is_set():
            raise Cancelled

    def wait_for_all(self, answers: Answers, step: str = "") -> dict[str, Any]:
        """Waits for the answers of all hosts and returns them by host.

        Raises Cancelled as soon as the launch is cancelled. If a host failed, its TorchyardError is raised after all
        hosts have answered; with several, the first.

        Args:
            answers: The futures by host.
            step: The name of the step in calls of `on_progress`, which report how many hosts have succeeded. Without a
                name, `on_progress` is not called.
        """
        found: dict[str, Any] = {}
        pending = dict.fromkeys(answers.values())
        names = {future: host for host, future in answers.items()}
        problem: TorchyardError | None = None
        if step:
            self.on_progress(step, 0, len(answers))
        while pending:
            self.stop_if_cancelled()
            for future in wait(pending, timeout=0.2, return_when=FIRST_COMPLETED).done:
                del pending[future]
                try:
                    found[names[future]] = future.result()
                except TorchyardError as error:
                    problem = problem or error
                if step:
                    self.on_progress(step, len(found), len(answers))
        if problem is not None:
            raise problem
        return found
