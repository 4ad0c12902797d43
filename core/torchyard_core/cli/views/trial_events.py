"""Output of `torchyard sweep --json`: the events of the sweep's run, and one for each change of a trial's state."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from torchyard_core.cli.views.run_progress import Event, JsonView
from torchyard_core.errors import TorchyardError
from torchyard_core.formatting import utc_now
from torchyard_core.sweeps.trial_table import SweepTable, Trial

LEAVE_S = 5.0
"""Maximum time in seconds that the command, at its end, waits for the thread that reads the table."""
PAUSES_S = (0.3, 1.0, 2.0, 4.0)
"""Delays in seconds before successive reads of the table after a new line in the coordinator's log.

The reads are delayed because the coordinator writes the line before it writes the table.
"""
_START, _END = re.compile(r"trial (\d+) on "), re.compile(r"trial (\d+): ")
_REQUEUED = re.compile(r"trial (\d+): waits again: (.*)")


class SweepJsonView(JsonView):
    """View that prints each event as a line of JSON, and adds `trial` events of its own. Thread-safe.

    The sweep's log reports when a trial starts, is requeued or ends. The details of the trial are read from the table
    of trials.
    """

    def __init__(self) -> None:
        self._run_id = ""
        self._started: set[str] = set()
        self._ended: set[str] = set()
        """The trials whose start (`_started`) or end (`_ended`) the log has reported."""
        self._requeued: dict[str, str] = {}
        """The causes of the requeues that have no event yet, by trial."""
        self._shown: dict[str, tuple[str, tuple[str, ...]]] = {}
        """The state and hosts of each trial in its last event."""
        self._printing = threading.RLock()
        self._has_news = threading.Event()
        self._is_over = threading.Event()

    def show(self, event: Event) -> None:
        with self._printing:
            if event["event"] == "run_ended":
                self._is_over.set()
            super().show(event)

    def print_log(self, replica: str, line: str) -> None:
        if started := _START.match(line):
            self._started.add(started[1])
        elif requeued := _REQUEUED.match(line):
            self._started.discard(requeued[1])
            self._requeued[requeued[1]] = requeued[2]
        elif ended := _END.match(line):
            self._ended.add(ended[1])
        else:
            return
        self._has_news.set()

    @contextmanager
    def following(self, run_id: str, read: Callable[[], SweepTable | None]) -> Iterator[None]:
        """Prints events of the trials during the block. `read` is called on another thread, and may raise errors."""
        self._run_id = run_id
        thread = threading.Thread(target=self._run, args=(read,), name="trial-events", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._has_news.set()
            thread.join(LEAVE_S)

    def show_trials(self, table: SweepTable, *, is_last: bool = False) -> None:
        """Prints an event for each trial that has started, was requeued or has ended since the last call.

        The table may be ahead of the log, which has no line for the start of a trial that ended at once. An end that
        the log has not reported is left to a later call unless `is_last` is true. If the sweep resumes an ended sweep,
        the trials of the ended sweep have no events.
        """
        with self._printing:
            over = self._over
            for trial in () if self._is_over.is_set() else table.trials:
                is_own = trial.run_id.startswith(f"{self._run_id}.")
                if not is_own or trial.trial in over:
                    continue
                cause = self._requeued.pop(trial.trial, None)
                if cause is not None and trial.trial in self._shown:
                    self._show_trial(trial, "waiting", cause)
                if trial.state == "waiting":
                    continue
                is_running = trial.state == "running"
                shown = self._shown.get(trial.trial)
                has_started = trial.trial in self._started
                if shown is None or shown[0] != "waiting":  # After a requeue, the table can be older than the log.
                    has_started |= trial.state in ("running", "complete", "pruned")
                if has_started and (shown is None or (is_running and shown != ("running", trial.hosts))):
                    self._show_trial(trial, "running")
                if not is_running and (trial.trial in self._ended or is_last):
                    self._show_trial(trial, trial.state)

    @property
    def _over(self) -> set[str]:
        """The trials whose end has an event."""
        return {number for number, (state, _) in self._shown.items() if state not in ("running", "waiting")}

    def _show_trial(self, trial: Trial, state: str, cause: str = "") -> None:
        self._shown[trial.trial] = state, trial.hosts
        has_ended = state not in ("running", "waiting")
        self.show(
            {
                "event": "trial",
                "time": (trial.ended if has_ended else trial.started if state == "running" else "") or utc_now(),
                "trial": trial.trial,
                "state": state,
                "run_id": trial.run_id,
                "job": trial.job,
                "hosts": list(trial.hosts),
                "params": dict(trial.params),
                "value": trial.value if has_ended else None,
                "cause": trial.cause if has_ended else cause,
            }
        )

    def _run(self, read: Callable[[], SweepTable | None]) -> None:
        while self._has_news.wait() and not self._is_over.is_set():
            self._has_news.clear()
            for pause in PAUSES_S:
                if self._is_over.wait(pause):
                    return
                try:
                    # An error is ignored: the follower reports a lost connection, and the last table has all trials.
                    with suppress(TorchyardError):
                        if (table := read()) is not None:
                            self.show_trials(table)
                except OSError:  # The output cannot be written, which the next event of the run reports.
                    return
                if not self._is_behind():
                    break

    def _is_behind(self) -> bool:
        """Returns whether the log has reported the start or end of a trial that has no event yet."""
        has_run = {number for number, (state, _) in self._shown.items() if state != "waiting"}
        return not (self._started <= has_run and self._ended <= self._over)
