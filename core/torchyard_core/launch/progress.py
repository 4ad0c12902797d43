"""What a launch tells whoever watches, and how it waits for hosts: in small steps, so that it can be cancelled."""

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
from torchyard_core.launch.checks.host_facts import Check, failed


class Cancelled(Exception):
    """Raised where the user has changed their mind; nothing half-done is left on the host."""


@dataclass
class Telling:
    """Where a launch's checks, events and progress go. All of them are called on the thread of the launch."""

    on_event: Callable[[dict[str, Any]], None]
    on_check: Callable[[Check], None] = lambda check: None
    on_progress: Callable[[str, int, int], None] = lambda step, done, total: None
    cancelled: Event = field(default_factory=Event)
    begin: float = field(default_factory=time.monotonic)

    def since(self) -> float:
        """Seconds since the launch began."""
        return round(time.monotonic() - self.begin, 3)

    def say(self, event: str, **details: Any) -> None:
        """An event of `run --json`."""
        self.on_event({"event": event, "time": utc_now(), **details})

    def check(self, check: Check) -> None:
        """A line of the checklist."""
        self.on_check(check)
        event = check.to_event()
        self.on_event({"event": event["event"], "time": utc_now(), **event})

    def checks(self, checks: Sequence[Check]) -> None:
        """Lines of the checklist. Raises RunFailed with the first red one, once all have been told."""
        for check in checks:
            self.check(check)
        red = failed(checks)
        if red:
            raise RunFailed(red[0].message, code=red[0].name, hint=red[0].hint)

    def stop_if_cancelled(self) -> None:
        """Raises Cancelled where the user has changed their mind."""
        if self.cancelled.is_set():
            raise Cancelled

    def all(self, asked: Answers, step: str = "", keep: dict[str, Any] | None = None) -> dict[str, Any]:
        """Every answer by host, or the first error; a cancel is seen at once.

        `step` names in `on_progress` what is waited for; `keep` takes the answers in as they come.
        """
        found = {} if keep is None else keep
        open_now = dict.fromkeys(asked.values())
        names = {future: host for host, future in asked.items()}
        problem: TorchyardError | None = None
        if step:
            self.on_progress(step, 0, len(asked))
        while open_now:
            self.stop_if_cancelled()
            for future in wait(open_now, timeout=0.2, return_when=FIRST_COMPLETED).done:
                del open_now[future]
                try:
                    found[names[future]] = future.result()
                except TorchyardError as error:
                    problem = problem or error
                if step:
                    self.on_progress(step, len(asked) - len(open_now), len(asked))
        if problem is not None:
            raise problem
        return found
