"""Output of a launch and its run: JSON lines, plain lines, or progress bars on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torchyard_core.cli.output import print_json_line, print_log_line, remark, say
from torchyard_core.cli.views.sweep_results import best_text, next_steps, trials_text
from torchyard_core.formatting import counted, size
from torchyard_core.text_sanitizer import log_line, printable_values
from torchyard_core.throughput import TRAINER_ROLES, run_throughput

Event = dict[str, Any]

_SIGNS = {"succeeded": ("✓", "green"), "failed": ("✗", "red"), "lost": ("✗", "red"), "stopped": ("■", "yellow")}
NAMED_HOSTS = 8
"""Maximum number of hosts whose names are printed. If there are more, only their number is printed."""
CHECKING = "checking"
WITH_PROCESSES = ("running", "restarting", "stopping")
"""States of a run. The clock that is shown on a terminal is not reset when the run changes between these states."""
BAR_WIDTH = 20
REPORT_EVERY = 5.0
"""Minimum number of seconds between two lines about the training's progress if stderr is not a terminal."""


class JsonView:
    """View that prints each event as a line of JSON."""

    def __enter__(self) -> JsonView:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def show(self, event: Event) -> None:
        print_json_line(event)

    def print_log(self, replica: str, line: str) -> None:
        """Prints nothing, since logs are available through `runs logs`."""

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()


class PlainView:
    """View that prints lines, and progress bars if stderr is a terminal.

    The end of the run is printed on stdout, and so are log lines if there are no progress bars. All other lines are
    printed on stderr.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._bars: Any = None
        self._sending: Any = None
        self._status: Any = None
        """The ID of the progress display's task that shows the state."""
        self._state = ""
        """The state that is shown with a clock: `checking`, or a state of a started run; "" if no state is shown."""
        self._since = 0.0
        """The time of `time.monotonic` from which the clock counts."""
        self._note = ""
        self._latest: dict[tuple[int, int], Event] = {}
        """The newest report of each trainer, by (position of its role in TRAINER_ROLES, index of the replica)."""
        self._printed_at = 0.0
        self._screen = threading.Lock()
        self._passed: dict[tuple[str, bool], list[str]] = {}
        """Hosts by (message of their passed check, whether it is a warning)."""

    def __enter__(self) -> PlainView:
        self._start_bars()
        return self

    def _start_bars(self) -> None:
        if self._is_terminal:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
            from rich.table import Column

            # Only the note is shortened if the terminal is narrow. Markup is disabled, since messages may contain
            # square brackets.
            shortened = Column(ratio=1, no_wrap=True, overflow="ellipsis")
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(BAR_WIDTH),
                TextColumn("{task.fields[note]}", markup=False, table_column=shortened),
                TimeElapsedColumn(),
            )
            self._bars = Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
            self._bars.start()
            self._draw_status()

    def __exit__(self, *error: object) -> None:
        self._print_passed()
        self._stop_bars()

    def _stop_bars(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = self._sending = self._status = None

    def _set_state(self, state: str) -> None:
        """Shows a state, with a clock that counts from the beginning of the state. An empty `state` hides both.

        The clock is not reset when a running run restarts or stops.
        """
        if state != self._state and not (self._state in WITH_PROCESSES and state in WITH_PROCESSES):
            self._since, self._note = time.monotonic(), ""
        self._state = state
        self._draw_status()

    def _draw_status(self) -> None:
        if self._bars is None:
            return
        if self._status is not None and not self._state:
            self._bars.remove_task(self._status)
            self._status = None
        if self._status is None and self._state:
            self._status = self._bars.add_task(self._state, total=None, note=self._note)
        for task in self._bars.tasks:
            if task.id == self._status:
                task.start_time = self._since
                self._bars.update(task.id, description=self._state, note=self._note)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the display during the block, so that the user can be asked a question."""
        with self._screen:  # The thread that prints log lines waits for this lock.
            self._stop_bars()
            yield
            self._start_bars()

    def show(self, event: Event) -> None:
        """Shows one event as defined for `run --json`."""
        event = printable_values(event)
        kind = event["event"]
        if kind == "check":
            self._check(event)
            return
        if kind != "run_state" or event["state"] != "checking":
            self._print_passed()
        if kind == "progress":
            self._progress(event)
        elif kind == "run_submitted":
            self._line(f"run {event['run_id']} is on its way")
        elif kind == "run_state":
            self._run_state(event)
        elif kind == "gang_restart":
            what = "the trainers" if event["gang"] == "trainers" else event["gang"]
            self._styled("↻", "yellow", f"{what} start again (restart {event['generation']}): {event['cause']}")
        elif kind == "membership":
            left, lost = len(event["members"]), len(event["lost"])
            count = f"step {event['step']}: {left} of {left + lost} workers"
            self._styled("↻", "yellow", f"{count} continue: {event['cause']}")
        elif kind == "interrupted":
            self._styled("↻", "yellow", f"Slurm interrupted job {event['job']}: {event['cause']}")
        elif kind == "telemetry":
            self._telemetry(event)
        elif kind == "replica_state":
            self._replica_state(event)
        elif kind == "report":
            self._report(event)
        elif kind == "connection":
            self._connection(event)
        elif kind == "run_ended":
            self._ended(event)

    def print_log(self, replica: str, line: str) -> None:
        """Shows a line that a replica printed. Thread-safe."""
        with self._screen:
            if self._bars is not None:
                self._bars.console.print(f"{replica} | {log_line(line)}", highlight=False, markup=False)
            else:
                print_log_line(f"{replica} | ", line)

    def _line(self, text: str) -> None:
        if self._bars is not None:
            self._bars.console.print(text, highlight=False, markup=False)
        else:
            remark(text)

    def _styled(self, sign: str, colour: str, text: str) -> None:
        if self._bars is not None:
            from rich.text import Text

            self._bars.console.print(Text.assemble((sign, colour), " ", text), highlight=False)
        else:
            remark(f"{sign} {text}")

    def _check(self, event: Event) -> None:
        self._set_state(CHECKING)
        text = f"{event['host']}: {event['message']}" if event["host"] else event["message"]
        if not event["ok"]:
            self._styled("✗", "red", text)
            return
        # Equal messages of several hosts are combined into one line that is printed after the checks.
        hosts = self._passed.setdefault((event["message"], bool(event.get("warning"))), [])
        if event["host"] and event["host"] not in hosts:
            hosts.append(event["host"])
        self._note = text
        self._draw_status()

    def _print_passed(self) -> None:
        if self._state == CHECKING:
            self._set_state("")
        for (message, is_warning), hosts in self._passed.items():
            where = ", ".join(hosts) if len(hosts) <= NAMED_HOSTS else f"{len(hosts)} hosts"
            sign = ("!", "yellow") if is_warning else ("✓", "green")
            self._styled(*sign, f"{where}: {message}" if where else message)
        self._passed.clear()

    def _progress(self, event: Event) -> None:
        done, total = event["done"], event["total"]
        if self._bars is None:
            if done >= total:
                remark(f"sent {size(total)}")
            return
        if self._sending is None:
            self._sending = self._bars.add_task("sending", note="")
        self._bars.update(self._sending, completed=done, total=total, note=f"{size(done)} of {size(total)}")
        if done >= total:
            self._bars.remove_task(self._sending)
            self._sending = None
            self._line(f"sent {size(total)}")

    def _run_state(self, event: Event) -> None:
        if event["state"] in ("waiting", "starting", *WITH_PROCESSES):
            reason = f": {event['reason']}" if event.get("reason") else ""
            self._line(f"{event['state']}{reason}")
            self._set_state(event["state"])

    def _replica_state(self, event: Event) -> None:
        state = event["state"]
        if state not in _SIGNS:
            return
        code = event.get("exit_code")
        reason = event.get("reason") or (f"exit code {code}" if code and state == "failed" else "")
        self._styled(*_SIGNS[state], f"{event['replica']} on {event['host']} {state}{': ' + reason if reason else ''}")

    def _report(self, event: Event) -> None:
        """Shows the first trainer's step and loss, and the throughput of all trainers. Ignores other replicas."""
        role, _, index = event["replica"].rpartition("-")
        if role not in TRAINER_ROLES or not (index.isdecimal() and len(index) < 10):
            return
        self._latest[TRAINER_ROLES.index(role), int(index)] = event
        first = self._latest[min(self._latest)]
        text = _training(first, list(self._latest.values()))
        if not text:
            return
        if self._bars is not None and self._state:
            self._note = text
            self._draw_status()
        elif event is first and time.monotonic() - self._printed_at >= REPORT_EVERY:
            self._printed_at = time.monotonic()
            remark(f"{event['replica']} {text}")

    def _connection(self, event: Event) -> None:
        if event["state"] == "lost":
            self._line(
                f"the connection to {event['host']} is lost; what is shown is as of {event['as_of']}. Trying again …"
            )
        else:
            self._line(f"{event['host']} answers again")

    def _telemetry(self, event: Event) -> None:
        if event["state"] == "missing":
            self._styled("!", "yellow", f"live telemetry is missing: {event['reason']}")
        else:
            self._line("live telemetry is back")

    def _ended(self, event: Event) -> None:
        self._print_passed()
        self._stop_bars()
        sign, colour = _SIGNS[event["state"]]
        took = event["timings"].get("ended_s")
        reason = f": {event['reason']}" if event["reason"] else ""
        text = f"run {event['run_id']} {event['state']}{f' after {took:.1f} s' if took else ''}{reason}"
        say(f"{sign} {text}", colour=colour)
        if (results := event.get("sweep")) is not None:
            say(trials_text(results))
            say(best_text(results, results["metric"]))
            for step in next_steps(results, event["run_id"], event["state"]):
                remark(step.sentence())


def _training(report: Event, latest: list[Event]) -> str:
    """Formats a trainer's step and loss and the run's throughput from the `latest` reports of all trainers."""
    parts = []
    if report.get("step") is not None:
        parts.append(f"step {report['step']:.0f}")
    if report.get("loss") is not None:
        parts.append(f"loss {report['loss']:.4g}")
    elif "loss" in report.get("not_finite", ()):
        parts.append("loss NaN")
    throughput = run_throughput({one["replica"]: one.get("throughput") for one in latest})
    if throughput is not None:
        of_all = f" of {counted(len(latest), 'trainer')}" if len(latest) > 1 else ""
        parts.append(f"{throughput:,.0f} samples/s{of_all}")
    return ", ".join(parts)


RunView = JsonView | PlainView
"""A view that prints the launch and the events of one run."""
