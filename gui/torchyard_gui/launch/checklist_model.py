"""The checklist of a launch as values: checks of many hosts in a few rows, what is the same said once. No Qt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torchyard_core.launch.checks.check import CHECKLIST, Check

ORDER = {spec.name: position for position, spec in enumerate(CHECKLIST)}
"""Positions of the rows; a check that is not in the table has a row of its own before `sending`."""
STEPS = {"reaching": "host"} | {step: step for step in ("looking", "sending", "preparing", "starting")}
"""What `on_progress` names, and the row that it is about."""
OF_TOPOLOGY = ("topology_problems", "secret_missing")
"""Codes of errors that are the file's."""
OF_CALENDAR = ("booked", "conflict", "not_in_booking", "store_away")
"""Codes of errors that are the calendar's, whatever was under way."""
ALWAYS = ("topology", "host", "looking", "sending", "preparing", "starting")
"""Rows that are there from the beginning."""


@dataclass
class Row:
    """One row: its checks, and how far it is."""

    name: str
    fine: dict[str, list[str]] = field(default_factory=dict)
    """Hosts by what was found on them."""
    warnings: list[Check] = field(default_factory=list)
    failed: list[Check] = field(default_factory=list)
    done: int | None = None
    total: int = 0
    is_ended: bool = False
    """Nothing more is to come."""

    @property
    def state(self) -> str:
        """pending, running, passed, warning or failed."""
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
        """How many hosts it has heard of."""
        names = {host for hosts in self.fine.values() for host in hosts}
        return len(names | {check.host for check in (*self.warnings, *self.failed) if check.host})


class Checklist:
    """Takes checks and progress as they come."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {name: Row(name) for name in ALWAYS}

    def take(self, check: Check) -> Row:
        """The row that changed."""
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
        """The row that changed."""
        row = self._row(STEPS[step])
        row.done, row.total = done, total
        return row

    def end(self, *, started: bool) -> None:
        """Nothing more comes. `started`: all of it went well."""
        for row in self.rows.values():
            row.is_ended = True
            if started and row.done is None and row.name in STEPS.values():
                row.done = row.total = 0

    def fail(self, host: str, message: str, hint: str, code: str) -> Row:
        """An error that no check told: it is of the step that was under way, else of the first one."""
        under_way = [row for row in self.rows.values() if row.is_running]
        name = "topology" if code in OF_TOPOLOGY else "host"
        if under_way:
            name = under_way[-1].name
        name = "booking" if code in OF_CALENDAR else "starting" if code == "start_unknown" else name
        return self.take(Check(name, host, False, message, hint, code=code))

    @property
    def has_failed(self) -> bool:
        return any(row.failed for row in self.rows.values())

    @property
    def unknown_keys(self) -> list[str]:
        """Hosts whose keys nobody has vouched for."""
        return [check.host for row in self.rows.values() for check in row.failed if check.code == "key_unknown"]

    def _row(self, name: str) -> Row:
        if name not in self.rows:
            self.rows[name] = Row(name)
            before = ORDER["sending"] - 0.5
            self.rows = dict(sorted(self.rows.items(), key=lambda item: ORDER.get(item[0], before)))
        return self.rows[name]


NAMED = 6


def where(hosts: Iterable[str]) -> tuple[str, int]:
    """Hosts by name where they are few, else only how many."""
    names = list(hosts)
    return (", ".join(names) if len(names) <= NAMED else "", len(names))
