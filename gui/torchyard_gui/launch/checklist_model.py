"""The checklist of a launch. Does not depend on Qt.

The checks of all hosts are grouped into rows by the check's name, and equal results are merged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torchyard_core.launch.checks.check import CHECKLIST, Check
from torchyard_core.next_steps import Advice

ORDER = {spec.name: position for position, spec in enumerate(CHECKLIST)}
"""The order of the rows. A check that is not in this table gets its own row before `sending`."""
STEPS = {"reaching": "host"} | {step: step for step in ("looking", "sending", "preparing", "starting")}
"""The row of each launch step, by the step's name in progress reports."""
OF_TOPOLOGY = ("topology_problems", "secret_missing")
"""Error codes about the topology file."""
OF_CALENDAR = ("booked", "conflict", "not_in_booking", "store_away")
"""Error codes about the calendar, regardless of the step in which they occur."""
ALWAYS = ("topology", "host", "looking", "sending", "preparing", "starting")
"""Rows that are shown from the beginning."""


@dataclass
class Row:
    """A row of the checklist: all checks with the same name, and the progress of one step."""

    name: str
    fine: dict[str, list[str]] = field(default_factory=dict)
    """The hosts that have passed, by the message of their result."""
    warnings: list[Check] = field(default_factory=list)
    failed: list[Check] = field(default_factory=list)
    done: int | None = None
    total: int = 0
    is_ended: bool = False
    """Whether the launch has ended. If it has, the row is not shown as running."""

    @property
    def state(self) -> str:
        """The state of the row: pending, running, passed, warning or failed."""
        if self.failed:
            return "failed"
        if self.is_running:
            return "running"
        if self.warnings:
            return "warning"
        return "passed" if self.fine or (self.done is not None and self.done >= self.total) else "pending"

    @property
    def is_running(self) -> bool:
        return self.done is not None and self.done < self.total and not self.is_ended

    @property
    def hosts(self) -> int:
        """The number of hosts that have a result."""
        names = {host for hosts in self.fine.values() for host in hosts}
        return len(names | {check.host for check in (*self.warnings, *self.failed) if check.host})


class Checklist:
    """Collects the checks and the progress of a launch in rows."""

    def __init__(self, *, on_cluster: bool = False) -> None:
        """Creates the rows that are shown from the beginning.

        On a cluster, the row for locking GPUs and reserving ports is omitted.
        """
        self.rows: dict[str, Row] = {name: Row(name) for name in ALWAYS if name != "preparing" or not on_cluster}

    def take(self, check: Check) -> Row:
        """Adds a check and returns the row that contains it."""
        row = self._row(check.name)
        if not check.ok:
            row.failed.append(check)
        elif check.warning:
            row.warnings.append(check)
        else:
            hosts = row.fine.setdefault(check.message, [])
            if check.host and check.host not in hosts:
                hosts.append(check.host)
        return row

    def progress(self, step: str, done: int, total: int) -> Row:
        """Updates the progress of a step and returns the row of the step."""
        row = self._row(STEPS[step])
        row.done, row.total = done, total
        return row

    def end(self, *, started: bool) -> None:
        """Completes the checklist. `started` says whether the run has started."""
        for row in self.rows.values():
            row.is_ended = True
            if started and row.done is None and row.name in STEPS.values():
                row.done = row.total = 0

    def fail(self, host: str, message: str, advice: Advice, code: str) -> Row:
        """Adds an error that does not belong to any check. Returns the row to which the error was added.

        Errors about the calendar, and the error that the start is unknown, have fixed rows. Other errors are added to
        the current step's row or, between steps, to the row of the topology or the hosts.
        """
        under_way = [row for row in self.rows.values() if row.is_running]
        name = "topology" if code in OF_TOPOLOGY else "host"
        if under_way:
            name = under_way[-1].name
        name = "booking" if code in OF_CALENDAR else "starting" if code == "start_unknown" else name
        return self.take(Check(name, host, False, message, advice, code=code))

    @property
    def has_failed(self) -> bool:
        return any(row.failed for row in self.rows.values())

    @property
    def unknown_keys(self) -> list[str]:
        """The hosts whose keys are unknown."""
        return [check.host for row in self.rows.values() for check in row.failed if check.code == "key_unknown"]

    def _row(self, name: str) -> Row:
        if name not in self.rows:
            self.rows[name] = Row(name)
            before = ORDER["sending"] - 0.5
            self.rows = dict(sorted(self.rows.items(), key=lambda item: ORDER.get(item[0], before)))
        return self.rows[name]


NAMED = 6


def where(hosts: Iterable[str]) -> tuple[str, int]:
    """Returns the names of the hosts ("" if there are many) and the number of hosts."""
    names = list(hosts)
    return (", ".join(names) if len(names) <= NAMED else "", len(names))
